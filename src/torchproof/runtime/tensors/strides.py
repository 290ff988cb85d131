"""How tensors lie in memory: tensors with the same strides, and copies between them.

Elements of a tensor may share memory (`expand`, `unfold`), and there may be gaps
between them (`x[:, :2]`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchproof.torch_private import step_capture

# A copy whose strides leave gaps takes at most twice the memory, if that is much.
_MOST_GAPS = 2
_MUCH_BYTES = 1 << 20


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last one, with those between."""
    if 0 in shape:
        return 0
    pairs = zip(shape, strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may share memory; false only if none do."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def has_gaps(tensor: Tensor) -> bool:
    """Whether there is memory between the elements that is not copied with them."""
    shape, strides = tensor.shape, tensor.stride()
    overlaps = may_overlap(shape, strides)
    return not overlaps and span_of(shape, strides) > tensor.numel()


def empty_like(tensor: Tensor) -> Tensor:
    """A tensor of the same type, shape and strides in memory of its own."""
    empty = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return step_capture.with_lazy_bits_of(empty, tensor)


def memory_of(tensor: Tensor) -> Tensor:
    """A view that shows each element of memory once, to copy from and to."""
    plain = step_capture.without_lazy_bits(tensor.detach())
    shape, strides = tensor.shape, tensor.stride()
    if not may_overlap(shape, strides):
        return plain
    return plain.as_strided((span_of(shape, strides),), (1,))


def clone(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A copy with these strides."""
    if strides == tensor.stride():
        copy = empty_like(tensor)
        memory_of(copy).copy_(memory_of(tensor))
        return copy
    copy = torch.empty_strided(
        tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def needs_strides(tensor: Tensor, strides: tuple[int, ...]) -> bool:
    """Whether `Tensor.clone` has other strides, and a copy with these can be made.

    A small part of a large tensor gets a compact copy.
    """
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return False
    if torch.empty_like(tensor, device="meta").stride() == strides:
        return False
    shape = tensor.shape
    if may_overlap(shape, strides):
        return strides == tensor.stride()
    span = span_of(shape, strides)
    return span <= _MOST_GAPS * tensor.numel() or span * tensor.itemsize < _MUCH_BYTES
