"""Describes the calls of a pack without their values, and generates similar calls.

`describe` takes a call, a tuple or a dict of arguments, and returns its shapes,
strides, dtypes and the range of its integers. `make` takes those and returns a call
with random values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from torchproof.records import schema
from torchproof.runtime.loading.pack_details import CallInputs, TensorLayout
from torchproof.torch_private import Unfit, marks_of, put_marks, tree_specs


def describe(call: Any) -> CallInputs:
    """The description of a call; `why_not` says why the call cannot be generated."""
    tensors: list[torch.Tensor] = []
    try:
        form = tree_specs.flatten(call, tensors, "the call")
        if form.has_records:  # the model may use its class
            raise Unfit("an argument is a record, which cannot be generated")
        return CallInputs(form, tuple(_describe_tensor(each) for each in tensors))
    except (Unfit, ValueError) as error:
        return CallInputs(why_not=str(error))


def _describe_tensor(tensor: torch.Tensor) -> TensorLayout:
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise Unfit(f"an argument is a {kind.__name__} of layout {tensor.layout}")
    layout = TensorLayout(
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
        marks=marks_of(tensor),
    )
    if not tensor.numel() or tensor.is_floating_point() or tensor.is_complex():
        return layout
    whole = tensor.detach().to(torch.int64)
    flat = whole.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    return replace(
        layout,
        low=schema.Integer(whole.min()),
        high=schema.Integer(whole.max()),
        # Offsets and positions are valid only in sorted order.
        sorted=bool((flat[:, 1:] >= flat[:, :-1]).all()),
    )


def make(inputs: CallInputs, seed: int = 0) -> Any:
    """A call with random values; the global random state does not change."""
    assert inputs.form is not None
    generator = torch.Generator().manual_seed(seed)
    tensors = [_make_tensor(each, generator) for each in inputs.tensors]
    return inputs.form.rebuild(tensors)


def _make_tensor(layout: TensorLayout, generator: torch.Generator) -> torch.Tensor:
    dtype = getattr(torch, layout.dtype)
    values = _values(layout, dtype, generator).to(dtype)
    # An expanded dimension has one element in memory.
    pairs = zip(layout.shape, layout.stride, strict=True)
    stored = [1 if step == 0 else size for size, step in pairs]
    for dimension, size in enumerate(stored):
        values = values.narrow(dimension, 0, min(size, values.shape[dimension]))
    # Not a view, such as `expand` returns: guards on varying sizes would then check the
    # view's base too, and fail for requests that are no views.
    tensor = torch.empty_strided(
        layout.shape, layout.stride, dtype=dtype, device=layout.device
    )
    if tensor.numel():
        tensor.as_strided(stored, layout.stride).copy_(values)
    tensor = put_marks(tensor, layout.marks)
    return tensor.requires_grad_() if layout.requires_grad else tensor


def _values(
    layout: TensorLayout, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    low, high = layout.low, layout.high
    if low is None or high is None:
        kind = dtype if dtype.is_complex else torch.float32
        return torch.randn(layout.shape, generator=generator, dtype=kind)
    # Both ends of the range occur: the model may depend on the range alone.
    drawn = torch.randint(low, high + 1, layout.shape, generator=generator)
    if drawn.dim() and drawn.numel() > 1:
        drawn.view(-1)[0], drawn.view(-1)[-1] = low, high
    return drawn.sort(dim=-1).values if layout.sorted and drawn.dim() else drawn
