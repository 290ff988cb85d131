"""Lists the modules with the model's code, which a package must not need."""

from __future__ import annotations

import sys
from typing import Any

import torch

from torchproof.records import whose
from torchproof.targets import Loaded


def model_modules(fn: Any, loaded: Loaded) -> list[str]:
    """The modules of the model's classes and functions and of its factory."""
    owners = {type(fn), fn}
    if isinstance(fn, torch.nn.Module):
        owners |= {type(part) for part in fn.modules()}
    names = {getattr(owner, "__module__", None) for owner in owners}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == loaded.place.file:
            names.add(name)
    return sorted(
        name
        for name in names
        if name in sys.modules
        and name != "__main__"
        and whose(getattr(sys.modules[name], "__file__", None) or "<none>")
        in ("user", "library")
    )
