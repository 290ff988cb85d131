"""Arms in processes of their own, sampled side by side, as measurements.

Comes in: a target and the arms to compare, each a strategy and what else differs. Goes
out: one measurement an arm and shape. The parent never imports torch. Every arm starts
in a fresh process with empty caches; what one sets cannot reach the next.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.records import Event, Frame, Measurement, UserError, stats
from torchproof.strategies import Strategy, parse, with_arguments
from torchproof.targets import Target

Progress = Callable[[str], None]


def strategy_named(name: str, compile_arguments: Mapping[str, Any]) -> Strategy:
    """A strategy with the arguments for torch.compile that the user gave."""
    strategy = parse(name)
    return (
        with_arguments(strategy, **compile_arguments) if compile_arguments else strategy
    )


@dataclass(frozen=True)
class StrategySpec:
    """One arm: a strategy, and what else sets it apart from the others."""

    strategy: Strategy
    variant: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dtype: str | None = None
    guards: str | None = None  # a way to check fewer guards
    as_written: bool = False  # the target compiles itself; eager: that switched off
    cuda_only: bool = False

    @property
    def label(self) -> str:
        """The arm's name in progress lines: full, max_autotune=True."""
        return ", ".join([self.strategy.name, *map(str, self.variant.values())])

    @property
    def file_name(self) -> str:
        return re.sub(r"[^\w.=-]+", "-", self.label)

    @property
    def is_eager(self) -> bool:
        return self.strategy.as_is


EAGER = parse("eager")
# A target that does its own compiling, and the same with that switched off.
AS_WRITTEN = (
    StrategySpec(EAGER, as_written=True),
    StrategySpec(Strategy("as-written", "full"), as_written=True),
)


@dataclass(frozen=True)
class Plan:
    """What to measure, and how long."""

    target: Target
    specs: tuple[StrategySpec, ...]
    by_default: bool = False  # the user named no arms
    shapes: tuple[Mapping[str, int], ...] = ({},)  # {"batch": 4}: gone through in order
    train: bool = False
    device: str | None = None
    size: str | None = None
    seconds: float = stats.REPEATS * stats.ROUNDS * stats.ROUND_MS / 1e3
    repeats: int = stats.REPEATS
    profiles: bool = False  # keep traces of every arm
    diagnoses: bool = False  # take what was compiled apart, explain wrong answers
    compile_with: Mapping[str, Any] = field(default_factory=dict, hash=False)
    timeout_s: float | None = None
    quiet: bool = False
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    def job(self, spec: StrategySpec, shape: Mapping[str, int]) -> dict[str, Any]:
        """What the child process is told."""
        return {
            "target": dataclasses.asdict(self.target),
            "train": self.train,
            "device": self.device,
            "size": self.size,
            "dtype": spec.dtype,
            "guards": spec.guards,
            "strategy": spec.strategy.to_json(),
            "as_written": spec.as_written,
            "anatomy": self.diagnoses,
            "compile": dict(self.compile_with),
            **shape,
        }


@dataclass(frozen=True)
class MeasureResult:
    """The measurements, and how the measuring ended."""

    rows: tuple[Measurement, ...]
    environment: Mapping[str, Any]
    ending: str = "finished"
    apart: bool = False  # the arms did not fit in memory beside each other
    events: tuple[Event, ...] = ()  # why answers differ
    anatomy: Mapping[str, Any] | None = None  # of the first arm that compiles
    function: Frame | None = None  # the target's own
    exit_code: int | None = None  # of a script
    error: str | None = None  # one line: why a script did not run to its end


def switches() -> dict[str, Any]:
    """Inductor's switches and their values, asked of a process that imports it."""
    from torchproof.measure.worker_process import WorkerError, WorkerProcess

    process = WorkerProcess({"strategy": EAGER.to_json()}, {}, quiet=True)
    try:
        return dict(process.ask("switches", None)["switches"])
    except WorkerError as error:
        raise UserError(f"Inductor cannot be asked for its switches: {error}") from None
    finally:
        process.close()


def measure(plan: Plan, keep: Path, progress: Progress) -> MeasureResult:
    """Measures all arms of a plan; what an interruption left is kept.

    Traces, where the plan wants them, are left in the folder `keep`.
    """
    from torchproof.measure import script_bench
    from torchproof.measure.session import Session

    if plan.target.kind == "script":
        return script_bench.measure(plan, progress)
    return Session(plan, keep, progress).run()
