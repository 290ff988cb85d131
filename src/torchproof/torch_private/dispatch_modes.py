"""Dispatch modes, which see every operation below autograd, in eager and backward.

Torch documents the class but keeps it in a private module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "EagerDispatchMode",
    "TorchDispatchMode",
    "default_device",
    "is_overridden",
    "recorded_by_autograd",
]


class EagerDispatchMode(TorchDispatchMode):
    """A mode for runs in eager.

    Torch hides the method of other modes from Dynamo and imports Dynamo for that, which
    takes seconds.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def is_overridden() -> bool:
    """Whether something outside sees or changes each operation or saved tensor.

    That is a dispatch or function mode other than the default device, a transform such
    as `vmap`, forward-mode differentiation, `torch.jit.trace` or hooks on tensors that
    autograd saves.
    """
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or (torch._C._len_torch_function_stack() > 0 and _has_function_mode())
    )


def _has_function_mode() -> bool:
    return any(
        not isinstance(torch._C._get_function_stack_at(number), DeviceContext)
        for number in range(torch._C._len_torch_function_stack())
    )


def default_device() -> Hashable:
    """The device set by `torch.set_default_device` or `with torch.device(...)`."""
    count = torch._C._len_torch_function_stack()
    if not count:
        return None
    modes = map(torch._C._get_function_stack_at, reversed(range(count)))
    return next((m.device for m in modes if isinstance(m, DeviceContext)), None)


@contextlib.contextmanager
def recorded_by_autograd() -> Iterator[None]:
    """Lets autograd record operations inside the implementation of an operator.

    There, autograd is behind the operations: torch excludes its keys.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in _AUTOGRAD_KEYS:
        excluded = excluded.remove(getattr(torch._C.DispatchKey, name))
    included = torch._C._dispatch_tls_local_include_set()
    with (
        torch._C._ForceDispatchKeyGuard(included, excluded),
        torch.enable_grad(),
    ):
        yield


_AUTOGRAD_KEYS = ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor")
