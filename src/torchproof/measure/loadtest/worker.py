"""The process of one strategy in a load test: it loads the target and serves it.

`session` starts it with `python -m` and a job in JSON. First it prepares: imports,
model, strategy. Then it serves timetables, and writes each request to a `RequestLog`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchproof.measure import profiling
from torchproof.measure.command_loop import run_commands
from torchproof.measure.loadtest import served_strategy
from torchproof.measure.loadtest.load_job import LoadJob, ServedTarget, ServingReply
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.serving import Answer
from torchproof.measure.loadtest.stalls import serve_observed
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import UserError
from torchproof.targets import Loaded, calls
from torchproof.torch_private import describe, trees

_WARM_ANSWERS = 3  # of every call, before a timetable without a cold phase


def main(arguments: list[str]) -> int:
    return run_commands(LoadWorker(LoadJob.from_json(json.loads(arguments[0]))))


class LoadWorker:
    """Loads a target, applies a strategy, and serves timetables."""

    def __init__(self, job: LoadJob) -> None:
        self.job = job
        self.device = ""
        self._most = job.batching.most

    # -- commands ------------------------------------------------------------------

    def answer_all(self) -> None:
        for _ in range(_WARM_ANSWERS):
            self.warm_up()

    def serve(self, timetable: dict[str, Any], log: str) -> ServingReply:
        """Serves a timetable; the requests are in the file of the log."""
        table = Timetable.from_json(timetable)
        requests = RequestLog(Path(log), len(table))
        reply = serve_observed(
            self.answers(table, requests),
            table,
            requests,
            workers=self.job.workers,
            batching=self.job.batching,
            queue_limit=self.job.text.queue_limit if self.job.text else None,
        )
        peak_bytes = profiling.peak_bytes(self.device)
        return dataclasses.replace(reply, peak_bytes=peak_bytes)

    def prepare(self) -> ServedTarget:
        self._run = calls.resolved(self.job.run)
        other_begin = time.perf_counter()
        # Built and discarded before the model, so that there is memory for only one.
        other_calls = self._other_calls()
        plan = self._plan()
        other_s = time.perf_counter() - other_begin
        self._loaded = loaded = self._load()
        environment = describe(self._run)
        self.device = str(environment["device"])
        profiling.initialise_device(self.device)
        applied = served_strategy.apply(self.job.served, loaded.fn, loaded.calls, plan)
        self._fn = applied.fn
        self._calls = self._table(other_calls)
        return ServedTarget(
            calls=tuple(_words(by_batch[1]) for by_batch in self._calls),
            own_calls=len(loaded.calls),
            weights=calls.weights(loaded),
            start_s=profiling.process_age_s() - other_s,
            environment=environment,
            source=applied.source,
            notes=(applied.note,) if applied.note else (),
        )

    def warm_up(self) -> None:
        """Answers every call, alone and in each size of a batch; fails as they do."""
        answer = self._answer()
        for call, by_batch in enumerate(self._calls):
            for count in by_batch:
                answer(call, count)

    # -- what text models do in another way ----------------------------------------

    def answers(self, timetable: Timetable, log: RequestLog) -> Answer:
        """What answers requests until their last kernel has ended."""
        answer = self._answer()
        return lambda numbers: answer(timetable.call[numbers[0]], len(numbers))

    def _answer(self) -> Callable[[int, int], None]:
        """Makes a call in a size of a batch; waits for its last kernel.

        Servers run models without gradients, and packs are built for that.
        """
        import torch

        loaded, fn, table = self._loaded, self._fn, self._calls
        trains = calls.claims(loaded.fn, "trains_itself")
        indices = [*range(len(loaded.calls)), *(kind.index for kind in self.job.sized)]
        synchronise = profiling.Clock(self.device).synchronise

        def answer(call: int, count: int) -> None:
            calls.before(loaded, indices[call])
            with torch.set_grad_enabled(trains):
                calls.invoke(fn, table[call][count], train=False)
            synchronise()

        return answer

    def _load(self) -> Loaded:
        run = self._run
        if self._most > 1:  # a request is one sample
            run = dataclasses.replace(run, shape={"batch": 1})
        loaded = calls.fresh(run)
        if calls.compiles_itself(loaded.fn, run) and not run.as_written:
            raise UserError(
                f"{run.target.text} calls torch.compile itself: add --as-written"
            )
        return loaded

    def _other_calls(self) -> list[list[Any]]:
        """The calls that the factory makes for a file's sizes, and for batches."""
        shapes: list[Mapping[str, int]] = [kind.sizes for kind in self.job.sized]
        shapes += [{"batch": count} for count in range(2, self._most + 1)]
        runs = (dataclasses.replace(self._run, shape=shape) for shape in shapes)
        return [calls.fresh(run).calls for run in runs]

    def _table(self, other: Sequence[list[Any]]) -> list[dict[int, Any]]:
        """By the number of a call and the size of a batch: its arguments."""
        own, sized = self._loaded.calls, self.job.sized
        for count, made in enumerate(other[len(sized) :], start=2):
            if len(made) != len(own):
                raise UserError(
                    f"--max-batch: with batch {count} the factory returns {len(made)}"
                    f" calls, with batch 1 it returns {len(own)}: they must be the same"
                    " calls in other sizes"
                )
        batches = dict(enumerate([own, *other[len(sized) :]], start=1))
        table = [
            {count: made[index] for count, made in batches.items()}
            for index in range(len(own))
        ]
        for kind, made in zip(sized, other, strict=False):
            if kind.index >= len(made):
                raise UserError(
                    f"--arrivals: call {kind.index} with {dict(kind.sizes)}, but the"
                    f" factory returns {len(made)} calls with these sizes"
                )
            table.append({1: made[kind.index]})
        return table

    def _plan(self) -> Any:
        """Plans what the strategy compiles, on a target that is discarded."""
        strategy = self.job.served.strategy
        if strategy is None or not strategy.observes:
            return None
        loaded = self._load()
        return strategy.plan(
            loaded.fn, loaded.calls, lambda index: calls.before(loaded, index)
        )


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
