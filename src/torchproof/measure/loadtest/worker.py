"""The process of one strategy in a load test: it loads the target and serves it.

`session` starts it with `python -m` and a job in JSON. First it prepares: imports,
model, strategy. Then it serves timetables, and writes each request to a `RequestLog`.
What it serves are the calls of the target, or a text model (`text_generator.py`).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torchproof import strategies
from torchproof.measure import profiling
from torchproof.measure.command_loop import run_commands
from torchproof.measure.loadtest import served_strategy
from torchproof.measure.loadtest.load_job import LoadJob, ServedTarget, ServingReply
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.results import result_of
from torchproof.measure.loadtest.serving import Answer, Batching
from torchproof.measure.loadtest.stalls import serve_observed
from torchproof.measure.loadtest.timetable import draw
from torchproof.records import LoadTest, UserError
from torchproof.records.load_options import LoadOptions
from torchproof.targets import Job, Loaded, calls
from torchproof.torch_private import describe, trees

_WARM_ANSWERS = 3  # of every call, before a timetable without a cold phase


class Served(Protocol):
    """What answers requests: calls of a target, or a text model."""

    def warm_up(self) -> None:
        """Answers every kind of call; fails as they do."""

    def answers(self, log: RequestLog) -> Answer:
        """What answers requests until their last kernel has ended."""


class Calls:
    """Answers requests with calls of a function.

    `table` has the arguments, by the number of a call and the size of a batch. `answer`
    runs a call of this number with its arguments.
    """

    def __init__(
        self, table: Sequence[Mapping[int, Any]], answer: Callable[[int, Any], None]
    ) -> None:
        self._table, self._answer = table, answer

    def warm_up(self) -> None:
        for call, by_batch in enumerate(self._table):
            for arguments in by_batch.values():
                self._answer(call, arguments)

    def answers(self, log: RequestLog) -> Answer:
        def answer(numbers: Sequence[int]) -> None:
            call = log.timetable.call[numbers[0]]
            self._answer(call, self._table[call][len(numbers)])

        return answer


def main(arguments: list[str]) -> int:
    return run_commands(LoadWorker(LoadJob.from_json(json.loads(arguments[0]))))


class LoadWorker:
    """The commands of the process."""

    def __init__(self, job: LoadJob) -> None:
        self.job = job
        self._served: Served

    def prepare(self) -> ServedTarget:
        run = calls.resolved(self.job.run)
        if self.job.options.text is not None:
            from torchproof.measure.loadtest import text_generator

            self._served, target = text_generator.prepared(self.job, run)
        else:
            self._served, target = _prepared(self.job, run)
        self._device = str(target.environment["device"])
        return target

    def answer_all(self) -> None:
        for _ in range(_WARM_ANSWERS):
            self._served.warm_up()

    def serve(self, path: str) -> ServingReply:
        """Serves the timetable of a log, and writes the requests there."""
        log, options = RequestLog(Path(path)), self.job.options
        reply = serve_observed(
            self._served.answers(log),
            log,
            workers=options.workers,
            batching=Batching(options.batch_window_s or 0.0, options.max_batch or 1),
            queue_limit=options.text.queue_limit if options.text else None,
        )
        peak_bytes = profiling.peak_bytes(self._device)
        return dataclasses.replace(reply, peak_bytes=peak_bytes)


def serve_here(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    options: LoadOptions,
    *,
    name: str,
    folder: Path,
) -> LoadTest:
    """A load test of a function in this process; without `cold`, answers all first."""
    import torch

    def answer(call: int, arguments: Any) -> None:
        calls.invoke(fn, arguments, train=False)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    served = Calls([{1: each} for each in inputs], answer)
    if not options.cold:
        for _ in range(_WARM_ANSWERS):
            served.warm_up()
    timetable = draw(options, [1.0] * len(inputs))
    log = RequestLog(folder / "requests", timetable)
    reply = serve_observed(served.answers(log), log, workers=options.workers)
    requests, late_ms = log.requests(), log.lateness_ms()
    planned, length_s = len(timetable), timetable.length_s
    result = result_of(
        name, requests, length_s, options, lateness_ms=late_ms, reply=reply
    )
    return options.asked(planned=planned, duration_s=length_s, results=(result,))


# -- the calls of a target -------------------------------------------------------------


def _prepared(job: LoadJob, run: Job) -> tuple[Calls, ServedTarget]:
    """Loads a target and applies the strategy of the job."""
    other_begin = time.perf_counter()
    # Built and discarded before the model, so that there is memory for only one.
    other = _other_calls(job, run)
    plan = _plan(job, run)
    other_s = time.perf_counter() - other_begin
    loaded = _load(job, run)
    environment = describe(run)
    device = str(environment["device"])
    profiling.initialise_device(device)
    applied = served_strategy.apply(job.served, loaded.fn, loaded.calls, plan)
    table = _table(job, loaded.calls, other)
    answer = _answer(job, loaded, applied.fn, profiling.Clock(device).synchronise)
    target = ServedTarget(
        calls=tuple(_words(by_batch[1]) for by_batch in table),
        weights=calls.weights(loaded),
        start_s=profiling.process_age_s() - other_s,
        environment=environment,
        source=applied.source,
        notes=(applied.note,) if applied.note else (),
    )
    return Calls(table, answer), target


def _answer(
    job: LoadJob, loaded: Loaded, fn: Any, synchronise: Callable[[], None]
) -> Callable[[int, Any], None]:
    """Servers run models without gradients, and packs are built for that."""
    import torch

    trains = calls.claims(loaded.fn, "trains_itself")
    indices = [*range(len(loaded.calls)), *(kind.index for kind in job.sized)]

    def answer(call: int, arguments: Any) -> None:
        calls.before(loaded, indices[call])
        with torch.set_grad_enabled(trains):
            calls.invoke(fn, arguments, train=False)
        synchronise()

    return answer


def _load(job: LoadJob, run: Job) -> Loaded:
    if job.options.max_batch:  # a request is one sample
        run = dataclasses.replace(run, shape={"batch": 1})
    loaded = calls.fresh(run)
    if calls.compiles_itself(loaded.fn, run) and not run.as_written:
        raise UserError(
            f"{run.target.text} calls torch.compile itself: add --as-written"
        )
    return loaded


def _plan(job: LoadJob, run: Job) -> Any:
    """Plans what the strategy compiles, on a target that is discarded."""
    strategy = job.served.strategy
    if strategy is None or not strategy.observes:
        return None
    loaded = _load(job, run)
    return strategies.planning.plan(
        strategy,
        loaded.fn,
        loaded.calls,
        before=lambda index: calls.before(loaded, index),
    )


def _other_calls(job: LoadJob, run: Job) -> list[list[Any]]:
    """The calls that the factory makes for a file's sizes, and for batches."""
    shapes: list[Mapping[str, int]] = [kind.sizes for kind in job.sized]
    shapes += [{"batch": count} for count in range(2, (job.options.max_batch or 1) + 1)]
    runs = (dataclasses.replace(run, shape=shape) for shape in shapes)
    return [calls.fresh(each).calls for each in runs]


