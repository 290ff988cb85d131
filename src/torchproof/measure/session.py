"""One session of measuring: references first, then all arms, round by round."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from torchproof.measure import rows, trace_files
from torchproof.measure.specs import (
    AS_WRITTEN,
    EAGER,
    MeasureResult,
    Plan,
    Progress,
    StrategySpec,
)
from torchproof.measure.strategy_state import StrategyState
from torchproof.measure.worker_process import (
    WorkerError,
    WorkerProcess,
    WorkerProcesses,
    free_vram,
)
from torchproof.records import Event, Frame, UserError, stats
from torchproof.strategies import NotApplicable

_SEPARATE_REPEATS = 3  # of arms that cannot be in memory beside each other
_ROOM = 1.3  # times what an arm took must be free before another stays beside it
_FEWEST_ROUNDS = 4


class Session:
    """Measures the arms of a plan side by side."""

    def __init__(self, plan: Plan, keep: Path, progress: Progress) -> None:
        self.plan, self.keep, self.progress = plan, keep, progress
        self.references: dict[tuple[str | None, int], dict[str, Any]] = {}
        self.repeats = plan.repeats
        self.apart = False  # not all arms fitted in memory beside each other
        self.largest = {"host": 0, "cuda": 0}
        self.reference_workers: dict[str | None, WorkerProcess] = {}
        self.events: list[Event] = []
        self.states: list[StrategyState] = []
        self.spare: Callable[[], WorkerProcess | None] = lambda: None
        self._here = threading.local()  # arms may be begun by several threads
        self._comparing = threading.Lock()
        self._processes = WorkerProcesses(quiet=plan.quiet)

    def set_deadline(self, seconds: float | None) -> None:
        """What this thread asks of arms from here on has to be answered by then."""
        self._here.deadline = None if seconds is None else time.monotonic() + seconds

    @contextlib.contextmanager
    def without_deadline(self) -> Iterator[None]:
        """For whom a deadline of this thread is not meant: the judge, and eager."""
        deadline, self._here.deadline = getattr(self._here, "deadline", None), None
        try:
            yield
        finally:
            self._here.deadline = deadline

    @property
    def limit_s(self) -> float | None:
        """How long an arm may take to answer."""
        limit = self.plan.timeout_s
        deadline: float | None = getattr(self._here, "deadline", None)
        if deadline is None:
            return limit
        left = max(0.0, deadline - time.monotonic())
        return left if limit is None else min(limit, left)

    @property
    def settle_limit(self) -> dict[str, float]:
        """How long times may take to settle: not all the time that is left."""
        limit = self.limit_s
        return {} if limit is None else {"within_s": min(stats.SETTLE_S, limit / 3)}

    def close(self) -> None:
        self._processes.close()

    def run(self) -> MeasureResult:
        ending = "finished"
        with tempfile.TemporaryDirectory(prefix="torchproof-") as scratch:
            self.scratch = Path(scratch)
            self.states = [
                StrategyState(spec, self.scratch / f"arm-{number}")
                for number, spec in enumerate(self.plan.specs)
            ]
            try:
                self.compute_references()
                self._choose_strategies()
                repeat = 0
                while repeat < self.repeats and self._running():
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
        known = next(iter(self.references.values()), {})
        place = known.get("function")
        return MeasureResult(
            rows.rows(self.states, self.plan, self.references, apart=self.apart),
            environment=known.get("environment", {}),
            function=Frame(*place) if place else None,
            ending=ending,
            apart=self.apart,
            events=tuple(self.events),
            anatomy=self._compiled_facts().get("anatomy"),
        )

    def _compiled_facts(self) -> dict[str, Any]:
        """What the first arm that compiles gave."""
        compiled = [state for state in self.states if state.spec.strategy.compiles]
        return compiled[0].facts[0] if compiled and compiled[0].facts else {}

    def _trace_compilations(self) -> None:
        """Each arm compiled once more, cold, with torch's trace of it kept."""
        for number, state in enumerate(self._running()):
            if not state.spec.strategy.compiles:
                continue
            self.progress(f"{state.spec.label}: compiling once more, to keep its code")
            folder = self.keep / state.spec.file_name
            state.caches = self.scratch / f"traced-{number}"
            own = {**state.environment, "TORCH_TRACE": str(folder / "trace")}
            job = self.plan.job(state.spec, self.plan.shapes[0])
            state.process = self._processes.begin(job, own)
            with self.recording_failure(state):
                state.ask("prepare", self.limit_s, answers=None)
            state.close()
            trace_files.write_code(folder / "trace", folder)

    def _diagnose(self) -> None:
        """Why answers differ, or would if the surroundings changed."""
        [judge] = self.reference_workers.values()
        judged = self._compiled_facts().get("numerics") or {}
        self.progress("what compiled code does not notice")
        with contextlib.suppress(WorkerError):  # a diagnosis is an extra
            found = judge.ask(
                "diagnose", self.limit_s, wrong=judged.get("verdict") == "wrong"
            )
            self.events += map(Event.from_json, found["events"])

    # -- references ----------------------------------------------------------------

    def compute_references(self) -> None:
        """Eager's answers for every type of number and shape, before any timing."""
        for dtype in dict.fromkeys(state.spec.dtype for state in self.states):
            spec = StrategySpec(EAGER, dtype=dtype)
            job = self.plan.job(spec, self.plan.shapes[0])
            # A diagnosis compiles in the judge: it finds what the first arm compiled.
            own = self.states[-1].environment if self.plan.diagnoses else {}
            own = {**self.plan.environment, **own}
            self.reference_workers[dtype] = self._processes.begin(job, own)
            for number, shape in enumerate(self.plan.shapes):
                self.progress(f"reference answers in eager{_named(shape)}")
                told = {"number": number, "shape": dict(shape)}
                try:
                    self.references[dtype, number] = self.reference_workers[dtype].ask(
                        "make_reference", self.limit_s, **told
                    )
                except WorkerError as error:
                    raise UserError(f"the target fails in eager: {error}") from None

    def _compare_outputs(
        self, state: StrategyState, number: int, path: Path
    ) -> dict[str, Any]:
        self.progress(f"{state.spec.label}: comparing its answers with eager's")
        told = {"number": number, "path": str(path)}
        try:
            with self._comparing, self.without_deadline():
                judge = self.reference_workers[state.spec.dtype]
                answer = judge.ask("compare_outputs", self.limit_s, **told)
            return dict(answer["numerics"])
        except WorkerError as error:  # not the fault of the compared strategy
            return {"verdict": None, "why": f"the comparison failed: {error}"}
        finally:
            path.unlink(missing_ok=True)

    def _choose_strategies(self) -> None:
        """What does not apply is left out.

        A target that compiles itself is compared with itself, that switched off.
        """
        known = next(iter(self.references.values()))
        if known["environment"]["device"] != "cuda":
            self.states = [state for state in self.states if not state.spec.cuda_only]
        if not known["compiled"]:
            return
        named = [state.spec for state in self.states if not state.spec.as_written]
        typed = any(spec.dtype for spec in named)
        if typed or (named and not self.plan.by_default):
            raise UserError(
                f"{self.plan.target.text} does its own compiling: it can be compared"
                " with itself in eager only, without --strategies, --dtype and the like"
            )
        if named:
            self.states = [
                StrategyState(spec, self.scratch / f"arm-{number}")
                for number, spec in enumerate(AS_WRITTEN)
            ]

    def _answers(self, state: StrategyState, number: int) -> Path | None:
        """Where an arm is to leave its answers, if they can be judged."""
        stateful = self.references[state.spec.dtype, number]["stateful"]
        # What an earlier shape changed in the target would count as a difference.
        return None if number and stateful else self._answers_of(state)

    def _answers_of(self, state: StrategyState) -> Path:
        return self.scratch / f"answers-{id(state)}.pt"

    # -- a repeat -----------------------------------------------------------------

    def _measure_repeat(self, repeat: int) -> None:
        """Every arm in a process of its own: cold at first, then with warm caches."""
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
        """As many of the waiting arms as memory allows beside each other, begun."""
        group: list[StrategyState] = []
        while waiting:
            if group and not self.has_room():
                self.apart, self.repeats = True, max(self.repeats, _SEPARATE_REPEATS)
                break
            state = waiting.pop(0)
            with self.recording_failure(state):
                self.begin(state, 0, repeat)
                group.append(state)
        return group

    def has_room(self) -> bool:
        host = psutil.virtual_memory().available
        cuda = free_vram() if self.largest["cuda"] else None
        return host > _ROOM * self.largest["host"] and (
            cuda is None or cuda > _ROOM * self.largest["cuda"]
        )

    def begin(self, state: StrategyState, number: int = 0, repeat: int = 0) -> None:
        """First call and warm-up; the first repeat's is cold, and judged."""
        shape = self.plan.shapes[number]
        label = f"{state.spec.label}{_named(shape)}"
        self.progress(f"{label}: first call, {'warm' if repeat else 'cold'}")
        path = None if repeat else self._answers(state, number)
        told = {"answers": str(path) if path else None}
        if number == 0:
            job = self.plan.job(state.spec, shape)
            self.start(state, job, repeat)
            facts = state.ask("prepare", self.limit_s, **told)
        else:
            facts = state.ask("reshape", self.limit_s, shape=dict(shape), **told)
        if path:
            facts["numerics"] = self._compare_outputs(state, number, path)
        self.progress(f"{label}: warming up")
        facts |= state.ask("settle", self.limit_s, **self.settle_limit)
        self.largest = {k: max(v, facts["bytes"][k]) for k, v in self.largest.items()}
        if repeat == 0:
            none = dict.fromkeys(("compilations", "steps", "interrupted"), 0)
            state.facts.append(facts | none | {"rounds": []})
        elif number == 0 and state.warm is None:
            state.warm = facts
        state.facts[number]["rounds"].append([])

    def start(self, state: StrategyState, job: Mapping[str, Any], repeat: int) -> None:
        """A process for the arm: one that has loaded the target, if there is one."""
        own = {**self.plan.environment, **state.environment}
        spare = None if repeat else self.spare()
        if spare is None:
            state.process = self._processes.begin(job, own, layout=repeat)
        else:
            state.process = self._processes.adopt(spare)
            spare.tell("become", job=dict(job), environment=own)

    def rounds(self, states: list[StrategyState], number: int) -> None:
        """All arms in turn, again and again, so that drift hits all alike."""
        begin, count = time.monotonic(), self._round_count(states, number)
        for turn in range(count):
            for state in states if turn % 2 == 0 else states[::-1]:
                self.progress(
                    f"round {turn + 1} of {count}, {state.spec.label}"
                    f"{_named(self.plan.shapes[number])}{_left(begin, turn, count)}"
                )
                with self.recording_failure(state):
                    self.sample(state, number)
            states = [state for state in states if state.runs]
            if states and stats.enough(
                {str(s.caches): s.facts[number]["rounds"][-1] for s in states}
            ):
                return

    def _round_count(self, states: list[StrategyState], number: int) -> int:
        """Fewer rounds where one pass over the calls takes long."""
        if not states:
            return 0
        longest_s = max(state.facts[number]["pass_ms"] for state in states) / 1e3
        fit = int(2 * self.plan.seconds / longest_s) if longest_s else stats.ROUNDS
        return min(stats.ROUNDS, max(_FEWEST_ROUNDS, fit))

    def sample(self, state: StrategyState, number: int) -> None:
        seconds = self.plan.seconds / self.plan.repeats / stats.ROUNDS
        answer = state.ask("sample", self.limit_s, seconds=seconds)
        facts, interrupted = state.facts[number], answer["interrupted"]
        facts["rounds"][-1].append(stats.kept(answer["times_ms"], interrupted))
        facts["compilations"] += answer["compilations"]
        facts["steps"] += len(interrupted)
        facts["interrupted"] += sum(interrupted)

    def examine(self, group: list[StrategyState], number: int) -> None:
        """Memory, guards and kernels, once, after all timing of the shape."""
        for state in group:
            if state.runs and "memory" not in state.facts[number]:
                self.progress(f"{state.spec.label}: memory, guards and kernels")
                with self.recording_failure(state):
                    self._compare_again(state, number)
                    state.facts[number] |= state.ask(
                        "examine", self.limit_s, trace=self._trace(state)
                    )

    def _compare_again(self, state: StrategyState, number: int) -> None:
        """Right at first, wrong once recorded graphs are replayed or guards skipped."""
        facts = state.facts[number]
        judged = (facts["numerics"] or {}).get("verdict")
        reference = self.references[state.spec.dtype, number]
        if not reference["deterministic"] or judged not in {"same", "rounding"}:
            return
        path = self._answers_of(state)
        state.ask("save_outputs", self.limit_s, answers=str(path))
        again = self._compare_outputs(state, number, path)
        if again["verdict"] == "wrong" and state.spec.is_eager:
            reference["deterministic"] = False  # so the others cannot be held to it
        elif again["verdict"] == "wrong":
            why = f"right in its first pass, not after it was timed: {again['why']}"
            facts["numerics"] = again | {"why": why}

    def _trace(self, state: StrategyState) -> str | None:
        if not self.plan.profiles:
            return None
        return str(self.keep / f"{state.spec.file_name}.trace.json")

    def recheck_random_draws(self, state: StrategyState) -> None:
        """Another random stream is no wrong answer: told apart by drawing as eager."""
        reference = self.references[state.spec.dtype, 0]
        facts = state.facts[0] if state.runs else {}
        judged = facts.get("numerics") or {"verdict": None}
        if judged["verdict"] != "wrong" or not reference["draws"] or "drawn" in facts:
            return
        self.progress(f"{state.spec.label}: compiled again, to draw as eager does")
        path = self._answers_of(state)
        state.ask("draw_as_eager", self.limit_s, answers=str(path))
        facts["drawn"] = self._compare_outputs(state, 0, path)
        if facts["drawn"]["verdict"] in {"same", "rounding"}:
            facts["numerics"] = facts["drawn"] | {"verdict": "random"}

    # -- small things --------------------------------------------------------------

    def _running(self) -> list[StrategyState]:
        return [state for state in self.states if state.runs]

    @contextlib.contextmanager
    def recording_failure(self, state: StrategyState) -> Iterator[None]:
        """An arm that fails is out; the others go on."""
        try:
            yield
        except WorkerError as error:
            state.error = str(error)
            state.close()
        except NotApplicable as error:
            state.skipped = str(error)
            state.close()


def _left(begin: float, turn: int, count: int) -> str:
    if not turn:
        return ""
    seconds = (time.monotonic() - begin) / turn * (count - turn)
    return f", about {seconds:.0f} s left"


def _named(shape: Mapping[str, int]) -> str:
    return "".join(f", {name} {value}" for name, value in shape.items())
