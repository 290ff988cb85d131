"""torchproof makes torch.compile dependable."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = [
    "Finding",
    "PackRefused",
    "Run",
    "apply_patches",
    "bench",
    "check",
    "compare",
    "compile",
    "fix",
    "graph",
    "host_call",
    "host_value",
    "in_graph",
    "load",
    "loadtest",
    "on_host",
    "pack",
    "plan",
    "raise_if",
    "retry",
    "status",
    "step",
    "tune",
]

_HOME = {
    "check": "torchproof.api",
    "bench": "torchproof.api",
    "tune": "torchproof.api",
    "fix": "torchproof.api",
    "pack": "torchproof.api",
    "loadtest": "torchproof.api",
    "compare": "torchproof.api",
    "apply_patches": "torchproof.runtime",
    "compile": "torchproof.runtime",
    "graph": "torchproof.runtime",
    "host_call": "torchproof.runtime",
    "host_value": "torchproof.runtime",
    "in_graph": "torchproof.runtime",
    "load": "torchproof.runtime",
    "on_host": "torchproof.runtime",
    "PackRefused": "torchproof.runtime",
    "plan": "torchproof.runtime",
    "raise_if": "torchproof.runtime",
    "retry": "torchproof.runtime",
    "status": "torchproof.runtime",
    "step": "torchproof.runtime",
    "Run": "torchproof.records",
    "Finding": "torchproof.records",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