def _table(
    job: LoadJob, own: Sequence[Any], other: Sequence[Sequence[Any]]
) -> list[dict[int, Any]]:
    """By the number of a call and the size of a batch: its arguments."""
    count = len(job.sized)
    batches = dict(enumerate([own, *other[count:]], start=1))
    for size, made in batches.items():
        if len(made) != len(own):
            raise UserError(
                f"--max-batch: with batch {size} the factory returns {len(made)} calls,"
                f" with batch 1 it returns {len(own)}: they must be the same calls in"
                " other sizes"
            )
    table = [
        {size: made[index] for size, made in batches.items()}
        for index in range(len(own))
    ]
    for kind, made in zip(job.sized, other, strict=False):
        if kind.index >= len(made):
            raise UserError(
                f"--arrivals: call {kind.index} with {dict(kind.sizes)}, but the"
                f" factory returns {len(made)} calls with these sizes"
            )
        table.append({1: made[kind.index]})
    return table


def _words(call: Any) -> str:
    """A call by the sizes of its tensors: `x: 8x128, mask: 8x128`."""
    arguments = call if isinstance(call, dict) else dict(enumerate(call))
    words = []
    for name, value in arguments.items():
        sizes = ["x".join(map(str, tensor.shape)) for tensor in trees.tensors(value)]
        text = " and ".join(size or "scalar" for size in sizes[:3]) or _short(value)
        words.append(text if isinstance(name, int) else f"{name}: {text}")
    return ", ".join(words) or "no arguments"


def _short(value: Any) -> str:
    plain: Sequence[type] = (bool, int, float, str, type(None))
    return repr(value)[:20] if isinstance(value, tuple(plain)) else type(value).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
