"""Whether an arm's answers are right, before its time is believed.

Comes in: the answers of a pass over a target's calls, as flat mappings from labels to
tensors and plain values, of the arm, of eager, and of eager in float64. Goes out: a
`Numerics`. Eager's own error in its working precision is what an arm may err by.
"""

from torchproof.measure.numerics.judgement import Answers, Numerics, judge
from torchproof.measure.numerics.reference import Reference, reference

__all__ = ["Answers", "Numerics", "Reference", "judge", "reference"]
