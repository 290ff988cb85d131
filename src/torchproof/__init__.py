"""torchproof makes torch.compile dependable."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchproof.api import bench as bench
    from torchproof.api import check as check
    from torchproof.api import compare as compare
    from torchproof.api import fix as fix
    from torchproof.api import loadtest as loadtest
    from torchproof.api import pack as pack
    from torchproof.api import tune as tune
    from torchproof.ipython_magics import (
        load_ipython_extension as load_ipython_extension,
    )
    from torchproof.records import Finding as Finding
    from torchproof.records import Run as Run
    from torchproof.records import UserError as UserError
    from torchproof.runtime import PackRefused as PackRefused
    from torchproof.runtime import apply_patches as apply_patches
    from torchproof.runtime import compile as compile
    from torchproof.runtime import graph as graph
    from torchproof.runtime import host_call as host_call
    from torchproof.runtime import host_value as host_value
    from torchproof.runtime import in_graph as in_graph
    from torchproof.runtime import load as load
    from torchproof.runtime import on_host as on_host
    from torchproof.runtime import plan as plan
    from torchproof.runtime import raise_if as raise_if
    from torchproof.runtime import retry as retry
    from torchproof.runtime import status as status
    from torchproof.runtime import step as step

__version__ = "0.2.0"
__all__ = [
    "Finding",
    "PackRefused",
    "Run",
    "UserError",
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
    "load_ipython_extension": "torchproof.ipython_magics",
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
    "UserError": "torchproof.records",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
