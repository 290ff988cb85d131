"""Tries an example call before traffic: in a child process, and timed against eager."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from torchproof.runtime import probe, speed_trial
from torchproof.runtime.compiled_forward import CompiledForward
from torchproof.runtime.status_report import Fallback


def run(
    forward: CompiledForward,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    min_gain: float | None,
) -> None:
    """Keeps the model eager if the example crashes, or gains less than the minimum."""
    why_not = _probe(forward, args, kwargs)
    if why_not is not None:
        forward.go_eager(Fallback("probe", "the model", why_not))
    elif min_gain is not None:
        _decide(forward, args, kwargs, min_gain)


def _probe(
    forward: CompiledForward, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    # A compiled forward compiles itself in the child too, as it will here.
    subject = forward if forward.owner is None else forward.owner
    try:
        return probe.probe(
            subject,
            args,
            kwargs,
            compile_arguments=None,
            seconds=forward.options.deadline_s,
        )
    except probe.NotProbed as error:
        forward.telemetry.note(str(error))
        return None


def _decide(
    forward: CompiledForward,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    min_gain: float,
) -> None:
    def make(
        module: nn.Module | None,
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        # It shares the engine, so that traffic uses the code compiled here.
        timed = forward.for_timing(module)
        return timed.run_eager, timed

    trial = speed_trial.measured(make, args, kwargs, owner=forward.owner)
    forward.worth = dataclasses.asdict(trial) | {"summary": str(trial)}
    forward.engine.saving_ms = trial.eager_ms - trial.compiled_ms
    if forward.monitor is not None:
        forward.monitor.eager_ms = trial.eager_ms
    if not trial.pays(min_gain):
        forward.go_eager(Fallback("gain", "the model", _too_little(trial, min_gain)))


def _too_little(trial: speed_trial.SpeedTrial, min_gain: float) -> str:
    if trial.gain < min_gain:
        return f"{trial}: less than the minimum of {min_gain:.0%}"
    return f"{trial}: not certain enough to count"
