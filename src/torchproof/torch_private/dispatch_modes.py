"""Dispatch modes: seeing every operation below autograd, in eager and in backward.

torch documents the class but keeps it in a private module.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["PROBES", "TorchDispatchMode", "default_device", "is_overridden"]

PROBES: dict[str, tuple[str, ...]] = {
    "operations below autograd": (
        "torch.utils._python_dispatch:TorchDispatchMode.__torch_dispatch__",
    ),
    "modes in force": (
        "torch._C:_len_torch_function_stack",
        "torch._C:_len_torch_dispatch_stack",
        "torch._C:_get_function_stack_at",
        "torch.utils._device:DeviceContext",
    ),
}


def is_overridden() -> bool:
    """Whether a mode decides here what torch's functions do.

    A default device is such a mode as well, and does not count.
    """
    return torch._C._len_torch_dispatch_stack() > 0 or any(
        not isinstance(torch._C._get_function_stack_at(number), DeviceContext)
        for number in range(torch._C._len_torch_function_stack())
    )


def default_device() -> Hashable:
    """Where `torch.set_default_device` and `with torch.device(...)` make tensors."""
    count = torch._C._len_torch_function_stack()
    modes = map(torch._C._get_function_stack_at, reversed(range(count)))
    return next((m.device for m in modes if isinstance(m, DeviceContext)), None)
