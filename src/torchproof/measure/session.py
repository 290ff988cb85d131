"""Measures the strategies of a plan side by side, and targets that are scripts.

Takes a plan, returns a `MeasureResult`. A reference worker first computes eager's
outputs. Then each strategy runs in a process of its own: first call, warm-up, and
rounds of timing that alternate between the strategies.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from torchproof.measure import rows, script_bench
from torchproof.measure.device_peaks import stated_peaks
from torchproof.measure.replies import (
    Done,
    Facts,
    Reference,
    SampledRound,
)
from torchproof.measure.specs import (
    AS_WRITTEN,
    EAGER,
    MeasureResult,
    Plan,
    Progress,
    StrategyJob,
    StrategySpec,
)
from torchproof.measure.strategy_state import StrategyState
from torchproof.measure.worker_process import (
    Worker,
    WorkerError,
    Workers,
    WorkerTimeout,
    free_vram,
)
from torchproof.observe import read_folder
from torchproof.records import Event, UserError, shapes, stats
from torchproof.records.mappings import Keywords, TorchConfig
from torchproof.strategies import NotApplicable

_SEPARATE_REPEATS = 3  # if the strategies do not fit in memory together
_ROOM = 1.3  # free memory to start another worker, relative to the largest so far
# Artifacts of a torch trace, and the file name of each.
_ARTIFACTS = {
    "dynamo_output_graph": "graph",
    "aot_joint_graph": "joint-graph",
    "aot_forward_graph": "forward-graph",
    "aot_backward_graph": "backward-graph",
    "inductor_output_code": "generated",
}


def switches() -> TorchConfig:
    """Returns Inductor's options and their defaults, read in a child process."""
    process = Worker(StrategyJob(EAGER), {}, quiet=True)
    try:
        return process.ask(Facts, "switches", None).switches
    except WorkerError as error:
        raise UserError(f"cannot read the options of Inductor: {error}") from None
    finally:
        process.close()


def measure(plan: Plan, keep: Path, progress: Progress) -> MeasureResult:
    """Measures all strategies of a plan; returns partial results when interrupted.

    Traces, if the plan asks for them, are written to the folder `keep`.
    """
    if plan.target.kind == "script":
        return script_bench.measure(plan, progress)
    return Session(plan, keep, progress).run()


