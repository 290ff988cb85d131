"""Before traffic comes: an example call, tried in a child and timed against eager."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from torchproof.runtime import probe, speed_trial
from torchproof.runtime.compiled_forward import CompiledForward
from torchproof.runtime.status_report import Fallback


def rehearse(
    entry: CompiledForward,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    min_gain: float | None,
) -> None:
    """Keeps the entry eager if its example crashes, or gains less than the minimum."""
    why_not = _tried(entry, args, kwargs)
    if why_not is not None:
        entry.go_eager(Fallback("probe", "the model", why_not))
    elif min_gain is not None:
        _decide(entry, args, kwargs, min_gain)


def _tried(
    entry: CompiledForward, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    # An entry compiles itself wherever it is loaded: what is tried is what will run.
    subject = entry if entry.owner is None else entry.owner
    try:
        return probe.probe(
            subject,
            args,
            kwargs,
            compile_arguments=None,
            seconds=entry.options.deadline_s,
        )
    except probe.NotProbed as unknown:
        entry.telemetry.note(str(unknown))
        return None


def _decide(
    entry: CompiledForward,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    min_gain: float,
) -> None:
    def make(
        module: nn.Module | None,
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        # The engine is the entry's own: what is compiled here need not be again.
        timed = entry.for_timing(module)
        return timed.run_eager, timed

    found = speed_trial.measured(make, args, kwargs, owner=entry.owner)
    entry.worth = dataclasses.asdict(found) | {"summary": str(found)}
    entry.engine.saving_ms = found.eager_ms - found.compiled_ms
    if entry.monitor is not None:
        entry.monitor.eager_ms = found.eager_ms
    if not found.pays(min_gain):
        entry.go_eager(Fallback("gain", "the model", _too_little(found, min_gain)))


def _too_little(found: speed_trial.SpeedTrial, min_gain: float) -> str:
    if found.gain < min_gain:
        return f"{found}: less than the minimum of {min_gain:.0%}"
    return f"{found}: not certain enough to count"
