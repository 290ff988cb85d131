"""Applies methods that check fewer guards, and counts the guards they drop."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from torchproof.strategies import Strategy, with_arguments

STANCE = "skip_guard_eval_unsafe"
# Each method, and what the compiled code no longer checks.
METHODS = {
    STANCE: "all guards, except those that choose between the compiled versions",
    "skip_guard_on_inbuilt_nn_modules_unsafe": "changes to torch.nn modules",
    "skip_guard_on_all_nn_modules_unsafe": "changes to any module",
}


def with_filter(strategy: Strategy, method: str) -> Strategy:
    """Adds one of torch's guard filters to a strategy."""
    name = f"torch.compiler.{method}"
    return with_arguments(strategy, options={"guard_filter_fn": name})


@contextlib.contextmanager
def counting_dropped(method: str) -> Iterator[Counter[str]]:
    """Counts the guards that a filter drops, by type."""
    import torch

    from torchproof.torch_private import patched

    types: Counter[str] = Counter()
    original = getattr(torch.compiler, method)

    def counting_filter(entries: Sequence[Any]) -> list[bool]:
        decisions = list(original(entries))
        for entry, stays in zip(entries, decisions, strict=True):
            if not stays:
                types[entry.guard_type] += 1
        return decisions

    with patched(torch.compiler, method, counting_filter):
        yield types
