"""Compiler settings: which differ from their defaults, and how to change them."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from typing import Any

import torch

from torchproof.records import UserError

MODULES = (
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch._inductor.config",
    "torch.fx.experimental._config",
    "torch.compiler.config",
)


def changed() -> dict[str, dict[str, Any]]:
    """The settings of each config module that differ from their defaults, as JSON.

    Modules that are not loaded have no changes. A default that torch reads from an
    environment variable is not a change.
    """
    settings = {name: _differing(sys.modules.get(name)) for name in MODULES}
    return {name: values for name, values in settings.items() if values}


def _differing(module: Any) -> dict[str, Any]:
    if module is None:
        return {}
    # An alias would repeat the setting of another name.
    touched = [
        name
        for name, entry in module._config.items()
        if entry.alias is None and not module._is_default(name)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading a deprecated setting warns
        values = {name: getattr(module, name) for name in touched}
    # Torch also reports settings that were set and set back.
    return {
        name: _plain(value)
        for name, value in values.items()
        if value != module._config[name].default
    }


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)


def set_dynamo_config(name: str, value: Any) -> None:
    """Changes a setting of Dynamo; adds the value where the setting is a set."""
    module = importlib.import_module("torch._dynamo.config")
    if not hasattr(module, name):
        raise UserError(f"torch {torch.__version__} has no torch._dynamo.config.{name}")
    current = getattr(module, name)
    if isinstance(current, set):
        current.add(value)
    else:
        setattr(module, name, value)


def mark_size(
    tensor: torch.Tensor, dimension: int, how: str, shape_id: str | None = None
) -> None:
    """Marks a size of a tensor: `how` is a function of torch._dynamo.decorators."""
    mark = getattr(importlib.import_module("torch._dynamo.decorators"), how)
    more = {} if shape_id is None else {"shape_id": shape_id}
    mark(tensor, dimension, **more)
