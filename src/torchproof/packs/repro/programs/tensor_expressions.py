"""Writes expressions that create tensors and torch modules like given ones.

Takes live objects, returns source. It never copies data.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.tensor_source import tensor_source

# Parameters of recurrent layers and their defaults: the signature has only *args.
_RECURRENT = {
    "input_size": inspect.Parameter.empty,
    "hidden_size": inspect.Parameter.empty,
    "num_layers": 1,
    "bias": True,
    "batch_first": False,
    "dropout": 0,
    "bidirectional": False,
}


def tensor_like(tensor: torch.Tensor) -> str:
    """Returns an expression for a tensor of the same kind with random data."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain and not isinstance(tensor, torch.nn.Buffer):
        raise Unsuitable(f"{type(tensor).__name__} is a subclass of Tensor")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise Unsuitable("a tensor is sparse or quantized")
    source = tensor_source(tensor)
    if tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter):
        source += ".requires_grad_()"
    if isinstance(tensor, torch.nn.Parameter):
        frozen = "" if tensor.requires_grad else ", requires_grad=False"
        return f"torch.nn.Parameter({source}{frozen})"
    if isinstance(tensor, torch.nn.Buffer):
        return f"torch.nn.Buffer({source})"
    return source


def is_torch_module(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def module_like(module: torch.nn.Module, value: Any) -> str:
    """Returns a constructor call for a torch module; `value` writes its children."""
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
    return f"{name}({_arguments(module)}){_state(module)}"


def _arguments(module: torch.nn.Module) -> str:
    arguments = []
    for name, parameter in _parameters(module).items():
        any_number = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name in {"self", "device", "dtype"} or name.startswith("_") or any_number:
            continue
        argument = getattr(module, name, inspect.Parameter.empty)
        if name == "bias" and not isinstance(argument, bool):
            argument = argument is not None
        plain = isinstance(argument, int | float | str | tuple | list | None)
        default = parameter.default
        if not plain or argument is inspect.Parameter.empty:
            if default is inspect.Parameter.empty:
                raise Unsuitable(f"{type(module).__name__} cannot be rebuilt")
            continue
        if default is inspect.Parameter.empty:
            arguments.append(repr(argument))
        elif argument != default:
            arguments.append(f"{name}={argument!r}")
    return ", ".join(arguments)


def _parameters(module: torch.nn.Module) -> dict[str, inspect.Parameter]:
    if isinstance(module, torch.nn.RNNBase):
        return {
            name: inspect.Parameter(
                name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default
            )
            for name, default in _RECURRENT.items()
        }
    return dict(inspect.signature(type(module).__init__).parameters)


def _state(module: torch.nn.Module) -> str:
    """Returns method calls that set dtype, device, frozen weights and eval mode."""
    calls = ""
    weights = list(module.parameters())
    if weights and weights[0].dtype != torch.get_default_dtype():
        calls += f".to({weights[0].dtype})"
    if weights and weights[0].device.type != "cpu":
        calls += f".to({weights[0].device.type!r})"
    if weights and not any(w.requires_grad for w in weights):
        calls += ".requires_grad_(False)"
    return calls + ("" if module.training else ".eval()")
