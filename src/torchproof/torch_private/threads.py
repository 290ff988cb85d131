"""What torch keeps for each thread: taken in one, and put on in another."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import torch

PROBES: dict[str, tuple[str, ...]] = {
    "state of a thread": (
        "torch._C:_dispatch_tls_local_include_set",
        "torch._C:_dispatch_tls_local_exclude_set",
        "torch._C:_ForceDispatchKeyGuard",
        "torch._C:_push_on_torch_function_stack",
        "torch._C:_pop_torch_function_stack",
        "torch._C:_len_torch_dispatch_stack",
        "torch._C._functorch:peek_interpreter_stack",
        "torch.overrides:_get_current_function_mode_stack",
    ),
    "the lock of the compiler": ("torch._dynamo.convert_frame:compile_lock",),
}


class ThreadState:
    """What torch keeps per thread and a conversion depends on, taken where it is made.

    `why_not` says why another thread cannot be given this state, if it cannot.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = {
            device: (
                torch.is_autocast_enabled(device),
                torch.get_autocast_dtype(device),
            )
            for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else ()))
        }
        self._autocast_cache = torch.is_autocast_cache_enabled()
        self._modes = torch.overrides._get_current_function_mode_stack()
        self._keys = (
            torch._C._dispatch_tls_local_include_set(),
            torch._C._dispatch_tls_local_exclude_set(),
        )
        self._stream = (
            torch.cuda.current_stream() if torch.cuda.is_initialized() else None
        )
        self.why_not = _unshared_state()

    def run(self, work: Callable[[], Any]) -> Any:
        """The work's result, under this state, in the thread that calls this."""
        return self._context.run(self._run, work)

    def _run(self, work: Callable[[], Any]) -> Any:
        with contextlib.ExitStack() as stack:
            if self._stream is not None:
                stack.enter_context(torch.cuda.stream(self._stream))
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for device, (enabled, dtype) in self._autocast.items():
                stack.enter_context(
                    torch.autocast(
                        device,
                        dtype=dtype,
                        enabled=enabled,
                        cache_enabled=self._autocast_cache,
                    )
                )
            for mode in self._modes:
                torch._C._push_on_torch_function_stack(mode)
                stack.callback(torch._C._pop_torch_function_stack)
            stack.enter_context(torch._C._ForceDispatchKeyGuard(*self._keys))
            return work()


def _unshared_state() -> str | None:
    if torch._C._len_torch_dispatch_stack():
        return "a torch dispatch mode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a function transform is active"
    return None


def free_compile_lock(owner: int) -> None:
    """Lets others compile though a thread that cannot be stopped holds the lock."""
    from torch._dynamo import convert_frame

    lock = convert_frame.compile_lock
    if getattr(lock, "_is_owned", None) is not None and str(owner) in repr(lock):
        # Those who wait for it go on; those who come later find one of their own.
        renew_compile_lock()
        lock._release_save()  # type: ignore[attr-defined]


def renew_compile_lock() -> None:
    """In a fork, too: who held it stayed with the parent."""
    from torch._dynamo import convert_frame

    convert_frame.compile_lock = threading.RLock()
