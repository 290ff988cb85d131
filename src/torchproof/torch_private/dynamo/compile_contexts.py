"""Contexts that torch.compile created before the hooks, and Inductor's skip count."""

from __future__ import annotations

import contextlib
import gc
import importlib
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def earlier_contexts(enter: Callable[[], Callable[[], Callable[[], None]]]) -> Any:
    """Adds hooks from `enter()` to functions that are compiled already.

    A hook is called when a call begins, and the function it returns when the call ends,
    as in `compiled_contexts`.
    """
    owner = importlib.import_module("torch._dynamo.eval_frame").OptimizeContext
    added = [(each, enter()) for each in _instances(owner)]
    for context, hook in added:
        context.enter_exit_hooks.append(hook)
    try:
        yield
    finally:
        for context, hook in added:
            context.enter_exit_hooks.remove(hook)


def unhook(context: weakref.ref[Any], hook: Any) -> None:
    """Removes a hook that `compiled_contexts` added, if the context still exists."""
    alive = context()
    if alive is not None and hook in alive.enter_exit_hooks:
        alive.enter_exit_hooks.remove(hook)


def _instances(owner: type) -> Iterator[Any]:
    return (each for each in gc.get_referrers(owner) if type(each) is owner)


def result(entry: types.FrameType | None, missing: Any) -> Any:
    """What a compiled function returned, when the hook that ends its call is called.

    `entry` is the frame of torch's wrapper around the function; it needs the feature
    "results of compiled functions".
    """
    return missing if entry is None else entry.f_locals.get("result", missing)


def cudagraph_skips() -> int:
    """How many CUDA graphs Inductor has skipped in this process."""
    counters = importlib.import_module("torch._dynamo.utils").counters
    return int(counters["inductor"]["cudagraph_skips"])
