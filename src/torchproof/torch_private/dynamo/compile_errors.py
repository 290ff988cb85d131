"""Tells an error that ended a compilation from one that compiled code raised.

Torch removes the compiler's frames from an error, and raises plain RuntimeErrors in
both cases. So each exception is marked where it leaves the compiler.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any, Literal

from torchproof.torch_private import contract
from torchproof.torch_private.hooks import patched

# A frame, or the backward of a graph, which torch compiles when it first runs.
CompilePhase = Literal["frame", "backward"]

_MARK = "_torchproof_compile_phase"


def compile_phase(error: BaseException) -> CompilePhase | None:
    """What was being compiled when an error was raised; None: nothing."""
    return getattr(error, _MARK, None)


@contextlib.contextmanager
def marked_compile_errors() -> Iterator[None]:
    """Marks each exception that ends a compilation, for `compile_phase`."""
    contract.require("compile errors")
    convert_frame = importlib.import_module("torch._dynamo.convert_frame")
    handler = importlib.import_module("torch._dynamo.callback")
    convert = convert_frame.CatchErrorsWrapper.__call__
    install = handler.CompilationCallbackHandler.install_callbacks
    lazy_backward = handler.CallbackTrigger.LAZY_BACKWARD

    @functools.wraps(convert)
    def marked_convert(*args: Any, **kwargs: Any) -> Any:
        with _marking("frame"):
            return convert(*args, **kwargs)

    @functools.wraps(install)
    @contextlib.contextmanager
    def marked_install(self: Any, trigger: Any, *args: Any, **kwargs: Any) -> Any:
        # The recording of a CUDA graph has a trigger of its own: that is a run.
        is_compilation = trigger is lazy_backward
        marking = _marking("backward") if is_compilation else contextlib.nullcontext()
        with marking, install(self, trigger, *args, **kwargs):
            yield

    with (
        patched(convert_frame.CatchErrorsWrapper, "__call__", marked_convert),
        patched(
            handler.CompilationCallbackHandler, "install_callbacks", marked_install
        ),
    ):
        yield


@contextlib.contextmanager
def _marking(phase: CompilePhase) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        setattr(error, _MARK, phase)
        raise
