"""Tensors and modules of torch's own as expressions that make others like them.

Comes in: live objects. Goes out: source. Values are never taken over; of whole numbers
their range is, since they may index something.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from torchproof.packs.repro.programs.file_merger import Unsuitable

_RECURRENT: tuple[str, ...] = (
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "batch_first",
)
_RECURRENT += ("dropout", "bidirectional")


def tensor_like(tensor: torch.Tensor) -> str:
    """An expression for a tensor of the same kind, filled from the seed."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain and not isinstance(tensor, torch.nn.Buffer):
        raise Unsuitable(f"{type(tensor).__name__} is a tensor of its own kind")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise Unsuitable("a tensor with a layout of its own")
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    made = _filled(tensor, shape)
    if not tensor.is_contiguous():
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True) if n)
        made = f"{_filled(tensor, (extent,))}.as_strided({shape}, {stride})"
    if tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter):
        made += ".requires_grad_()"
    if isinstance(tensor, torch.nn.Parameter):
        frozen = "" if tensor.requires_grad else ", requires_grad=False"
        return f"torch.nn.Parameter({made}{frozen})"
    return f"torch.nn.Buffer({made})" if isinstance(tensor, torch.nn.Buffer) else made


def _filled(tensor: torch.Tensor, shape: tuple[int, ...]) -> str:
    where = "" if tensor.device.type == "cpu" else f", device={tensor.device.type!r}"
    kind = (
        "" if tensor.dtype == torch.get_default_dtype() else f", dtype={tensor.dtype}"
    )
    size = ", ".join(map(str, shape)) or "()"
    if tensor.is_floating_point() or tensor.is_complex():
        if tensor.dtype.itemsize == 1:  # there is no randn of these
            return f"torch.randn({size}{where}).to({tensor.dtype})"
        return f"torch.randn({size}{kind}{where})"
    if not tensor.numel() or tensor.is_meta:
        return f"torch.zeros({shape}{kind}{where})"
    low, high = int(tensor.min()), int(tensor.max())
    if tensor.dtype == torch.bool:
        if low == high:
            return f"torch.full({shape}, {bool(low)}{where})"
        return f"torch.randint(2, {shape}{kind}{where})"
    if low == high:
        return f"torch.full({shape}, {low}{kind}{where})"
    kind = "" if tensor.dtype == torch.int64 else kind
    return f"torch.randint({low}, {high + 1}, {shape}{kind}{where})"


def is_torch_module(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def module_like(module: torch.nn.Module, value: Any) -> str:
    """A call of the constructor of a module of torch's; `value` writes children."""
    kind = type(module)
    name = f"{kind.__module__}.{kind.__name__}"
    if getattr(torch.nn, kind.__name__, None) is kind:
        name = f"torch.nn.{kind.__name__}"
    if isinstance(module, torch.nn.Sequential):
        return f"{name}({', '.join(value(child) for child in module)})"
    if isinstance(module, torch.nn.ModuleList):
        return f"{name}([{', '.join(value(child) for child in module)}])"
    if isinstance(module, torch.nn.ModuleDict):
        inner = ", ".join(f"{key!r}: {value(child)}" for key, child in module.items())
        return f"{name}({{{inner}}})"
    if isinstance(module, torch.nn.ParameterList):
        return f"{name}([{', '.join(value(child) for child in module)}])"
    return f"{name}({_arguments(module)}){_finish(module)}"


def _arguments(module: torch.nn.Module) -> str:
    written = []
    for name, parameter in _parameters(module).items():
        any_number = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name in {"self", "device", "dtype"} or name.startswith("_") or any_number:
            continue
        given = getattr(module, name, inspect.Parameter.empty)
        if name == "bias" and not isinstance(given, bool):
            given = given is not None
        plain = isinstance(given, int | float | str | tuple | list | None)
        usual = parameter.default
        if not plain or given is inspect.Parameter.empty:
            if usual is inspect.Parameter.empty:
                raise Unsuitable(f"{type(module).__name__} cannot be built again")
            continue
        if usual is inspect.Parameter.empty:
            written.append(repr(given))
        elif given != usual:
            written.append(f"{name}={given!r}")
    return ", ".join(written)


def _parameters(module: torch.nn.Module) -> dict[str, inspect.Parameter]:
    if isinstance(module, torch.nn.RNNBase):
        usual = (
            inspect.Parameter.empty,
            inspect.Parameter.empty,
            1,
            True,
            False,
            0,
            False,
        )
        return {
            name: inspect.Parameter(
                name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default
            )
            for name, default in zip(_RECURRENT, usual, strict=True)
        }
    return dict(inspect.signature(type(module).__init__).parameters)


def _finish(module: torch.nn.Module) -> str:
    """Type, device, frozen weights and mode, where they are not what is usual."""
    found = ""
    weights = list(module.parameters())
    if weights and weights[0].dtype != torch.get_default_dtype():
        found += f".to({weights[0].dtype})"
    if weights and weights[0].device.type != "cpu":
        found += f".to({weights[0].device.type!r})"
    if weights and not any(w.requires_grad for w in weights):
        found += ".requires_grad_(False)"
    return found + ("" if module.training else ".eval()")
