"""The calls a pack was made for, without their values: made again from a description.

Comes in: a call, a tuple or a dict of arguments. Goes out: JSON with shapes, strides,
types and the range of integers; and from that a call with other values of this kind.
"""

from __future__ import annotations

from typing import Any

import torch

from torchproof.runtime.loading import pytree_json
from torchproof.runtime.loading.pytree_json import Unfit
from torchproof.torch_private import marks_of, put_marks

Description = dict[str, Any]


def describe(call: Any) -> Description:
    """The description of a call; `why_not` says that it cannot be made again."""
    tensors: list[torch.Tensor] = []
    try:
        form = pytree_json.flatten(call, tensors, "the call")
        _assert_plain(form)
        return {"form": form, "tensors": [_describe_tensor(each) for each in tensors]}
    except (Unfit, ValueError) as error:
        return {"why_not": str(error)}


def _assert_plain(form: dict[str, Any]) -> None:
    """A record would come back without its class, which the model may ask for."""
    if "fields" in form:
        raise Unfit(f"an argument is a {form['type']}, which is not made again")
    for part in (*form.get("list", ()), *form.get("tuple", ())):
        _assert_plain(part)
    for _, part in form.get("dict", ()):
        _assert_plain(part)


def _describe_tensor(tensor: torch.Tensor) -> Description:
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise Unfit(f"an argument is a {kind.__name__} of layout {tensor.layout}")
    told: Description = {
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "requires_grad": tensor.requires_grad,
        "marks": marks_of(tensor),
    }
    if tensor.numel() and not (tensor.is_floating_point() or tensor.is_complex()):
        whole = tensor.detach().to(torch.int64)
        told |= {"low": int(whole.min()), "high": int(whole.max())}
        flat = whole.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
        # Offsets and positions only make sense in their order.
        told["sorted"] = bool((flat[:, 1:] >= flat[:, :-1]).all())
    return told


def make(description: Description, seed: int = 0) -> Any:
    """A call of this kind, drawn from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [_make_tensor(each, generator) for each in description["tensors"]]
    return pytree_json.rebuild(description["form"], tensors)


def _make_tensor(told: Description, generator: torch.Generator) -> torch.Tensor:
    shape, stride, device = told["shape"], told["stride"], told["device"]
    dtype = getattr(torch, told["dtype"])
    values = _values(told, dtype, generator).to(dtype)
    # Of an expanded dimension there is one element in memory.
    held = [1 if step == 0 else size for size, step in zip(shape, stride, strict=True)]
    for dimension, size in enumerate(held):
        values = values.narrow(dimension, 0, min(size, values.shape[dimension]))
    found = torch.empty_strided(held, stride, dtype=dtype, device=device)
    if found.numel():
        found.copy_(values)
    found = put_marks(found.expand(shape), told["marks"])
    return found.requires_grad_() if told["requires_grad"] else found


def _values(
    told: Description, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    shape = told["shape"]
    if "low" not in told:
        kind = dtype if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=kind)
    low, high = told["low"], told["high"]
    # Both ends of the range are among them: a range may be all that they mean.
    drawn = torch.randint(low, high + 1, shape, generator=generator)
    if drawn.dim() and drawn.numel() > 1:
        drawn.view(-1)[0], drawn.view(-1)[-1] = low, high
    return drawn.sort(dim=-1).values if told["sorted"] and drawn.dim() else drawn
