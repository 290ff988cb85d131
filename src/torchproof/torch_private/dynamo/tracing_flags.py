"""Makes torch's flags "FX traces" and "is compiling" say what this thread does.

Torch has one flag of each kind for the whole process. While a helper thread of the
runtime compiles, a function that another thread has compiled raises because "FX" traces
it (torch 2.11), and a model that runs eager meanwhile finds that
`torch.compiler.is_compiling()` is true (torch 2.13).
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

_NAME = "_torchproof_in_this_thread"


class ThreadCount:
    """Counts what threads are doing; `here` is what torch's flag is asked about."""

    def __init__(self) -> None:
        self._running = Counter[int]()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        me = threading.get_ident()
        self._running[me] += 1
        try:
            yield
        finally:
            self._running[me] -= 1
            if not self._running[me]:
                del self._running[me]

    def here(self) -> bool:
        """Whether this thread is doing it, or no thread that was counted is."""
        return not self._running or threading.get_ident() in self._running

    def keep_own(self) -> None:
        """In a fork, which has no other threads."""
        me = threading.get_ident()
        self._running = Counter({me: own} if (own := self._running[me]) else {})


@functools.cache
def install() -> None:
    """Patches torch for good."""
    from torch.fx import _symbolic_trace

    tracer: Any = torch.fx.Tracer
    if hasattr(_symbolic_trace, "_is_fx_tracing_flag"):  # per thread since torch 2.14
        tracing = _counter(vars(_symbolic_trace))
        tracer.trace = _counted(tracer.trace, tracing)
        _ask_thread(_symbolic_trace.is_fx_symbolic_tracing, _is_fx_symbolic_tracing)
    compiler: Any = torch.compiler
    if hasattr(compiler, "_compile_session_context"):  # since torch 2.13
        sessions = _counter(vars(compiler))
        session = compiler._compile_session_context

        @contextlib.contextmanager
        def counted() -> Iterator[None]:
            with sessions.entered(), session():
                yield

        compiler._compile_session_context = counted
        _ask_thread(compiler.is_compiling, _is_compiling)


def _counter(namespace: dict[str, Any]) -> ThreadCount:
    count = ThreadCount()
    namespace[_NAME] = count.here
    os.register_at_fork(after_in_child=count.keep_own)
    return count


def _counted(work: Callable[..., Any], count: ThreadCount) -> Callable[..., Any]:
    @functools.wraps(work)
    def counted(*args: Any, **kwargs: Any) -> Any:
        with count.entered():
            return work(*args, **kwargs)

    return counted


def _ask_thread(function: Any, replacement: Any) -> None:
    """Replaces the body of a function of torch's.

    Compiled functions hold the function itself, and Dynamo knows it by its identity.
    TorchScript reads its source, which stays.
    """
    code = function.__code__
    function.__code__ = replacement.__code__.replace(
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )


# The bodies run with the globals of torch's modules.
# ruff: noqa: F821
# mypy: disable-error-code="name-defined"


def _is_fx_symbolic_tracing() -> bool:
    return bool(
        _is_fx_tracing_flag
        and _torchproof_in_this_thread()
        and not torch.compiler.is_compiling()
    )


def _is_compiling() -> bool:
    if torch.jit.is_scripting():
        return False
    is_ours = _is_exporting_flag or _torchproof_in_this_thread()
    return bool(_is_compiling_flag and is_ours)
