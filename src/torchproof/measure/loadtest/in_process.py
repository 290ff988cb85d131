"""Serves a function in this process, under the load of a test that calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchproof.measure.loadtest.options import LoadOptions
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.results import result_of
from torchproof.measure.loadtest.serving import serve
from torchproof.measure.loadtest.stalls import observed
from torchproof.measure.loadtest.tail import explained
from torchproof.measure.loadtest.timetable import draw
from torchproof.records import LoadTest
from torchproof.targets import calls

_WARM_ANSWERS = 3  # of every call, before the timetable


def serve_here(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    options: LoadOptions,
    *,
    name: str,
    folder: Path,
) -> LoadTest:
    """Answers every call first, unless the cold phase is wanted; fails as they do."""

    def answer(call: int) -> None:
        calls.invoke(fn, inputs[call], train=False)
        synchronise()

    synchronise = _synchronise()
    if not options.cold:
        for call in [*range(len(inputs))] * _WARM_ANSWERS:
            answer(call)
    timetable = draw(options, [1.0] * len(inputs))
    log = RequestLog(folder / "requests", len(timetable), create=True)
    reply = observed(
        lambda recorder: serve(
            lambda numbers: answer(timetable.call[numbers[0]]),
            timetable,
            log,
            workers=options.workers,
            observer=recorder,
        )
    )
    result = result_of(
        name,
        log.requests(timetable),
        timetable,
        objective=options.objective,
        cold=options.cold,
        workers=options.workers,
        lateness_ms=log.lateness_ms(),
    )
    result = replace(result, errors=reply.errors)
    return LoadTest(
        rate=options.rate,
        arrivals=options.arrivals,
        seed=options.seed,
        planned=len(timetable),
        workers=options.workers,
        duration_s=timetable.length_s,
        objective=options.objective,
        results=(explained(result, reply.stalls or (), reply.missing),),
    )


def _synchronise() -> Callable[[], None]:
    """Waits for the kernels of a call, where there can be any."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.synchronize
    return lambda: None
