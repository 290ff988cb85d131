"""Begins what every compilation needs, before there is a graph to compile.

Torch starts its compile workers when the first graph arrives, and compiles kernels in
this process, one after the other, until the workers are ready.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

import torch

from torchproof.records import collector_paused
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
_TRITON = "torch.utils._triton"
# Of what identifies Triton; imported first, so that no two threads import them.
_TRITON_PARTS = ("triton.compiler.compiler", "triton.runtime.driver")


def import_compiler() -> None:
    """Imports what tracing, code generation and loading of compiled code need."""
    with collector_paused():
        for name in (*TRACER, *LOADER):
            importlib.import_module(name)


@functools.cache
def begin() -> None:
    """Starts the workers, imports the compiler and computes cache keys meanwhile.

    Once in a process. Without the hooks, torch does the same later.
    """
    with collector_paused():
        for name in TRACER:
            importlib.import_module(name)
        if not contract.missing("early start of compilers"):
            start_workers()
            compute_keys()
    import_compiler()


def start_workers() -> None:
    """Starts the processes that compile Triton kernels, unless torch is set not to."""
    importlib.import_module(_WORKERS).maybe_warm_pool()


def compute_keys() -> None:
    """Computes in a thread what all cache keys contain, which torch keeps.

    They identify torch and, where there is a device, Triton and its driver. Of that
    Triton compiles a part with a C compiler, in another process.
    """
    key: Any = importlib.import_module(_CACHE).torch_key
    keys: list[Callable[[], Any]] = []
    if hasattr(key, "prefetch"):  # in newer versions; who needs the key waits for it
        key.prefetch()
    else:
        keys.append(key)
    if torch.cuda.is_initialized() and _import_triton():
        keys.append(functools.partial(_identify_triton, torch.cuda.current_device()))
    if keys:
        threading.Thread(
            target=_compute_all, args=(keys,), name="torchproof-keys", daemon=True
        ).start()


def _compute_all(keys: list[Callable[[], Any]]) -> None:
    for compute in keys:
        with contextlib.suppress(Exception):  # torch computes it again, and reports it
            compute()


def _import_triton() -> bool:
    try:
        for name in _TRITON_PARTS:
            importlib.import_module(name)
    except ImportError:
        return False
    return True


def _identify_triton(device: int) -> None:
    with torch.cuda.device(device):  # the current one of the caller's thread
        importlib.import_module(_TRITON).triton_hash_with_backend()
