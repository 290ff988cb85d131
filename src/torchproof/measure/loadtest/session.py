"""Runs a load test: each strategy alone, in a fresh process, on the same timetable.

Takes a `LoadPlan`, returns a `LoadTestResult`. This process never imports torch. It
reads the log of requests that the strategy's process writes, so an interrupt, a timeout
or a crash keeps what was answered before.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchproof.measure.loadtest import rate_search, served_strategy
from torchproof.measure.loadtest.load_job import LoadJob, ServedTarget, ServingReply
from torchproof.measure.loadtest.percentiles import fewest_missed
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.results import (
    first_unknown,
    result_of,
    with_capacity,
)
from torchproof.measure.loadtest.served_strategy import AS_WRITTEN, ServedStrategy
from torchproof.measure.loadtest.text import with_lengths
from torchproof.measure.loadtest.timetable import (
    Timetable,
    Trace,
    draw,
    from_trace,
    read_trace,
)
from torchproof.measure.replies import Done
from torchproof.measure.worker_process import (
    Worker,
    WorkerError,
    WorkerTimeout,
    nothing,
)
from torchproof.process import Tick
from torchproof.records import Keywords, LoadResult, LoadTest, UserError, shapes
from torchproof.records.load_options import LoadOptions
from torchproof.strategies import NotApplicable
from torchproof.targets import Job, Target, keywords

Progress = Callable[[str], None]
_WORKER = "torchproof.measure.loadtest.worker"
_STOP_S = 3.0  # for the process to end its request and reply, after an interrupt
_PROGRESS_S = 1.0


@dataclass(frozen=True)
class LoadPlan:
    """What to serve, with which strategies, and under which load."""

    target: Target
    options: LoadOptions
    strategies: tuple[ServedStrategy, ...]
    trace: Trace | None = None  # of the file that `options.arrivals` names
    device: str | None = None
    size: str | None = None
    as_written: bool = False
    timeout_s: float | None = None
    quiet: bool = False

    @classmethod
    def of(
        cls,
        target: Target,
        options: LoadOptions,
        *,
        compile_arguments: Keywords | None = None,
        as_written: bool = False,
        **settings: Any,
    ) -> LoadPlan:
        """Checks everything that can be checked before a process starts."""
        if as_written and options.strategies:
            raise UserError(
                "--as-written serves the target as it is: leave out --strategies"
            )
        names = options.strategies or served_strategy.DEFAULTS
        arguments = dict(compile_arguments or {})
        strategies = [ServedStrategy(AS_WRITTEN)] if as_written else []
        if not as_written:
            served_strategy.assert_distinct(names)
            strategies = [served_strategy.named(name, arguments) for name in names]
        trace = read_trace(options.arrivals) if options.from_file else None
        if trace is not None and options.text is not None:
            trace.assert_only_times()
        _assert_batches(target, options, trace)
        return cls(
            target, options, tuple(strategies), trace, as_written=as_written, **settings
        )

    def job(self, served: ServedStrategy) -> LoadJob:
        options = self.options
        run = Job(
            self.target,
            device=self.device,
            size=self.size,
            as_written=self.as_written,
            text_models=options.text is not None,
        )
        return LoadJob(run, served, options, self.trace.sized if self.trace else ())

    def timetable(self, prepared: ServedTarget, **other: Any) -> Timetable:
        """The timetable of the options, or of another rate and number of requests."""
        if self.trace is None:
            table = draw(self.options, prepared.weights or (1.0,), **other)
        else:
            own_calls = len(prepared.calls) - len(self.trace.sized)
            table = from_trace(self.trace, self.options, own_calls)
        text = self.options.text
        return table if text is None else with_lengths(table, text, self.options.seed)


@dataclass(frozen=True)
class LoadTestResult:
    """The record of the test, where it ran, and how it ended."""

    test: LoadTest
    environment: shapes.Environment = field(default_factory=shapes.Environment)
    ending: str = "finished"
    error: str | None = None  # one line, if no strategy answered a request


def _assert_batches(target: Target, options: LoadOptions, trace: Trace | None) -> None:
    """Raises `UserError` if the factory cannot make what the test asks for."""
    needed = {name for kind in (trace.sized if trace else ()) for name in kind.sizes}
    if options.max_batch is not None:
        if needed:
            raise UserError(
                f"--batch-window: {options.arrivals} sets sizes of its own: leave out"
                " one of the two"
            )
        needed = {"batch"}
    if missing := sorted(needed - keywords(target)):
        flag = "--batch-window" if options.max_batch else f"{options.arrivals}"
        raise UserError(
            f"{flag}: the factory {target.factory} of {target.text} does not take the"
            f" keyword {missing[0]!r}, with which requests of other sizes are made"
        )


def run_load_test(plan: LoadPlan, progress: Progress) -> LoadTestResult:
    """Runs all strategies; an interrupt keeps what was measured."""
    return _Session(plan, progress).run()


class _Session:
    """What the strategies of one test share."""

    def __init__(self, plan: LoadPlan, progress: Progress) -> None:
        self.plan = plan
        self._progress = progress
        self._timetable: Timetable | None = None
        self._prepared: ServedTarget | None = None
        self._ending = "finished"
        self.results: list[LoadResult] = []

    def run(self) -> LoadTestResult:
        for served in self.plan.strategies:
            with tempfile.TemporaryDirectory(prefix="torchproof-") as folder:
                run = _StrategyRun(self, served, Path(folder))
                try:
                    run.run()
                except KeyboardInterrupt:
                    self._ending = "interrupted"
                finally:
                    run.process.close()
                self.results.append(run.result)
            if self._ending != "finished":
                break
        known: dict[str, Any] = {"results": tuple(self.results)}
        prepared, table = self._prepared, self._timetable
        if prepared is not None and table is not None:
            known |= {"planned": len(table), "duration_s": table.length_s}
            known |= {"calls": prepared.calls}
            known |= {"weights": () if self.plan.trace else prepared.weights}
        return LoadTestResult(
            self.plan.options.asked(**known),
            prepared.environment if prepared else {},
            self._ending,
            self._failure(),
        )

    def progress(self, served: ServedStrategy, text: str) -> None:
        self._progress(f"{served.name}: {text}")

    def timetable(self, prepared: ServedTarget) -> Timetable:
        """The one timetable; it is drawn when the first process knows the calls."""
        if self._timetable is None or self._prepared is None:
            self._timetable = self.plan.timetable(prepared)
            self._prepared = prepared
        elif self._prepared.calls != prepared.calls:
            raise WorkerError(
                "the factory returned other calls than in the process of the first"
                " strategy"
            )
        return self._timetable

    def _failure(self) -> str | None:
        """Why no strategy answered anything; None if one did."""
        if self._ending != "finished" or any(r.answered for r in self.results):
            return None
        for result in self.results:
            if result.error:
                return f"{result.strategy}: {result.error}"
            if result.errors:
                text = max(result.errors, key=lambda key: result.errors[key])
                return f"all {result.failed} requests failed: {text}"
        if not all(result.ending == "skipped" for result in self.results):
            return None
        reasons = [f"{r.strategy}: {'; '.join(r.notes)}" for r in self.results]
        return f"no strategy applies to this target: {', '.join(reasons)}"


class _StrategyRun:
    """One strategy: its process, and its result so far."""

    def __init__(self, session: _Session, served: ServedStrategy, folder: Path) -> None:
        self._session = session
        self._plan = session.plan
        self._served = served
        self._folder = folder
        self._logs = itertools.count(1)
        self._reply: ServingReply | None = None
        self._progress: Progress = functools.partial(session.progress, served)
        self.result = LoadResult(served.name, ending="interrupted")
        self.process = Worker(
            self._plan.job(served),
            _environment(folder),
            quiet=self._plan.quiet,
            module=_WORKER,
        )

    def run(self) -> None:
        try:
            prepared = self._prepare()
            timetable = self._session.timetable(prepared)
            self._serve_main(prepared, timetable)
            if self._plan.options.find_rate and self.result.answered:
                self._find_rate(prepared)
        except NotApplicable as error:
            self.result = replace(
                self.result, ending="skipped", notes=(str(error),), error=None
            )
        except UserError as error:
            # Before anything was answered, it is most likely the target's own.
            if not self._session.results and self._served.strategy is not None:
                raise
            self.result = replace(self.result, ending="crashed", error=str(error))
        except WorkerError as error:
            ending = "timeout" if isinstance(error, WorkerTimeout) else "crashed"
            self.result = replace(self.result, ending=ending, error=str(error))

    def _prepare(self) -> ServedTarget:
        self._progress("imports, model and strategy")
        prepared = self.process.ask(ServedTarget, "prepare", self._plan.timeout_s)
        if not self._plan.options.cold:
            self._progress("answering every call once")
            self.process.ask(Done, "answer_all", self._plan.timeout_s)
        return prepared

    def _serve_main(self, prepared: ServedTarget, timetable: Timetable) -> None:
        log, ending = self._new_log(timetable), "interrupted"
        try:
            self._serve(log)
            ending = "finished"
        except WorkerTimeout:
            log.stop()
            raise
        except KeyboardInterrupt:
            log.stop()
            # Lets the process end its requests and say what it knows, for a moment.
            with contextlib.suppress(WorkerError, UserError, KeyboardInterrupt):
                self._reply = self.process.reply(ServingReply, _STOP_S)
            self._forget_unknown(log)
            raise
        finally:
            result = self._result(log, self._plan.options, self._reply)
            self.result = replace(
                result,
                cold=result.cold and replace(result.cold, start_s=prepared.start_s),
                source=prepared.source,
                notes=prepared.notes,
                ending=ending,
            )

    def _result(
        self, log: RequestLog, options: LoadOptions, reply: ServingReply | None = None
    ) -> LoadResult:
        log.forget_later()
        return result_of(
            self._served.name,
            log.requests(),
            log.timetable.length_s,
            options,
            lateness_ms=log.lateness_ms(),
            reply=reply,
        )

    def _new_log(self, timetable: Timetable) -> RequestLog:
        return RequestLog(self._folder / f"requests-{next(self._logs)}", timetable)

    def _serve(self, log: RequestLog, watch: Tick = nothing) -> None:
        """Waits until the process has served the timetable, and shows how far it is.

        `watch` is called meanwhile, and may stop the test.
        """
        self.process.tell("serve", path=str(log.path))
        limit_s = self._plan.timeout_s
        if limit_s is not None:
            limit_s += log.timetable.length_s
        shown = time.monotonic()

        def show() -> None:
            nonlocal shown
            watch()
            if time.monotonic() - shown >= _PROGRESS_S:
                shown = time.monotonic()
                self._progress(_position(log))

        self._reply = self.process.reply(ServingReply, limit_s, show)

    def _forget_unknown(self, log: RequestLog) -> None:
        """Forgets the requests that waited as usual when the user stopped the test."""
        log.forget_later()
        objective, stopped_s = self._plan.options.objective, log.stopped_s or 0.0
        number = first_unknown(log.requests(), stopped_s, objective)
        log.timetable = log.timetable.before(number)

    def _find_rate(self, prepared: ServedTarget) -> None:
        """Searches the highest rate, in the process that is warm by now."""
        options = replace(self._plan.options, cold=False)
        objective, first = options.objective, options.rate
        assert objective is not None and first is not None
        limit_s = objective.limit_ms / 1e3

        def measure(rate: float, requests: int) -> LoadResult:
            self._progress(f"searching, {rate:.4g} requests per second")
            table = self._plan.timetable(prepared, rate=rate, requests=requests)
            log = self._new_log(table)
            fewest = fewest_missed(requests, objective.percent)

            def stop_when_missed() -> None:
                """Ends a trial that no later request can let meet the objective."""
                if log.slower_than(limit_s) >= fewest:
                    log.stop()

            is_known = objective.metric == "latency"
            self._serve(log, stop_when_missed if is_known else nothing)
            return self._result(log, options)

        search = rate_search.RateSearch(objective, measure, workers=options.workers)
        try:
            search.run(first)
        finally:
            searched = replace(
                self.result, trials=search.trials, highest_rate=search.highest
            )
            if search.is_hopeless and search.highest is None:
                note = "no rate meets the objective: its calls alone take longer"
                searched = replace(searched, notes=(*searched.notes, note))
            self.result = with_capacity(searched)


def _position(log: RequestLog) -> str:
    elapsed_s, timetable = log.elapsed_s or 0.0, log.timetable
    if not log.finished:
        return f"no answer yet after {elapsed_s:.0f} s"
    text = f"{log.finished} of {len(timetable)} requests"
    if elapsed_s <= timetable.length_s:
        return f"{text}, {timetable.length_s - elapsed_s:.0f} s left"
    return f"{text}, all have arrived"


def _environment(folder: Path) -> dict[str, str]:
    """Empty caches, so that every strategy starts cold."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
