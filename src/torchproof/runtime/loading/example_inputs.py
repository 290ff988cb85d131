"""Describes the calls of a pack without their values, and generates similar calls.

`describe` takes a call, a tuple or a dict of arguments, and returns JSON with shapes,
strides, dtypes and the range of integers. `make` takes that JSON and returns a call
with random values.
"""

from __future__ import annotations

from typing import Any

import torch

from torchproof.runtime.loading import pytree_json
from torchproof.runtime.loading.pytree_json import PytreeSpec, Unfit
from torchproof.torch_private import marks_of, put_marks

Description = dict[str, Any]


def describe(call: Any) -> Description:
    """The description of a call; `why_not` says why the call cannot be generated."""
    tensors: list[torch.Tensor] = []
    try:
        spec = pytree_json.flatten(call, tensors, "the call")
        _assert_plain(spec)
        return {"form": spec, "tensors": [_describe_tensor(each) for each in tensors]}
    except (Unfit, ValueError) as error:
        return {"why_not": str(error)}


def _assert_plain(spec: PytreeSpec) -> None:
    """Rejects records: a generated one would lack the class that the model may use."""
    if "fields" in spec:
        raise Unfit(f"an argument is a {spec['type']}, which cannot be generated")
    for part in (*spec.get("list", ()), *spec.get("tuple", ())):
        _assert_plain(part)
    for _, part in spec.get("dict", ()):
        _assert_plain(part)


def _describe_tensor(tensor: torch.Tensor) -> Description:
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise Unfit(f"an argument is a {kind.__name__} of layout {tensor.layout}")
    description: Description = {
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "requires_grad": tensor.requires_grad,
        "marks": marks_of(tensor),
    }
    if tensor.numel() and not (tensor.is_floating_point() or tensor.is_complex()):
        whole = tensor.detach().to(torch.int64)
        description |= {"low": int(whole.min()), "high": int(whole.max())}
        flat = whole.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
        # Offsets and positions are valid only in sorted order.
        description["sorted"] = bool((flat[:, 1:] >= flat[:, :-1]).all())
    return description


def make(description: Description, seed: int = 0) -> Any:
    """A call with random values; the global random state does not change."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [_make_tensor(each, generator) for each in description["tensors"]]
    return pytree_json.rebuild(description["form"], tensors)


def _make_tensor(description: Description, generator: torch.Generator) -> torch.Tensor:
    shape, stride = description["shape"], description["stride"]
    dtype = getattr(torch, description["dtype"])
    values = _values(description, dtype, generator).to(dtype)
    # An expanded dimension has one element in memory.
    stored = [
        1 if step == 0 else size for size, step in zip(shape, stride, strict=True)
    ]
    for dimension, size in enumerate(stored):
        values = values.narrow(dimension, 0, min(size, values.shape[dimension]))
    tensor = torch.empty_strided(
        stored, stride, dtype=dtype, device=description["device"]
    )
    if tensor.numel():
        tensor.copy_(values)
    tensor = put_marks(tensor.expand(shape), description["marks"])
    return tensor.requires_grad_() if description["requires_grad"] else tensor


def _values(
    description: Description, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    shape = description["shape"]
    if "low" not in description:
        kind = dtype if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=kind)
    low, high = description["low"], description["high"]
    # Both ends of the range occur: the model may depend on the range alone.
    drawn = torch.randint(low, high + 1, shape, generator=generator)
    if drawn.dim() and drawn.numel() > 1:
        drawn.view(-1)[0], drawn.view(-1)[-1] = low, high
    return drawn.sort(dim=-1).values if description["sorted"] and drawn.dim() else drawn
