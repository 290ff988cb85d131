"""The parts of `check` that measure, and the events they produce.

Each part measures strategies as `bench` does, and turns the numbers into events.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchproof import measure
from torchproof.measure import MeasureResult, Plan, StrategySpec
from torchproof.observe import BreakCosts, Gap
from torchproof.records import (
    Event,
    Frame,
    Measurement,
    Part,
    UserError,
    is_missing_hook,
)
from torchproof.targets import Options, Target, keywords

MEASURED = ("baseline", "batch", "sequence", "latency", "guards")
# Two different sizes, one between them, and 1, which torch compiles separately.
SWEEPS = {"batch": (4, 8, 6, 1), "sequence": (128, 192, 160)}
_SECONDS = 1.0  # of sampling per strategy
_SWEEP_SECONDS = 0.2
# The exception of a worker: `[file:line: ][module.]Name: message`.
_RAISED = re.compile(r"(?:^|\d: )(?:\w+\.)*(?P<error>[A-Z]\w+): (?P<message>.*)", re.S)


@dataclass
class MeasuredParts:
    """What the measuring parts of a check have collected so far."""

    events: list[Event] = field(default_factory=list)
    rows: list[Measurement] = field(default_factory=list)
    gaps: Sequence[Gap] = ()
    parts: dict[str, Part] = field(default_factory=dict)
    interrupted: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compiled(self) -> Measurement | None:
        """The measurement of the compiled strategy in part baseline."""
        rows = [row for row in self.rows if row.strategy != "eager" and not row.variant]
        return rows[0] if rows else None


class PartsMeasurer:
    """Measures the requested parts one after the other; one part may fail alone."""

    def __init__(
        self, target: Target, options: Options, progress: Callable[[str], None]
    ) -> None:
        self.progress = progress
        self.options = options
        self.collected = MeasuredParts()
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
        for name in parts:
            if self.collected.interrupted:
                self.collected.parts[name] = Part("failed", "interrupted")
                continue
            try:
                why = getattr(self, f"_{name}")()
                self.collected.parts[name] = (
                    Part("skipped", why) if why else Part("passed")
                )
            except (UserError, _Failed) as error:
                why = str(error)
                self.collected.parts[name] = Part(
                    "skipped" if is_missing_hook(why) else "failed", why
                )
        return self.collected

    # -- the parts: each returns why it does not apply, or None ---------------------

    def _baseline(self) -> str | None:
        measured = self._measured(replace(self.plan, diagnoses=True))
        self.collected.rows += measured.rows
        self.collected.events += measured.events
        eager, compiled = measured.rows[0], measured.rows[-1]
        costs = measured.break_costs or BreakCosts()
        self.collected.gaps = costs.gaps
        if compiled.error:
            raise self._failed(compiled.strategy, compiled, eager_runs=not eager.error)
        self._add_event("timing", _timing(eager, compiled, costs))
        if compiled.memory and compiled.memory["cuda_allocated"] is not None:
            self._add_event("memory", _memory(eager, compiled))
        for graph in costs.graphs:
            data = {**graph.to_json(), "eager_ms": eager.median_ms}
            function = Frame(*graph.function)
            self.collected.events.append(
                Event("graph_lines", function=function, data=data)
            )
        return None

    def _batch(self) -> str | None:
        return self._sweep("batch")

    def _sequence(self) -> str | None:
        return self._sweep("sequence")

    def _sweep(self, dimension: str) -> str | None:
        """Runs the same compiled code with other shapes, one after the other."""
        if dimension not in keywords(self.plan.target):
            return f"the target's factory has no keyword {dimension!r}"
        shapes = tuple({dimension: value} for value in SWEEPS[dimension])
        specs = tuple(s for s in self.plan.specs if s.strategy.compiles)
        plan = replace(self.plan, specs=specs, shapes=shapes, seconds=_SWEEP_SECONDS)
        rows = self._measured(plan).rows
        self.collected.rows += rows
        if broken := [row for row in rows if row.error]:
            raise self._failed(dimension, broken[0])
        measured = [_shape(dimension, row) for row in rows]
        self._add_event("shape_sweep", {"dimension": dimension, "rows": measured})
        return None

    def _latency(self) -> str | None:
        """Compares the first calls of full and regional compilation, in one mode."""
        full = self.collected.compiled
        if full is None or full.first_call_s is None:
            return "it needs the first call that part baseline measures"
        if self.plan.specs == measure.AS_WRITTEN or full.strategy == "as-written":
            return "the target does its own compiling"
        regional = measure.strategy_named("regional", self.options.compile)
        plan = replace(
            self.plan, specs=(StrategySpec(regional),), seconds=_SWEEP_SECONDS
        )
        [row] = self._measured(plan).rows
        if row.verdict == "skipped":
            return row.notes[0]
        self.collected.rows.append(row)
        if row.error:
            raise self._failed("regional", row)
        self._add_event("latency", _latency(full, row))
        return None

    def _guards(self) -> str | None:
        row = self.collected.compiled
        if row is None or not row.guards or not row.median_ms:
            return "part baseline measured no guards"
        step_us = row.median_ms * 1e3
        self._add_event("guard_cost", {**row.guards, "step_us": step_us})
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

    def _failed(
        self, what: str, row: Measurement, *, eager_runs: bool = True
    ) -> _Failed:
        """The failure of a part; an error of compiled code is an event as well."""
        error = row.error or ""
        raised = _RAISED.search(error)
        if raised and eager_runs and "out of memory" not in error.lower():
            self._add_event("strategy_error", raised.groupdict())
        return _Failed(f"{what}: {error}")

    def _add_event(self, kind: str, data: Mapping[str, Any]) -> None:
        self.collected.events.append(Event(kind, function=self.function, data=data))


class _Failed(Exception):
    """A part failed; the message is one line."""


def _timing(
    eager: Measurement, compiled: Measurement, costs: BreakCosts
) -> dict[str, Any]:
    counts = compiled.counts or {}
    return {
        "strategy": compiled.strategy,
        "eager_ms": eager.median_ms,
        "compiled_ms": compiled.median_ms,
        "ratio": compiled.vs_eager,
        "low": compiled.vs_eager_low,
        "high": compiled.vs_eager_high,
        "verdict": compiled.verdict,
        "first_call_s": compiled.first_call_s,
        "eager_first_s": eager.first_call_s,
        "compile_s": compiled.compile_s,
        "overhead_us": costs.overhead_us,
        "gaps": [gap.to_json() for gap in costs.gaps],
        "graphs": counts.get("graphs"),
        "recompiles_in_steps": counts.get("while_timed"),
    }


def _memory(eager: Measurement, compiled: Measurement) -> dict[str, Any]:
    return {
        "eager_bytes": eager.peak_bytes,
        "compiled_bytes": compiled.peak_bytes,
        "strategy": compiled.strategy,
    }


def _shape(dimension: str, row: Measurement) -> dict[str, Any]:
    return {
        "value": row.variant[dimension],
        "ms": row.median_ms,
        "recompiles": (row.counts or {}).get("recompiles"),
        "peak_bytes": row.peak_bytes,
        "compile_s": (row.compile_s or {}).get("total"),
    }


def _latency(full: Measurement, regional: Measurement) -> dict[str, Any]:
    counts: Mapping[str, Any] = regional.counts or {}
    shared, blocks = counts.get("artifacts_of") or {}, counts.get("blocks_of") or {}
    return {
        "full_s": full.first_call_s,
        "regional_s": regional.first_call_s,
        "shared": bool(shared) and all(count == 1 for count in shared.values()),
        "blocks": sum(blocks.values()),
        "block_class": " and ".join(blocks),
    }
