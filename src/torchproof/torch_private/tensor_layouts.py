"""Whether tensors still look as they did, compared by torch's own guards in C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from torchproof.torch_private import contract


def same_layouts(tensors: Sequence[Tensor]) -> Callable[[], bool]:
    """Returns a function that compares types, shapes, strides and `requires_grad`.

    It may say that something differs that does not matter, such as the grad mode.
    """
    if not tensors or contract.missing("guards of tensors"):
        return lambda: False
    from torch._C._dynamo.guards import TensorGuards

    guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return lambda: bool(guards.check(*tensors))
