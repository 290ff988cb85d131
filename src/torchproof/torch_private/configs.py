"""Settings of the compiler that somebody changed, in code or by a variable."""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["PROBES", "changed"]

MODULES = (
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch._inductor.config",
    "torch.fx.experimental._config",
    "torch.compiler.config",
)
PROBES: dict[str, tuple[str, ...]] = {
    "changed settings": tuple(f"{module}:_config" for module in MODULES),
}


def changed() -> dict[str, dict[str, Any]]:
    """By module, each setting that differs from its default, as plain JSON.

    A module that was not loaded has nothing changed. Where torch reads a default from a
    variable, the variable tells it and the setting does not.
    """
    found = {name: _differing(sys.modules.get(name)) for name in MODULES}
    return {name: values for name, values in found.items() if values}


def _differing(module: Any) -> dict[str, Any]:
    if module is None:
        return {}
    found = {}
    for name, entry in module._config.items():
        # An alias would show the setting of another name a second time.
        if entry.alias is None and (value := getattr(module, name)) != entry.default:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)
