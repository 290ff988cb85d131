"""Computes what the outputs of a strategy are compared with.

Takes functions that build a target and run it. Returns the outputs of eager, of eager
in float64, and of eager with perturbed inputs, as flat mappings from labels to tensors
and plain values. `torch_private.comparison` compares.
"""

from torchproof.measure.numerics.reference import (
    Reference,
    different_bits,
    differs_at_each_load,
    reference,
)
from torchproof.measure.numerics.swap_tensors import SavedValues

__all__ = [
    "Reference",
    "SavedValues",
    "different_bits",
    "differs_at_each_load",
    "reference",
]
