"""What was compiled before anyone watched, and what Inductor counted."""

from __future__ import annotations

import contextlib
import gc
import importlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

PROBES: dict[str, tuple[str, ...]] = {
    "what was compiled before": ("torch._dynamo.eval_frame:OptimizeContext",),
    "graphs that were not captured": ("torch._dynamo.utils:counters",),
}


@contextlib.contextmanager
def earlier_contexts(enter: Callable[[], Callable[[], Callable[[], None]]]) -> Any:
    """What `enter()` gives is called when a call begins of what is compiled already.

    And what that returns when the call ends, as in `compiled_contexts`.
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
    """Takes from a context what `compiled_contexts` added to it, if both still are."""
    alive = context()
    if alive is not None and hook in alive.enter_exit_hooks:
        alive.enter_exit_hooks.remove(hook)


def _instances(owner: type) -> Iterator[Any]:
    return (each for each in gc.get_referrers(owner) if type(each) is owner)


def cudagraph_skips() -> int:
    """How often, in this process, Inductor did not capture a graph it was to."""
    counters = importlib.import_module("torch._dynamo.utils").counters
    return int(counters["inductor"]["cudagraph_skips"])
