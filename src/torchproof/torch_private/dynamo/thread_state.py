"""Torch's per-thread state: captured in one thread and applied in another."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import types
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import torch

from torchproof.process import forks
from torchproof.records import Namespace
from torchproof.torch_private.replacements import Replacement


class ThreadState:
    """The per-thread state that a conversion depends on, of the creating thread.

    `why_not` says why another thread cannot get this state; None if it can.
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
        """Runs `work` under this state in the calling thread and returns its result."""
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


_loading: set[int] = set()  # threads that import the compiler


@contextlib.contextmanager
def loading_compiler() -> Iterator[None]:
    """The compiler is imported inside, which counts as compiling."""
    thread = threading.get_ident()
    _loading.add(thread)
    try:
        with forks.undone_in_fork(_loading.clear):
            yield
    finally:
        _loading.discard(thread)


def another_thread_compiles() -> bool:
    """Whether a compilation in this thread would wait for one in another thread."""
    if _loading - {threading.get_ident()}:
        return True
    convert_frame: Any = sys.modules.get("torch._dynamo.convert_frame")
    lock = getattr(convert_frame, "compile_lock", None)
    if lock is None:
        return False
    is_free = False
    try:
        is_free = lock.acquire(blocking=False)
    finally:
        if is_free:
            lock.release()
    return not is_free


def forget_other_compilers() -> None:
    """Resets the compiler state that a compiling thread of the parent leaves in a fork.

    That thread does not exist in the fork. Without this its lock would stay held,
    `torch.compiler.is_compiling()` would be True, FX would trace calls of modules, and
    Inductor would mix up two graphs.
    """
    from torch._dynamo import convert_frame

    if convert_frame.compile_lock._is_owned():  # type: ignore[attr-defined]
        return  # the forking thread itself compiles
    convert_frame.compile_lock = threading.RLock()
    patcher = torch.fx._symbolic_trace.CURRENT_PATCHER
    if patcher is not None:
        patcher.revert_all_patches()
    graph_module: Any = torch.fx.graph_module
    graph_module._forward_from_src = convert_frame.original_forward_from_src
    for name, state in _IDLE_STATE.items():
        if name in sys.modules:
            namespace = vars(sys.modules[name])
            namespace.update(
                {key: copy(state[key]) for key in state.keys() & namespace.keys()}
            )
    bundler = sys.modules.get("torch._inductor.triton_bundler")
    if bundler is not None:
        bundler.TritonBundler.end_compile()


@contextlib.contextmanager
def unusable_cuda_hidden() -> Iterator[None]:
    """Lets the compiler work without CUDA in a fork of a process that used CUDA.

    `torch.cuda.is_available()` is still true there, but every use of CUDA raises, and
    Dynamo reads the state of CUDA's random number generator for each frame it converts.
    So `is_available()` returns False to the compiler, but not to traced code.
    """
    if not torch.cuda._is_in_bad_fork():
        yield
        return
    with _unusable_cuda.active():
        yield


def _unless_the_compiler_asks(original: Callable[[], bool]) -> Callable[[], bool]:
    def is_compiled() -> bool:
        frame = sys._getframe(1)
        if frame.f_code.co_name != "is_available":
            return original()
        caller = frame.f_back
        while caller is not None and _module(caller) == "torch.accelerator":
            caller = caller.f_back
        name = "" if caller is None else _module(caller)
        return not (name.startswith(_COMPILER) and name != _TRACES_CALLS) and original()

    return is_compiled


_unusable_cuda = Replacement(
    lambda: [(torch.cuda, "_is_compiled", _unless_the_compiler_asks)]
)


def _module(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


_COMPILER = ("torch._dynamo.", "torch._functorch.", "torch._inductor.")
_TRACES_CALLS = "torch._dynamo.variables.torch"  # calls made for traced code

# Process-wide state that torch changes while a thread compiles, with its idle values.
_IDLE_STATE: dict[str, Namespace] = {
    "torch.compiler": {"_is_compiling_flag": False},
    "torch.fx._symbolic_trace": {"CURRENT_PATCHER": None, "_is_fx_tracing_flag": False},
    "torch.fx.experimental.proxy_tensor": {"_CURRENT_MAKE_FX_TRACER": None},
    "torch.fx.traceback": {"should_preserve_node_meta": False, "current_meta": {}},
}
