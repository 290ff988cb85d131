"""Imports torch's compiler, which takes seconds, with as little work as possible."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator

# Imported one by one between two calls with `wait=False`: all at once takes seconds.
TRACER = ("sympy", "torch.fx.experimental.symbolic_shapes", "torch._dynamo")
LOADER = (
    "torch._functorch._aot_autograd.autograd_cache",
    "torch._inductor.lowering",
    "torch._inductor.compile_fx",
)


def import_compiler() -> None:
    """Imports what tracing, code generation and loading of compiled code need."""
    with collector_paused():
        for name in (*TRACER, *LOADER):
            importlib.import_module(name)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Without garbage collection, which takes a fifth of the time of large imports.

    Imports make few cycles; the next collection finds them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
