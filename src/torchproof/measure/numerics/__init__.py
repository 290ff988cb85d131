"""Judges whether the outputs of a strategy are right.

Takes the outputs of a pass over a target's calls, as flat mappings from labels to
tensors and plain values: of the strategy, of eager, and of eager in float64. Returns a
`Numerics`. A strategy may be as inexact as eager itself is in its working precision.
"""

from torchproof.measure.numerics.judgement import Answers, Numerics, judge
from torchproof.measure.numerics.reference import Reference, reference

__all__ = ["Answers", "Numerics", "Reference", "judge", "reference"]
