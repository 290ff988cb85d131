"""The worker process that runs a target under one strategy and measures it.

`worker_process` starts it with `python -m` and a job in JSON. It replies to
each command that it receives over its channel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof import strategies
from torchproof.measure import guard_filters, numerics, profiling, rank_peers
from torchproof.measure.command_loop import run_commands
from torchproof.measure.compile_stats import CompileStats
from torchproof.measure.replies import (
    Facts,
    Operations,
    Reference,
    Replayed,
    SampledRound,
)
from torchproof.measure.specs import StrategyJob
from torchproof.observe import BreakCost, BreakCosts, timeline
from torchproof.records import (
    FormDifference,
    Frame,
    JsonObject,
    StaleAnswerEvent,
    WrongAnswerEvent,
    one_line,
    shapes,
    stats,
)
from torchproof.targets import Job, Loaded, calls
from torchproof.torch_private import (
    comparison,
    contract,
    describe,
    marked_compile_errors,
)

if TYPE_CHECKING:
    from torchproof.strategies import Applied

_WATCHED_PASSES = 11
_RESUME_S = {"cpu": 0.01, "cuda": 0.2}


def main(arguments: list[str]) -> int:
    job = StrategyJob.from_json(json.loads(arguments[0]))
    return run_commands(StrategyWorker(job))


class StrategyWorker:
    """Loads a target, applies a strategy, and runs the commands of the parent."""

    def __init__(self, job: StrategyJob) -> None:
        self.job = job
        self.strategy = job.strategy
        self._run: Job | None = None
        calls.compare_at_most(job.compared_elements)
        self.references: dict[int, numerics.Reference] = {}
        self.inputs: calls.Answers = {}  # as they were loaded
        self.reference_inputs: dict[int, calls.Answers] = {}
        self.compile_stats = CompileStats()
        self.dropped: Counter[str] = Counter()  # guards that are not checked, by type
        self.break_cost: BreakCost | None = None
        self.hooks = contextlib.ExitStack()
        self.applied: Applied | None = None
        self.peers = rank_peers.Peers()
        self.fn: Any = None  # what a pass calls
        self.state: numerics.SavedValues | None = None  # after the first pass
        self.timeline = timeline.start(self.strategy.name)
        self.call_times = None if self.timeline is None else timeline.CallTimes()

    @property
    def run(self) -> Job:
        """The run of the target, with the device and size that it uses."""
        if self._run is None:
            assert self.job.run is not None
            on_rank = self.job.ranks is not None
            run = calls.resolved(dataclasses.replace(self.job.run, on_rank=on_rank))
            if on_rank:
                self.peers = rank_peers.Peers(run)
            self._run = run
        return self._run

    # -- commands ------------------------------------------------------------------

    def import_torch(self) -> None:
        """Imports torch ahead, and nothing of the target: a module may draw numbers."""
        import torch  # noqa: F401

    def switches(self) -> Facts:
        from torchproof.torch_private import compile_costs

        return Facts(switches=compile_costs.inductor_defaults())

    def make_reference(self, number: int, shape: dict[str, int]) -> Reference:
        """Computes eager's outputs, in working precision and in float64."""
        import torch

        self._load(shape)
        fn = self.loaded.fn
        if number == 0:  # a later shape keeps the first target
            self.fn = self.peers.eager(self.loaded, self.run)
        with torch.compiler.set_stance("force_eager"):  # an error is the target's own
            once, twice = (
                calls.answers(self.loaded, self.fn, train=self.train) for _ in range(2)
            )
            operations = self._count_operations()
        self.reference_inputs[number] = self.inputs
        no_float64 = rank_peers.NO_FLOAT64 if self.peers.several else None
        stateful = False
        if number == 0:
            self.references[number] = numerics.reference(
                lambda: self._build(shape),
                self._eager_outputs,
                earlier=once,
                no_float64=no_float64,
            )
        else:
            self.references[number], stateful = self._later_reference(shape, no_float64)
        reference = self.references[number]
        if self.peers.several:  # all ranks have to run on perturbed inputs together
            reference.perturbed()
        return Reference(
            draws=reference.draws,
            not_exact=reference.why,
            stateful=stateful,
            deterministic=comparison.compare(twice, once).verdict
            in {"same", "rounding"},
            work=self.peers.work(self.loaded, self.run),
            host_copies=calls.host_copies(self.loaded),
            operations=operations,
            environment=self._environment(),
            compiled=calls.compiles_itself(fn, self.run),
            function=Frame(*dataclasses.astuple(calls.function_of(self.loaded))[:3]),
        )

    def _eager_outputs(self, built: Loaded) -> calls.Answers:
        fn = self.peers.eager(built, self.run)
        return calls.answers(built, fn, train=self.train)

    def _later_reference(
        self, shape: dict[str, int], no_float64: str | None
    ) -> tuple[numerics.Reference, bool]:
        """Eager's outputs at a later shape, and whether passes change tensors.

        A strategy runs the first shape many times before it gets here. So that a target
        with state can be compared, all begin with the state after one pass at the first
        shape; a strategy restores it. That this is possible is tried in eager.
        """
        changed: list[bool] = []

        def make() -> tuple[Loaded, Loaded]:
            first = self._build({})
            other = calls.fresh(dataclasses.replace(self.run, shape=shape))
            return first, dataclasses.replace(first, calls=other.calls)

        def run(pair: tuple[Loaded, Loaded], *, restores: bool = False) -> Any:
            fn = self.peers.eager(pair[0], self.run)
            first, later = (
                functools.partial(calls.answers, each, fn, train=self.train)
                for each in pair
            )
            first()
            if restores:
                saved = numerics.SavedValues(pair[0].fn)
                first()
                changed.append(saved.restore())
            return later()

        import torch

        try:
            with torch.compiler.set_stance("force_eager"):
                restored = run(make(), restores=True)
        except Exception as error:  # of a tensor type that cannot be copied
            why = f"its state cannot be restored: {one_line(repr(error), 200)}"
            found = numerics.reference(make, run, no_float64=no_float64)
            return dataclasses.replace(found, unrepeatable=why), False
        found = numerics.reference(make, run, earlier=restored, no_float64=no_float64)
        if found.unrepeatable and not self.references[0].unrepeatable:
            why = "outputs depend on earlier passes, by state that is no tensor's value"
            found = dataclasses.replace(found, unrepeatable=why)
        return found, changed[0]

    def _environment(self) -> shapes.Environment:
        environment = describe(self.run)
        if self.job.ranks is None:
            return environment
        wrap = self.run.wrap or self.loaded.wrap
        return {**environment, "ranks": self.job.ranks, "wrap": wrap}

    def _count_operations(self) -> Operations:
        """Counts the operations of a pass of its own; a target may not allow that."""
        from torchproof.measure import operation_count

        if self.peers.several:  # one that fails on one rank would leave others waiting
            return Operations(why="not counted on several ranks")

        def run() -> None:
            for index, call in self._calls():
                calls.seed(index)
                calls.invoke(self.loaded.fn, call, train=self.train)

        try:
            return operation_count.count(run, len(self.loaded.calls))
        except Exception as error:  # it ran twice without the counter
            return Operations(why=f"counting failed: {one_line(repr(error), 200)}")

    def compare_outputs(self, number: int, path: str) -> Facts:
        """Compares the saved outputs of a strategy with the reference."""
        import torch

        file = self.peers.own_file(Path(path))
        inputs, outputs = torch.load(file, weights_only=False)
        reference = self.references[number]
        if differs := numerics.differs_at_each_load(
            inputs, self.reference_inputs[number]
        ):
            reference = dataclasses.replace(reference, unrepeatable=differs)
        forms = comparison.form_differences(outputs, reference.eager)
        found = reference.compare(outputs).to_json()
        if forms:
            found["forms"] = tuple(dataclasses.asdict(each) for each in forms)
        return Facts(numerics=found)

    def prepare(self, answers: str | None, saves_state: bool = False) -> Facts:
        """Applies the strategy, times the first call, and saves the outputs.

        With `saves_state`, `reshape` begins with the state after this first pass.
        """
        from torchproof.torch_private import compile_costs

        plan = self._plan()
        if self.job.break_costs and self.strategy.compiles:
            self.break_cost = self.hooks.enter_context(BreakCost())
        self._load({})
        profiling.initialise_device(self.device)
        imports_s = self.compile_stats.open() if self.strategy.compiles else 0.0
        if self.strategy.compiles and not contract.missing("compile errors"):
            self.hooks.enter_context(marked_compile_errors())
        switches = compile_costs.changed_switches()
        compiled_before = self.compile_stats.compilations()
        applying_s = 0.0
        if self.run.as_written:
            self.fn = self.peers.eager(self.loaded, self.run)
        else:
            self._filter_guards()
            begin = time.perf_counter()
            self.applied = self._apply(self.loaded, plan)
            applying_s = time.perf_counter() - begin
            self.fn = self.applied.fn
            self.hooks.enter_context(self.applied.recording_compilations())
        first = self._first_pass(answers)
        if saves_state:
            self.state = numerics.SavedValues(self.loaded.fn)
        if self.strategy.graph:  # compiles and records before the first call
            seconds = (first.first_call_s or 0.0) + applying_s
            first = dataclasses.replace(first, first_call_s=seconds)
        if applied := self.applied:
            first = dataclasses.replace(
                first,
                source=applied.source,
                notes=(applied.note,) if applied.note else (),
                plan=applied.plan.to_json(),
            )
        return dataclasses.replace(
            first,
            imports_s=imports_s,
            switches=switches,
            compiled_before=compiled_before,
        )

    def _apply(self, loaded: Loaded, plan: Any) -> Applied:
        apply = functools.partial(
            strategies.apply, self.strategy, plan=plan, train=self.train
        )
        return self.peers.applied(self.strategy, loaded, self.run, apply)

    def _filter_guards(self) -> None:
        method = self.job.guards
        if method and method != guard_filters.STANCE:
            self.strategy = guard_filters.with_filter(self.strategy, method)
            self.dropped = self.hooks.enter_context(
                guard_filters.counting_dropped(method)
            )

    def _not_checked(self) -> dict[str, int] | str:
        """Returns unchecked guards by type; a text where torch does not list them."""
        if self.job.guards == guard_filters.STANCE:
            return guard_filters.METHODS[guard_filters.STANCE]
        return {**self.dropped}

    def reshape(self, shape: dict[str, int], answers: str | None) -> Facts:
        """Runs the same target and compiled code on inputs of another shape."""
        self.compile_stats.reset()
        self._load(shape)
        if self.state is not None:
            self.state.restore()
        return self._first_pass(answers)

    def _first_pass(self, answers: str | None) -> Facts:
        first = Facts()

        def step(index: int, call: Any) -> Any:
            nonlocal first
            if index:
                return self._invoke(call)
            self.peers.meet()
            with self._shown("first call"):
                seconds, outputs = self.clock.seconds(lambda: self._invoke(call))
            compile_s = self.compile_stats.since_reset().compile_s
            first = Facts(first_call_s=seconds, first_compile_s=compile_s)
            return outputs

        self._save(answers, self.loaded, self.fn, step)
        costs = self.compile_stats.since_reset()
        return dataclasses.replace(
            costs,
            rank_counts=self.peers.of_each(costs.counts or {}),
            fell_back=self._fell_back(),
            imports_s=0.0,
            bytes=profiling.memory_in_use(self.device),
            first_call_s=first.first_call_s,
            first_compile_s=first.first_compile_s,
        )

    def warm_up(self, within_s: float = stats.WARM_UP_S) -> Facts:
        """Runs passes until the times are steady and nothing compiles any more."""
        if self.job.guards == guard_filters.STANCE:
            import torch

            self._pass()  # checks every guard once more before skipping them
            torch.compiler.set_stance(skip_guard_eval_unsafe=True)
        times: list[float] = []
        begin = time.monotonic()
        compiled = self.compile_stats.compilations()
        while True:
            times.append(self.peers.largest(self._pass()))
            if self.peers.any(self.compile_stats.compilations() != compiled):
                times = []
                compiled = self.compile_stats.compilations()
            if steady := stats.steady(times):
                break
            late = time.monotonic() - begin > within_s and len(times) > 2
            if self.peers.any(late):
                break
        gc.collect()
        gc.freeze()  # collections before each round need not scan long-lived objects
        return Facts(steady=steady, pass_ms=times[-1])

    def probe(self, settings: Sequence[str] = ()) -> Facts:
        """Measures cheap facts about the target in eager, for `tune`.

        `unavailable` says of these settings of the compiler why they have no effect.
        """
        from torchproof.measure import model_facts
        from torchproof.torch_private import configs

        subject = model_facts.Subject(
            self.loaded,
            self.device,
            self._pass,
            lambda: self._build({}),
            goes_on=self.peers.any,
        )
        reasons = {
            name: configs.why_unavailable(name, self.device) for name in settings
        }
        unavailable = {name: why for name, why in reasons.items() if why}
        return Facts(probe={**model_facts.probe(subject), "unavailable": unavailable})

    def sample(self, seconds: float) -> SampledRound:
        """Times passes for one round.

        The garbage collector stays on, as in the user's program: its pauses belong to
        the slowest steps. What other commands left is collected before.
        """
        before = self.compile_stats.compilations()
        gc.collect()
        self._resume()
        times, interrupted = self.timed(seconds)
        return SampledRound(
            tuple(times),
            tuple(interrupted),
            self.compile_stats.compilations() - before,
            by_rank=self.peers.of_each(tuple(times)),
        )

    def timed(self, seconds: float) -> tuple[list[float], list[bool]]:
        """Returns times per call, and whether each pass was interrupted."""
        count = len(self.loaded.calls)
        return profiling.timed(self._pass, count, seconds, self.peers.any)

    def _resume(self) -> None:
        """Runs untimed passes: cores and caches cooled while other workers ran.

        On an H200 host, a launch-bound step takes twice as long for the first 0.1 s.
        """
        end = time.monotonic() + _RESUME_S[self.device]
        while self.peers.any(time.monotonic() < end):
            self._pass()

    def save_outputs(self, answers: str) -> None:
        """Runs a pass after timing and saves its outputs."""
        self._save(answers, self.loaded, self.fn)

    def save_exact_outputs(self, answers: str) -> None:
        """Runs a pass and saves all bits of its outputs, for `replay`."""
        import torch

        torch.save(self._exact_outputs(), answers)

    def replay(self, answers: str, count: int) -> Replayed:
        """Runs passes and compares each with saved outputs, bit by bit."""
        import torch

        expected = torch.load(answers, weights_only=False)
        for number in range(count):
            if differs := numerics.different_bits(self._exact_outputs(), expected):
                return Replayed(number, differs)
        return Replayed(count)

    def _exact_outputs(self) -> calls.Answers:
        return calls.answers(
            self.loaded, self.fn, train=self.train, backward=self._backward, exact=True
        )

    def examine(self, trace: str | None = None) -> Facts:
        """Measures memory, guards and kernels, outside of all timing."""
        memory = profiling.peak_memory(self.device, self._pass)
        file = self.peers.own_file(Path(trace)) if trace else None
        lookups, kernels = profiling.profile(
            self.device,
            self._pass,
            calls=len(self.loaded.calls),
            trace=file,
            largest=self.peers.largest,
        )
        if self.timeline is not None and file is not None:
            clocks = time.time_ns(), time.monotonic_ns()
            timeline.add_kernels(self.timeline, file, clocks)
        costs = self.compile_stats.since_reset()
        counts = costs.counts
        sharing: tuple[str, ...] = ()
        if self.applied and self.applied.regions:
            from torchproof.measure import shared_code

            block_counts = {site.name: len(site.paths) for site in self.applied.regions}
            artifacts = shared_code.artifacts(self.applied)
            counts = {
                **(counts or shapes.Counts()),
                "artifacts_of": artifacts,
                "blocks_of": block_counts,
            }
            sharing = tuple(shared_code.sharing(self.applied))
        return dataclasses.replace(
            costs,
            counts=counts,
            rank_counts=self.peers.of_each(counts or {}),
            memory=memory,
            lookups=lookups,
            kernels=kernels,
            dropped=self._not_checked(),
            sharing=sharing,
            break_costs=self._break_costs(),
            fell_back=self._fell_back(),
        )

    def _break_costs(self) -> BreakCosts | None:
        if self.break_cost is None:
            return None
        with self.break_cost.watching():
            for _ in range(_WATCHED_PASSES):
                for index, call in self._calls():
                    with self.break_cost.call(index):
                        self._invoke(call)
        return self.break_cost.costs()

    def diagnose(self, wrong: bool, forms: Sequence[JsonObject]) -> Facts:
        """Returns events that explain why compiled outputs differ from eager's."""
        from torchproof.measure import diagnosis

        events = diagnosis.diagnose(
            self.run,
            wrong=wrong,
            forms=[FormDifference(**each) for each in forms],
        )
        return Facts(
            wrong=tuple(e for e in events if isinstance(e, WrongAnswerEvent)),
            stale=tuple(e for e in events if isinstance(e, StaleAnswerEvent)),
        )

    def draw_as_eager(self, answers: str, shape: dict[str, int] | None = None) -> None:
        """Compiles with eager's random numbers and saves those outputs.

        A later shape follows a pass at the first one, as in the reference.
        """
        import torch

        from torchproof.torch_private import compile_costs

        torch.compiler.reset()
        with compile_costs.eager_random():
            loaded = self._build({})
            plan = self._plan()
            if self.run.as_written:
                fn = self.peers.eager(loaded, self.run)
            else:
                fn = self._apply(loaded, plan).fn
            self.inputs = calls.inputs(loaded)
            if shape is not None:
                self._save(None, loaded, fn)
                built = self._build(shape)
                self.inputs = calls.inputs(built)
                loaded = dataclasses.replace(loaded, calls=built.calls)
            self._save(answers, loaded, fn)

    # -- the target ----------------------------------------------------------------

    def _plan(self) -> Any:
        """Plans what the strategy compiles, on a target that is discarded."""
        if self.run.as_written or not self.strategy.observes:
            return None
        loaded = self._build({})
        if self.strategy.compiles:
            self.compile_stats.open()  # planning imports part of the compiler
        before = functools.partial(calls.before, loaded)
        return strategies.planning.plan(
            self.strategy, loaded.fn, loaded.calls, before=before
        )

    def _build(self, shape: dict[str, int]) -> Loaded:
        """Builds the target; another shape changes only the inputs of its calls."""
        loaded = calls.fresh(self.run)
        if shape.items() <= self.run.shape.items():
            return loaded
        other = calls.fresh(dataclasses.replace(self.run, shape=shape))
        return dataclasses.replace(loaded, calls=other.calls)

    def _load(self, shape: dict[str, int]) -> None:
        built = self._build(shape)
        self.inputs = calls.inputs(built)
        earlier = getattr(self, "loaded", None)
        self.loaded = dataclasses.replace(built, fn=earlier.fn) if earlier else built
        self.train = calls.trains(self.loaded, self.run)
        self.device = str(describe(self.run)["device"])
        self.clock = profiling.Clock(self.device)

    @property
    def _backward(self) -> bool:
        """Whether a backward pass follows the call."""
        return self.train and not (self.applied and self.applied.whole_step)

    def _fell_back(self) -> tuple[str, ...]:
        """Returns why a CUDA graph strategy did not replay its graph."""
        return tuple(self.applied.falls_back) if self.applied else ()

    def _save(
        self, path: str | None, loaded: Loaded, fn: Any, step: Any = None
    ) -> None:
        """Runs one pass and saves its outputs, if there is a path."""
        import torch

        outputs = calls.answers(
            loaded, fn, train=self.train, backward=self._backward, step=step
        )
        if path is not None:
            torch.save((self.inputs, outputs), self.peers.own_file(Path(path)))

    def _invoke(self, call: Any) -> Any:
        return calls.invoke(self.fn, call, train=self._backward)

    def _calls(self) -> Iterator[tuple[int, Any]]:
        """The calls of a pass, each when all before it is done, which is not timed."""
        return calls.each(self.loaded, train=self.train)

    def _pass(self) -> float:
        """Times all calls in order, one by one; returns their sum in milliseconds."""
        total = 0.0
        self.peers.meet()
        fn, backward = self.fn, self._backward
        for index, call in self._calls():
            step = calls.step(fn, call, train=backward)
            if self.call_times is None:
                total += self.clock.milliseconds(step)
            else:  # the clock of the timeline is read outside of what is timed
                begin_ns = time.monotonic_ns()
                total += self.clock.milliseconds(step)
                self.call_times.add(index, begin_ns)
        return total

    # -- the timeline --------------------------------------------------------------

    @contextlib.contextmanager
    def command(self, name: str) -> Iterator[None]:
        """The context in which a command runs: a span of the timeline, if any."""
        if self.timeline is None:
            yield
            return
        recorder, words = self.timeline, name.replace("_", " ")
        number = recorder.begin(words, "command")
        try:
            yield
        finally:
            if self.call_times and (counts := self.call_times.write(recorder)):
                recorder.describe(number, words, **counts)
            recorder.end(number)

    def _shown(self, name: str) -> contextlib.AbstractContextManager[None]:
        if self.timeline is None:
            return contextlib.nullcontext()
        return self.timeline.span(name, "call")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
