"""Compiler settings: which are changed, which have an effect, how to change them."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from torchproof.records import TorchConfig, UserError

MODULES = (
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch._inductor.config",
    "torch.fx.experimental._config",
    "torch.compiler.config",
)
_GROUPS = {"dynamo": "torch._dynamo.config", "inductor": "torch._inductor.config"}
_TUNED_PRODUCTS = "max_autotune_gemm"  # settings of Inductor
_DEPENDENT_LAUNCH = "triton.enable_pdl"
_DEPENDENT_LAUNCH_SINCE = 9  # compute capability


def changed() -> dict[str, TorchConfig]:
    """The settings of each config module that differ from their defaults, as JSON.

    Modules that are not loaded have no changes. A default that torch reads from an
    environment variable is not a change.
    """
    settings = {name: _differing(sys.modules.get(name)) for name in MODULES}
    return {name: values for name, values in settings.items() if values}


def _differing(module: Any) -> TorchConfig:
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


def restore(settings: Mapping[str, TorchConfig]) -> None:
    """Changes the settings that `changed` found in another process.

    Leaves out values that JSON cannot hold: they are texts of something else.
    """
    for name, values in settings.items():
        module: Any = importlib.import_module(name)
        for setting, value in values.items():
            if setting in module._config and _is_alike(value, module._config[setting]):
                setattr(module, setting, value)


def _is_alike(value: Any, entry: Any) -> bool:
    plain = isinstance(value, bool | int | float | None)
    return plain or type(value) is type(entry.default)


def set_config(group: str, name: str, value: Any) -> None:
    """Changes a setting; adds the value where the setting is a set."""
    module = importlib.import_module(_GROUPS[group])
    if not hasattr(module, name):
        raise UserError(f"torch {torch.__version__} has no {_GROUPS[group]}.{name}")
    current = getattr(module, name)
    if isinstance(current, set):
        current.add(value)
    else:
        setattr(module, name, value)


def why_unavailable(setting: str, device: str) -> str | None:
    """Why a setting has no effect with this torch on this device; None if it has.

    `setting` is `dynamo.NAME` or `inductor.NAME`.
    """
    group, _, name = setting.partition(".")
    config = importlib.import_module(_GROUPS[group])
    if name not in config._config:
        return f"torch {torch.__version__} has no setting {name}"
    if name == _TUNED_PRODUCTS and device == "cpu" and not config.freezing:
        return (
            "on a CPU, Inductor tunes only products with frozen weights"
            " (TORCHINDUCTOR_FREEZING=1)"
        )
    return _why_no_dependent_launch(device) if name == _DEPENDENT_LAUNCH else None


def _why_no_dependent_launch(device: str) -> str | None:
    """Inductor generates such code under the same conditions, without a message."""
    needs = "programmatic dependent launch needs"
    if device != "cuda":
        return f"{needs} a CUDA device"
    if torch.version.hip:
        return f"{needs} an NVIDIA GPU"
    major, minor = torch.cuda.get_device_capability()
    if major < _DEPENDENT_LAUNCH_SINCE:
        return (
            f"{needs} compute capability {_DEPENDENT_LAUNCH_SINCE}.0, and this GPU has"
            f" {major}.{minor}"
        )
    return None


def mark_size(
    tensor: torch.Tensor, dimension: int, function: str, shape_id: str | None = None
) -> None:
    """Marks a size of a tensor: `function` is one of torch._dynamo.decorators."""
    mark = getattr(importlib.import_module("torch._dynamo.decorators"), function)
    more = {} if shape_id is None else {"shape_id": shape_id}
    mark(tensor, dimension, **more)
