"""The parts of `check` that measure, and the events they produce.

Each part measures strategies as `bench` does, and turns the numbers into events.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchproof import measure
from torchproof.checking.measured_events import (
    GraphLinesEvent,
    GuardCostEvent,
    LatencyEvent,
    MemoryEvent,
    SweepEvent,
    TimingEvent,
)
from torchproof.measure import MeasureResult, Plan, StrategySpec
from torchproof.observe import BreakCosts, Gap, Sweep, recompiles_by_size
from torchproof.records import (
    Event,
    Frame,
    Measurement,
    MissingHook,
    Part,
    RaisedError,
    UserError,
    shapes,
)
from torchproof.targets import Options, Target, keywords

MEASURED = ("baseline", "batch", "sequence", "latency", "guards")
# Two different sizes, one between them, and 1, which torch compiles separately.
SWEEPS = {"batch": (4, 8, 6, 1), "sequence": (128, 192, 160)}
_SECONDS = 1.0  # of sampling per strategy
_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")


@dataclass
class MeasuredParts:
    """What the measuring parts of a check have collected so far."""

    events: list[Event] = field(default_factory=list)
    rows: list[Measurement] = field(default_factory=list)
    gaps: Sequence[Gap] = ()
    parts: dict[str, Part] = field(default_factory=dict)
    interrupted: bool = False
    environment: shapes.Environment = field(default_factory=shapes.Environment)

    @property
    def compiled(self) -> Measurement | None:
        """The measurement of the compiled strategy in part baseline."""
        rows = [row for row in self.rows if row.strategy != "eager" and not row.variant]
        return rows[0] if rows else None


class PartsMeasurer:
    """Measures the requested parts one after the other; one part may fail alone."""

    def __init__(
        self,
        target: Target,
        options: Options,
        progress: Callable[[str], None],
        *,
        entering: Callable[[str], None] = lambda part: None,
    ) -> None:
        self.progress = progress
        self.entering = entering
        self.options = options
        self.collected = MeasuredParts()
        self.regional: Measurement | None = None
        self.sweeps: dict[str, Sweep] = {}
        self.selected: tuple[str, ...] = ()
        self.notes: dict[str, str] = {}  # what a part could not do
        self.function: Frame | None = None  # the target's function
        self.spec = StrategySpec(measure.strategy_named("full", options.compile))
        specs = (StrategySpec(measure.EAGER), self.spec)
        self.plan = Plan(
            target,
            measure.AS_WRITTEN if options.as_written else specs,
            by_default=True,
            train=options.train,
            device=options.device,
            size=options.size,
            seconds=_SECONDS,
            repeats=1,
            compile_with=options.compile,
            timeout_s=options.timeout_s,
            quiet=options.quiet,
        )

    def run(self, parts: Iterable[str]) -> MeasuredParts:
        self.selected = tuple(parts)
        for name in self.selected:
            begin = time.monotonic()
            if self.collected.interrupted:
                self.collected.parts[name] = Part("failed", "interrupted")
                continue
            self.entering(name)
            try:
                why = getattr(self, f"_{name}")()
                done = Part("passed", self.notes.get(name, ""))
                self.collected.parts[name] = Part("skipped", why) if why else done
            except (UserError, _Failed) as error:
                skips = isinstance(error, MissingHook)
                self.collected.parts[name] = Part(
                    "skipped" if skips else "failed", str(error)
                )
            except KeyboardInterrupt:
                self.collected.interrupted = True
                self.collected.parts[name] = Part("failed", "interrupted")
            took = round(time.monotonic() - begin, 2)
            part = self.collected.parts[name]
            self.collected.parts[name] = replace(part, seconds=took)
        return self.collected

    # -- the parts: each returns why it does not apply, or None ---------------------

    def _baseline(self) -> str | None:
        plan = replace(self.plan, diagnoses=True)
        if "latency" in self.selected and plan.specs != measure.AS_WRITTEN:
            # It needs the same reference, and its own processes in any case.
            regional = measure.strategy_named("regional", self.options.compile)
            plan = replace(plan, specs=(*plan.specs, StrategySpec(regional)))
        measured = self._measured(plan)
        eager, compiled, *others = measured.rows
        self.regional = others[0] if others else None
        self.collected.rows += [r for r in measured.rows if r.verdict != "skipped"]
        self.collected.events += measured.events
        costs = measured.break_costs or BreakCosts()
        self.collected.gaps = costs.gaps
        if compiled.error:
            if not eager.error:
                self._add_error(measured.raised.get(compiled.strategy))
            raise _Failed(f"{compiled.strategy}: {compiled.error}")
        numerics = compiled.numerics or {}
        if numerics.get("verdict") is None and numerics.get("why"):
            self.notes["baseline"] = f"outputs were not compared: {numerics['why']}"
        self.collected.events += self._timing(eager, compiled, costs)
        self.collected.events += self._memory(eager, compiled)
        self.collected.events += [
            GraphLinesEvent(
                function=each.function, graph=each, eager_ms=eager.median_ms
            )
            for each in costs.graphs
        ]
        return None

    def _batch(self) -> str | None:
        return self._sweep("batch")

    def _sequence(self) -> str | None:
        return self._sweep("sequence")

    def _sweep(self, dimension: str) -> str | None:
        """Counts recompiles for other shapes; the first sweep counts those of all."""
        names = keywords(self.plan.target)
        if dimension not in names:
            if self.plan.target.kind == "live":
                return f"a sweep needs a factory with the keyword {dimension!r}"
            return f"the target's factory has no keyword {dimension!r}"
        if dimension not in self.sweeps:
            sizes = {
                name: values
                for name, values in SWEEPS.items()
                if name in names and name in self.selected
            }
            self.sweeps = recompiles_by_size(
                self.plan.target, self.options, sizes, self.progress
            )
        swept = self.sweeps[dimension]
        self.function = self.function or swept.function
        if swept.error:
            self._add_error(swept.raised)
            raise _Failed(f"{dimension}: {swept.error}")
        self.collected.events.append(
            SweepEvent(
                function=self.function,
                dimension=dimension,
                recompiles=dict(swept.recompiles),
            )
        )
        return None

    def _latency(self) -> str | None:
        """Compares the first calls of full and regional compilation, in one mode."""
        full = self.collected.compiled
        if full is None or full.first_call_s is None:
            return "it needs the first call that part baseline measures"
        if self.regional is None:
            return "the target does its own compiling"
        if self.regional.verdict == "skipped":
            return self.regional.notes[0]
        if self.regional.error:
            raise _Failed(f"regional: {self.regional.error}")
        self.collected.events += self._first_calls(full, self.regional)
        return None

    def _guards(self) -> str | None:
        row = self.collected.compiled
        guards = (row.guards if row else None) or {}
        share, lookup_us = guards.get("share"), guards.get("lookup_us")
        if share is None or lookup_us is None:
            return "part baseline measured no guards"
        self.collected.events.append(
            GuardCostEvent(
                function=self.function,
                guards=guards.get("guards"),
                lookup_us=lookup_us,
                share=share,
            )
        )
        return None

    def _measured(self, plan: Plan) -> MeasureResult:
        with tempfile.TemporaryDirectory(prefix="torchproof-") as folder:
            measured = measure.measure(plan, Path(folder), self.progress)
        self.collected.environment = measured.environment
        self.function = measured.function
        self.collected.interrupted = measured.ending == "interrupted"
        if self.collected.interrupted:
            self.collected.rows += measured.rows
            raise _Failed("interrupted")
        return measured

    def _add_error(self, raised: RaisedError | None) -> None:
        """Adds the event of an exception that eager does not raise."""
        if raised is not None and raised.error not in _OUT_OF_MEMORY:
            self.collected.events.append(raised.event(self.function))

    def _timing(
        self, eager: Measurement, compiled: Measurement, costs: BreakCosts
    ) -> Iterator[TimingEvent]:
        eager_ms, compiled_ms = eager.median_ms, compiled.median_ms
        low, high = compiled.vs_eager_low, compiled.vs_eager_high
        ratio = compiled.vs_eager
        if eager_ms is None or compiled_ms is None:
            return
        if low is None or high is None or ratio is None:
            return
        counts = compiled.counts or {}
        yield TimingEvent(
            function=self.function,
            eager_ms=eager_ms,
            compiled_ms=compiled_ms,
            ratio=ratio,
            low=low,
            high=high,
            first_call_s=compiled.first_call_s,
            overhead_us=costs.overhead_us,
            gaps=costs.gaps,
            graphs=counts.get("graphs"),
            recompiles_in_steps=counts.get("while_timed"),
        )

    def _memory(
        self, eager: Measurement, compiled: Measurement
    ) -> Iterator[MemoryEvent]:
        is_on_gpu = compiled.memory and compiled.memory["cuda_allocated"] is not None
        if (
            is_on_gpu
            and eager.peak_bytes is not None
            and compiled.peak_bytes is not None
        ):
            yield MemoryEvent(
                function=self.function,
                strategy=compiled.strategy,
                eager_bytes=eager.peak_bytes,
                compiled_bytes=compiled.peak_bytes,
            )

    def _first_calls(
        self, full: Measurement, regional: Measurement
    ) -> Iterator[LatencyEvent]:
        if full.first_call_s is None or regional.first_call_s is None:
            return
        counts: Mapping[str, Any] = regional.counts or {}
        shared, blocks = counts.get("artifacts_of") or {}, counts.get("blocks_of") or {}
        yield LatencyEvent(
            function=self.function,
            full_s=full.first_call_s,
            regional_s=regional.first_call_s,
            shared=bool(shared) and all(count == 1 for count in shared.values()),
            blocks=sum(blocks.values()),
            block_class=" and ".join(blocks),
        )


class _Failed(Exception):
    """A part failed; the message is one line."""
