"""The figures of compiled models, by name, for the log of a trainer."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from torchproof import runtime

if TYPE_CHECKING:
    from torchproof.runtime import Status


def status_of(model: Any) -> Status | None:
    """The status of a compiled model; None if it works without being compiled.

    That is so if torchproof is switched off, or something has replaced the compiled
    forward of a module: no reason to end the program that is watched. Raises for what
    is no compiled model, as a package or a step of `torchproof.graph`.
    """
    works_plain = isinstance(model, nn.Module) or is_switched_off()
    if works_plain and runtime.uncompiled_reason(model) is not None:
        return None
    runtime.compiled_forward_of(model)  # `status` takes packages and steps too
    return runtime.status(model)


def is_switched_off() -> bool:
    return os.environ.get("TORCHPROOF_DISABLE") == "1"


def compile_metrics(models: Iterable[Any]) -> dict[str, float]:
    """Counts and seconds since the models were compiled, added up.

    `torchproof/graph_breaks` is missing if it is unknown for one of them, as before it
    is compiled, and `torchproof/compiled_share` before the first call. Models that are
    not compiled, or no longer, are left out; if all are, there are no figures.
    """
    found = [status for model in models if (status := status_of(model)) is not None]
    if not found:
        return {}
    fallbacks = [sum(each.totals.fallbacks.values()) for each in found]
    metrics: dict[str, float] = {
        "torchproof/recompiles": sum(each.recompiles for each in found),
        "torchproof/fallbacks": sum(fallbacks),
        "torchproof/compile_seconds": sum(each.compile_s for each in found),
    }
    breaks = [each.graph_breaks if each.totals.compilations else None for each in found]
    if None not in breaks:
        metrics["torchproof/graph_breaks"] = sum(filter(None, breaks))
    if calls := sum(each.calls for each in found):
        compiled = sum(each.compiled_calls for each in found)
        metrics["torchproof/compiled_share"] = compiled / calls
    return metrics
