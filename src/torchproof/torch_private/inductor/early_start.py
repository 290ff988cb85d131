"""Begins what every compilation needs, before there is a graph to compile.

Torch starts its compile workers when the first graph arrives, and compiles kernels in
this process, one after the other, until the workers are ready.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import threading
from collections.abc import Iterator
from typing import Any

from torchproof.torch_private import contract

# Imported one by one between two calls with `wait=False`: all at once takes seconds.
TRACER = ("sympy", "torch.fx.experimental.symbolic_shapes", "torch._dynamo")
LOADER = (
    "torch._functorch._aot_autograd.autograd_cache",
    "torch._inductor.lowering",
    "torch._inductor.compile_fx",
)
_WORKERS = "torch._inductor.async_compile"
_CACHE = "torch._inductor.codecache"


def import_compiler() -> None:
    """Imports what tracing, code generation and loading of compiled code need."""
    with collector_paused():
        for name in (*TRACER, *LOADER):
            importlib.import_module(name)


@functools.cache
def begin() -> None:
    """Starts the workers, imports the compiler and hashes torch's sources meanwhile.

    Once in a process. Without the hooks, torch does the same later.
    """
    with collector_paused():
        for name in TRACER:
            importlib.import_module(name)
        if not contract.missing("early start of compilers"):
            start_workers()
            hash_sources()
    import_compiler()


def start_workers() -> None:
    """Starts the processes that compile Triton kernels, unless torch is set not to."""
    importlib.import_module(_WORKERS).maybe_warm_pool()


def hash_sources() -> None:
    """Computes in a thread the part of all cache keys that identifies torch."""
    key: Any = importlib.import_module(_CACHE).torch_key
    if hasattr(key, "prefetch"):  # in newer versions; who needs the key waits for it
        key.prefetch()
        return
    threading.Thread(target=key, name="torchproof-torch-key", daemon=True).start()


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
