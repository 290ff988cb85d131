"""Serves a function in this process, under the load of a test that calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchproof.measure.loadtest.options import LoadOptions
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.session import measured
from torchproof.measure.loadtest.stalls import serve_observed
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
    reply = serve_observed(
        lambda numbers: answer(timetable.call[numbers[0]]),
        timetable,
        log,
        workers=options.workers,
    )
    result = measured(name, log, timetable, options, cold=options.cold, reply=reply)
    planned, length_s = len(timetable), timetable.length_s
    return options.asked(planned=planned, duration_s=length_s, results=(result,))


def _synchronise() -> Callable[[], None]:
    """Waits for the kernels of a call, where there can be any."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.synchronize
    return lambda: None
