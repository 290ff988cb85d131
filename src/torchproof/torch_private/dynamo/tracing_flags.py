"""Makes torch's flags "FX traces" and "is compiling" say what this thread does.

Torch has one flag of each kind for the whole process. While a helper thread of the
runtime compiles, a function that another thread has compiled raises because "FX" traces
it (torch 2.11), and a model that runs eager meanwhile finds that
`torch.compiler.is_compiling()` is true (torch 2.13). Torch sets a flag back to what it
was before, so a flag would stay set for good once the thread that began first has also
ended first. So each thread has its own.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

_NAME = "_torchproof_in_this_thread"


class ThreadFlag(threading.local):
    """A flag of each thread; a fork keeps that of the thread that forked."""

    is_set = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        before = self.is_set
        self.is_set = True
        try:
            yield
        finally:
            self.is_set = before

    def here(self) -> bool:
        return self.is_set


@functools.cache
def install() -> None:
    """Patches torch for good."""
    from torch.fx import _symbolic_trace

    if hasattr(_symbolic_trace, "_is_fx_tracing_flag"):  # per thread since torch 2.14
        _trace_per_thread(_symbolic_trace)
    if _sets_only_its_flag(getattr(torch.compiler, "_compile_session_context", None)):
        _compile_per_thread(torch.compiler)


def _trace_per_thread(module: Any) -> None:
    """Torch's own variable is still written by FX, but no longer read.

    A trace that has begun before is not known. The first call of a model, which leads
    here, runs eager inside a trace.
    """
    flag = ThreadFlag()
    tracer: Any = torch.fx.Tracer
    tracer.trace = _holding(flag, tracer.trace)
    setattr(module, _NAME, flag.here)
    _ask_thread(module.is_fx_tracing, _is_fx_tracing)
    _ask_thread(module.is_fx_symbolic_tracing, _is_fx_symbolic_tracing)

    class Module(types.ModuleType):
        """Operators such as torch.cond clear the flag by its name in the module."""

        @property
        def _is_fx_tracing_flag(self) -> bool:
            return flag.is_set

        @_is_fx_tracing_flag.setter
        def _is_fx_tracing_flag(self, value: bool) -> None:
            flag.is_set = value

    module.__class__ = Module


def _sets_only_its_flag(session: Any) -> bool:
    """Whether this is torch's context of a compilation (since torch 2.13) as known."""
    body = getattr(session, "__wrapped__", None)
    return body is not None and body.__code__.co_names == ("_is_compiling_flag",)


def _compile_per_thread(module: Any) -> None:
    """Only export still sets torch's own flag, for all threads."""
    flag = ThreadFlag()
    setattr(module, _NAME, flag.here)
    module._compile_session_context = flag.held
    _ask_thread(module.is_compiling, _is_compiling)


def _holding(flag: ThreadFlag, work: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(work)
    def holding(*args: Any, **kwargs: Any) -> Any:
        with flag.held():
            return work(*args, **kwargs)

    return holding


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


def _is_fx_tracing() -> bool:
    is_fx_tracing_warning()
    return bool(_torchproof_in_this_thread())


def _is_fx_symbolic_tracing() -> bool:
    return bool(_torchproof_in_this_thread() and not torch.compiler.is_compiling())


def _is_compiling() -> bool:
    if torch.jit.is_scripting():
        return False
    return bool(_is_compiling_flag or _torchproof_in_this_thread())
