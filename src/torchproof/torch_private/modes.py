"""Dispatch modes: seeing every operation below autograd, in eager and in backward.

torch documents the class but keeps it in a private module.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["PROBES", "TorchDispatchMode"]

PROBES: dict[str, tuple[str, ...]] = {
    "operations below autograd": (
        "torch.utils._python_dispatch:TorchDispatchMode.__torch_dispatch__",
    ),
}