class Session:
    """Measures the strategies of a plan side by side."""

    def __init__(self, plan: Plan, keep: Path, progress: Progress) -> None:
        stated_peaks()  # a mistake there is reported before anything runs
        self.plan = plan
        self.keep = keep
        self.progress = progress
        self.references: dict[tuple[str | None, int], Reference] = {}
        self.repeats = plan.repeats
        self.apart = False  # the strategies did not all fit in memory at once
        self.largest = {"host": 0, "cuda": 0}
        self.reference_workers: dict[str | None, Worker] = {}
        self.events: list[Event] = []
        self.states: list[StrategyState] = []
        self._deadline: float | None = None
        self._processes = Workers(quiet=plan.quiet)

    def set_deadline(self, seconds: float | None) -> None:
        """Limits how long to wait for replies of workers, in total."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    @contextlib.contextmanager
    def without_deadline(self) -> Iterator[None]:
        """Lifts the deadline, for the reference worker and for eager."""
        deadline, self._deadline = self._deadline, None
        try:
            yield
        finally:
            self._deadline = deadline

    @property
    def limit_s(self) -> float | None:
        """How long a worker may take to reply."""
        limit = self.plan.timeout_s
        if self._deadline is None:
            return limit
        remaining = max(0.0, self._deadline - time.monotonic())
        return remaining if limit is None else min(limit, remaining)

    @property
    def warm_up_limit(self) -> dict[str, float]:
        """The limit on warm-up: at most a third of the time that is left."""
        limit = self.limit_s
        return {} if limit is None else {"within_s": min(stats.WARM_UP_S, limit / 3)}

    def close(self) -> None:
        self._processes.close()

    def run(self) -> MeasureResult:
        ending = "finished"
        with tempfile.TemporaryDirectory(prefix="torchproof-") as scratch:
            self.scratch = Path(scratch)
            self.states = [
                StrategyState(spec, self.scratch / f"strategy-{number}")
                for number, spec in enumerate(self.plan.specs)
            ]
            try:
                self._start_ahead(0)
                self.compute_references()
                self._choose_strategies()
                self._await_ahead()
                repeat = 0
                while repeat < self.repeats and self._running():
                    if repeat > 1 or not self.plan.first_calls:
                        self._start_ahead(repeat, first_pass=True)
                    elif repeat == 1 and not self.apart:
                        self._start_ahead(repeat)
                    self._await_ahead()
                    self._measure_repeat(repeat)
                    repeat += 1
                if self.plan.diagnoses:
                    self._diagnose()
                if self.plan.profiles:
                    self._trace_compilations()
            except KeyboardInterrupt:
                ending = "interrupted"
            finally:
                self.close()
        reference = next(iter(self.references.values()), Reference())
        compiled = self._compiled_facts()
        return MeasureResult(
            rows.rows(self.states, self.plan, self.references, apart=self.apart),
            environment=reference.environment,
            function=reference.function,
            ending=ending,
            apart=self.apart,
            events=tuple(self.events),
            break_costs=compiled.break_costs if compiled else None,
            raised={s.spec.strategy.name: s.raised for s in self.states if s.raised},
        )

    def _start_ahead(self, repeat: int, *, first_pass: bool = False) -> None:
        """Starts processes side by side while none is timed, at most one per core.

        They import torch. With `first_pass` they run that too, if they fit in memory
        together; processes of later repeats, which find warm caches, start with them.
        """
        end = self.repeats if first_pass and repeat else repeat + 1
        waiting = [
            (state, later) for later in range(repeat, end) for state in self._running()
        ][: os.cpu_count()]
        if first_pass:
            if any(s.prepared for s in self.states) or not self.has_room(len(waiting)):
                return
            self.progress(f"starting {len(waiting)} processes")
        for state, later in waiting:
            if later not in state.ahead:
                state.ahead[later] = self._start(state, later)
            if first_pass:
                arguments = self._first_arguments(state, later)
                state.ahead[later].tell("prepare", **arguments)
                state.prepared.add(later)
            else:
                state.ahead[later].tell("import_torch")

    def _await_ahead(self) -> None:
        """Waits until processes are ready: they would disturb what is timed."""
        for state in self.states:
            for process in list(state.ahead.values()):
                with self.recording_failure(state):
                    process.wait(self.limit_s)

    def _compiled_facts(self) -> Facts | None:
        """Returns the facts of the first compiled strategy."""
        compiled = [state for state in self.states if state.spec.strategy.compiles]
        return compiled[0].facts[0] if compiled and compiled[0].facts else None

    def _trace_compilations(self) -> None:
        """Compiles each strategy again, cold, and saves the trace that torch writes."""
        for number, state in enumerate(self._running()):
            if not state.spec.strategy.compiles:
                continue
            self.progress(f"{state.spec.label}: compiling again, to save its code")
            folder = self.keep / state.spec.file_name
            state.caches = self.scratch / f"traced-{number}"
            variables = {**state.environment, "TORCH_TRACE": str(folder / "trace")}
            job = self.plan.job(state.spec, self.plan.shapes[0])
            state.process = self._processes.begin(job, variables)
            with self.recording_failure(state):
                state.ask(Facts, "prepare", self.limit_s, answers=None)
            state.close()
            _write_code(folder / "trace", folder)

    def _diagnose(self) -> None:
        """Finds why outputs differ, and which changes compiled code would miss."""
        [worker] = self.reference_workers.values()
        compiled = self._compiled_facts()
        wrong = compiled is not None and compiled.verdict == "wrong"
        self.progress("looking for state changes that compiled code does not see")
        with contextlib.suppress(WorkerError):  # the diagnosis is optional
            numerics = (compiled and compiled.numerics) or shapes.Numerics()
            arguments = {"wrong": wrong, "forms": numerics.get("forms") or ()}
            answer = worker.ask(Facts, "diagnose", self.limit_s, **arguments)
            self.events += (*answer.wrong, *answer.stale)

    # -- references ----------------------------------------------------------------

    def compute_references(self) -> None:
        """Computes eager's outputs for every dtype and shape, before any timing."""
        for dtype in dict.fromkeys(state.spec.dtype for state in self.states):
            spec = StrategySpec(EAGER, dtype=dtype)
            job = self.plan.job(spec, self.plan.shapes[0])
            # A diagnosis compiles in the reference worker; it reuses these caches.
            caches = self._compiled_caches() if self.plan.diagnoses else {}
            variables = {**self.plan.environment, **caches}
            self.reference_workers[dtype] = self._processes.begin(job, variables)
            for number, shape in enumerate(self.plan.shapes):
                self.progress(f"computing reference outputs in eager{_named(shape)}")
                arguments = {"number": number, "shape": dict(shape)}
                try:
                    self.references[dtype, number] = self.reference_workers[dtype].ask(
                        Reference, "make_reference", self.limit_s, **arguments
                    )
                except WorkerError as error:
                    raise UserError(f"the target fails in eager: {error}") from None

    def _compiled_caches(self) -> Mapping[str, str]:
        """Returns the environment of the first compiled strategy."""
        compiled = [state for state in self.states if state.spec.strategy.compiles]
        return (compiled or self.states)[0].environment

    def _compare_outputs(
        self, state: StrategyState, number: int, path: Path
    ) -> shapes.Numerics:
        self.progress(f"{state.spec.label}: comparing its outputs with eager's")
        arguments = {"number": number, "path": str(path)}
        try:
            with self.without_deadline():
                worker = self.reference_workers[state.spec.dtype]
                answer = worker.ask(Facts, "compare_outputs", self.limit_s, **arguments)
            return answer.numerics or shapes.Numerics()
        except WorkerError as error:  # not the fault of the compared strategy
            return {"verdict": None, "why": f"the comparison failed: {error}"}
        finally:
            for file in path.parent.glob(f"*{path.name}"):  # one of each rank
                file.unlink(missing_ok=True)

    def _choose_strategies(self) -> None:
        """Drops the strategies that do not apply.

        A target that calls torch.compile itself is compared with itself in eager.
        """
        reference = next(iter(self.references.values()))
        if reference.environment["device"] != "cuda":
            self._keep([state for state in self.states if not state.spec.cuda_only])
        if not reference.compiled:
            return
        named = [state.spec for state in self.states if not state.spec.as_written]
        typed = any(spec.dtype for spec in named)
        if typed or (named and not self.plan.by_default):
            raise UserError(
                f"{self.plan.target.text} calls torch.compile itself: bench can only"
                " compare it with itself in eager, without --strategies, --dtype and"
                " similar flags"
            )
        if named:
            written = [
                StrategyState(spec, self.scratch / f"strategy-{number}")
                for number, spec in enumerate(AS_WRITTEN)
            ]
            self._keep(written)

    def _keep(self, states: list[StrategyState]) -> None:
        """Measures these; a process that was started early for another ends."""
        for state in self.states:
            if state not in states:
                state.abandon()
        self.states = states

    def _outputs_file(self, state: StrategyState) -> Path:
        return self.scratch / f"outputs-{id(state)}.pt"

    # -- one repeat ----------------------------------------------------------------

    def _measure_repeat(self, repeat: int) -> None:
        """Measures every strategy in a new process: cold first, then warm."""
        waiting = self._running()[:: -1 if repeat % 2 else 1]
        while waiting:
            group = self._together(waiting, repeat)
            for number in range(len(self.plan.shapes)):
                for state in group if number else ():
                    with self.recording_failure(state):
                        self.begin(state, number, repeat)
                self.rounds([state for state in group if state.runs], number)
                self.examine(group, number)
            for state in group:
                with self.recording_failure(state):
                    self.recheck_random_draws(state)
                state.close()

    def _together(
        self, waiting: list[StrategyState], repeat: int
    ) -> list[StrategyState]:
        """Starts as many of the waiting strategies as fit in memory together."""
        group: list[StrategyState] = []
        while waiting:
            if group and not self.has_room():
                self.apart = True
                self.repeats = max(self.repeats, _SEPARATE_REPEATS)
                break
            state = waiting.pop(0)
            with self.recording_failure(state):
                self.begin(state, 0, repeat)
                group.append(state)
        return group

    def has_room(self, count: int = 1) -> bool:
        """Whether so many more processes fit in memory."""
        needed = _ROOM * count
        host = psutil.virtual_memory().available
        cuda = free_vram() if self.largest["cuda"] else None
        return host > needed * self.largest["host"] and (
            cuda is None or cuda > needed * self.largest["cuda"]
        )

    def begin(self, state: StrategyState, number: int = 0, repeat: int = 0) -> None:
        """Runs first call and warm-up; the first repeat also compares outputs."""
        shape = self.plan.shapes[number]
        label = f"{state.spec.label}{_named(shape)}"
        if number or repeat not in state.prepared:
            self.progress(f"{label}: first call, {'warm' if repeat else 'cold'}")
        path = None if repeat else self._outputs_file(state)
        if number:
            answers = str(path) if path else None
            arguments = {"answers": answers, "shape": dict(shape)}
            first = state.ask(Facts, "reshape", self.limit_s, **arguments)
        else:
            first = self._first_pass(state, repeat)
        numerics = self._compare_outputs(state, number, path) if path else None
        self.progress(f"{label}: warming up")
        warm = state.ask(Facts, "warm_up", self.limit_s, **self.warm_up_limit)
        self.largest = {k: max(v, first.bytes[k]) for k, v in self.largest.items()}
        if repeat == 0:
            state.facts.append(replace(first, numerics=numerics).updated(warm))
        elif number == 0 and repeat == 1:
            state.warm = first
        state.facts[number] = state.facts[number].with_repeat()

    def _first_pass(self, state: StrategyState, repeat: int) -> Facts:
        """The first pass of a new process, which may have run already."""
        early = state.ahead.pop(repeat, None)
        state.process = early or self._start(state, repeat)
        if repeat in state.prepared:
            state.prepared.remove(repeat)
            return state.process.reply(Facts, self.limit_s)
        arguments = self._first_arguments(state, repeat)
        return state.ask(Facts, "prepare", self.limit_s, **arguments)

    def _start(self, state: StrategyState, repeat: int) -> Worker:
        variables = {**self.plan.environment, **state.environment}
        job = self.plan.job(state.spec, self.plan.shapes[0])
        return self._processes.begin(job, variables, layout=repeat)

    def _first_arguments(self, state: StrategyState, repeat: int) -> Keywords:
        """Only the first repeat compares outputs, and restores state for that."""
        if repeat:
            return {"answers": None}
        later = range(1, len(self.plan.shapes))
        references = [self.references[state.spec.dtype, number] for number in later]
        keeps_state = any(reference.stateful for reference in references)
        return {"answers": str(self._outputs_file(state)), "saves_state": keeps_state}

    def rounds(self, states: list[StrategyState], number: int) -> None:
        """Samples the strategies in turn, so that machine drift hits all alike."""
        begin = time.monotonic()
        count = self._round_count(states, number)
        for turn in range(count):
            for state in states if turn % 2 == 0 else states[::-1]:
                self.progress(
                    f"round {turn + 1} of {count}, {state.spec.label}"
                    f"{_named(self.plan.shapes[number])}{_left(begin, turn, count)}"
                )
                with self.recording_failure(state):
                    self.sample(state, number)
            states = [state for state in states if state.runs]
            latest = {str(s.caches): s.facts[number].rounds[-1] for s in states}
            clean = {name: [r.clean_ms for r in latest[name]] for name in latest}
            if states and stats.enough(clean):
                return

    def _round_count(self, states: list[StrategyState], number: int) -> int:
        """Returns fewer rounds if one pass over the calls takes long."""
        if not states:
            return 0
        longest_s = max(state.facts[number].pass_ms for state in states) / 1e3
        rounds = stats.rounds_per_repeat(self.plan.repeats)
        fit = int(2 * self.plan.seconds / longest_s) if longest_s else rounds
        return min(rounds, max(stats.FEWEST_ROUNDS, fit))

    def sample(self, state: StrategyState, number: int) -> None:
        repeats = self.plan.repeats
        seconds = self.plan.seconds / repeats / stats.rounds_per_repeat(repeats)
        reply = state.ask(SampledRound, "sample", self.limit_s, seconds=seconds)
        state.facts[number] = state.facts[number].sampled(reply)

    def examine(self, group: list[StrategyState], number: int) -> None:
        """Records memory, guards and kernels once, after all timing of the shape."""
        for state in group:
            if state.runs and state.facts[number].memory is None:
                self.progress(
                    f"{state.spec.label}: measuring memory, guards and kernels"
                )
                with self.recording_failure(state):
                    self._compare_again(state, number)
                    reply = state.ask(
                        Facts, "examine", self.limit_s, trace=self._trace(state)
                    )
                    state.facts[number] = state.facts[number].updated(reply)

    def _compare_again(self, state: StrategyState, number: int) -> None:
        """Compares again: replayed graphs or skipped guards may make outputs wrong."""
        facts = state.facts[number]
        reference = self.references[state.spec.dtype, number]
        if not reference.deterministic or facts.verdict not in {"same", "rounding"}:
            return
        path = self._outputs_file(state)
        state.ask(Done, "save_outputs", self.limit_s, answers=str(path))
        again = self._compare_outputs(state, number, path)
        if again["verdict"] == "wrong" and state.spec.is_eager:
            # Skips this check for the other strategies.
            unlike = replace(reference, deterministic=False)
            self.references[state.spec.dtype, number] = unlike
        elif again["verdict"] == "wrong":
            why = f"right in the first pass, wrong after timing: {again['why']}"
            state.facts[number] = replace(facts, numerics={**again, "why": why})

    def _trace(self, state: StrategyState) -> str | None:
        if not self.plan.profiles:
            return None
        return str(self.keep / f"{state.spec.file_name}.trace.json")

    def recheck_random_draws(self, state: StrategyState) -> None:
        """Accepts outputs that differ only in their random numbers.

        It compiles again with eager's random numbers and compares those outputs.
        """
        for number, facts in enumerate(state.facts):
            draws = self.references[state.spec.dtype, number].draws
            wrong = facts.verdict == "wrong" and facts.drawn is None
            if not (state.runs and draws and wrong):
                continue
            self.progress(
                f"{state.spec.label}: compiling again with eager's random numbers"
            )
            path = self._outputs_file(state)
            shape = dict(self.plan.shapes[number]) if number else None
            arguments = {"answers": str(path), "shape": shape}
            state.ask(Done, "draw_as_eager", self.limit_s, **arguments)
            drawn = self._compare_outputs(state, number, path)
            facts = replace(facts, drawn=drawn)
            if drawn["verdict"] in {"same", "rounding"}:
                facts = replace(facts, numerics={**drawn, "verdict": "random"})
            state.facts[number] = facts

    def _running(self) -> list[StrategyState]:
        return [state for state in self.states if state.runs]

    @contextlib.contextmanager
    def recording_failure(self, state: StrategyState) -> Iterator[None]:
        """Notes why a strategy fails and closes it; the others continue."""
        try:
            yield
        except WorkerError as error:
            state.error, state.raised = str(error), error.raised
            state.timed_out = isinstance(error, WorkerTimeout)
            state.abandon()
        except NotApplicable as error:
            state.skipped = str(error)
            state.abandon()


def _left(begin: float, turn: int, count: int) -> str:
    if not turn:
        return ""
    seconds = (time.monotonic() - begin) / turn * (count - turn)
    return f", about {seconds:.0f} s left"


def _named(shape: Mapping[str, int]) -> str:
    return "".join(f", {name} {value}" for name, value in shape.items())


def _write_code(trace: Path, folder: Path) -> list[Path]:
    """Writes each graph and each generated code of a torch trace to its own file."""
    try:
        records = read_folder(trace)
    except (OSError, UserError):  # torch compiled nothing
        return []
    written: list[Path] = []
    for record in records:
        for name in _ARTIFACTS.keys() & record.metadata.keys():
            frame = record.metadata.get("frame_id")
            stem = (
                f"{frame}-{record.metadata.get('frame_compile_id')}-{_ARTIFACTS[name]}"
            )
            path = folder / f"{re.sub(r'[^0-9A-Za-z.-]', '_', stem)}.py"
            number = 2
            while path in written:
                path = path.with_name(f"{path.stem.split('~')[0]}~{number}.py")
                number += 1
            path.write_text(record.payload + "\n", encoding="utf-8")
            written.append(path)
    return written
