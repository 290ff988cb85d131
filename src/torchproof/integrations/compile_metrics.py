"""The figures of compiled models, by name, for the log of a trainer."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchproof import runtime

if TYPE_CHECKING:
    from torchproof.runtime import Status


def status_of(model: Any) -> Status | None:
    """`torchproof.status`; None if torchproof is switched off."""
    try:
        return runtime.status(model)
    except Exception:
        if os.environ.get("TORCHPROOF_DISABLE") == "1":
            return None
        raise


def compile_metrics(models: Iterable[Any]) -> dict[str, float]:
    """Counts and seconds since the models were compiled, added up.

    `torchproof/graph_breaks` is missing if it is unknown for one of them, and
    `torchproof/compiled_share` before the first call; all are if torchproof is switched
    off.
    """
    found = [status for model in models if (status := status_of(model)) is not None]
    if not found:
        return {}
    metrics: dict[str, float] = {
        "torchproof/recompiles": sum(each.recompiles for each in found),
        "torchproof/fallbacks": sum(len(each.fallbacks) for each in found),
        "torchproof/compile_seconds": sum(each.compile_s for each in found),
    }
    breaks = [each.graph_breaks for each in found]
    if None not in breaks:
        metrics["torchproof/graph_breaks"] = sum(filter(None, breaks))
    if calls := sum(each.calls for each in found):
        compiled = sum(each.compiled_calls for each in found)
        metrics["torchproof/compiled_share"] = compiled / calls
    return metrics
