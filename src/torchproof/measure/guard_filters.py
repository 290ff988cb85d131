"""Ways to check fewer guards, applied in the process of an arm and accounted for."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from torchproof.strategies import Strategy, with_arguments

STANCE = "skip_guard_eval_unsafe"
# Each way, and what is no longer noticed.
METHODS = {
    STANCE: "everything but what tells the versions compiled so far apart",
    "skip_guard_on_inbuilt_nn_modules_unsafe": "changes to torch.nn modules",
    "skip_guard_on_all_nn_modules_unsafe": "changes to any module",
}


def filtered(strategy: Strategy, method: str) -> Strategy:
    """The strategy with one of torch's guard filters; the stance needs no change."""
    if method == STANCE:
        return strategy
    written = f"torch.compiler.{method}"
    return with_arguments(strategy, options={"guard_filter_fn": written})


@contextlib.contextmanager
def dropped(method: str) -> Iterator[Counter[str]]:
    """Counts by their type the guards that a filter leaves out."""
    import torch

    types: Counter[str] = Counter()
    original = getattr(torch.compiler, method)

    def counted(entries: Sequence[Any]) -> list[bool]:
        kept = list(original(entries))
        for entry, stays in zip(entries, kept, strict=True):
            if not stays:
                types[entry.guard_type] += 1
        return kept

    setattr(torch.compiler, method, counted)
    try:
        yield types
    finally:
        setattr(torch.compiler, method, original)
