"""Defines what to measure, and the result of measuring it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchproof.observe import BreakCosts
from torchproof.records import (
    Event,
    Frame,
    Keywords,
    Measurement,
    RaisedError,
    Record,
    UserError,
    shapes,
    stats,
)
from torchproof.strategies import Strategy, parse, with_arguments
from torchproof.targets import Job, Target

Progress = Callable[[str], None]


def strategy_named(name: str, compile_arguments: Keywords) -> Strategy:
    """Parses a strategy and adds the user's arguments for `torch.compile`."""
    strategy = parse(name)
    return (
        with_arguments(strategy, **compile_arguments) if compile_arguments else strategy
    )


@dataclass(frozen=True)
class StrategySpec:
    """A strategy to measure, with the variant that sets it apart from other specs."""

    strategy: Strategy
    variant: shapes.Values = field(default_factory=dict, hash=False)
    dtype: str | None = None
    guards: str | None = None  # a method of `guard_filters`
    as_written: bool = False  # the target calls torch.compile; disabled for eager
    cuda_only: bool = False

    @property
    def label(self) -> str:
        """The name in progress lines, such as `full, max_autotune=True`."""
        return ", ".join([self.strategy.name, *map(str, self.variant.values())])

    @property
    def file_name(self) -> str:
        return re.sub(r"[^\w.=-]+", "-", self.label)

    @property
    def is_eager(self) -> bool:
        return self.strategy.as_is


EAGER = parse("eager")
# A target that calls torch.compile itself: first with compilation disabled, then as is.
AS_WRITTEN = (
    StrategySpec(EAGER, as_written=True),
    StrategySpec(Strategy("as-written", "full"), as_written=True),
)


@dataclass(frozen=True)
class StrategyJob(Record):
    """What a strategy worker has to measure; some commands need no target."""

    strategy: Strategy
    run: Job | None = None
    guards: str | None = None  # a method of `guard_filters`
    break_costs: bool = False  # measure what breaks cost
    compared_elements: int | None = None  # of each tensor
    ranks: int | None = None  # how many processes run it; None: one, without a group


@dataclass(frozen=True)
class Plan:
    """What to measure, and for how long."""

    target: Target
    specs: tuple[StrategySpec, ...]
    by_default: bool = False  # the user named no strategies
    shapes: tuple[Mapping[str, int], ...] = ({},)  # {"batch": 4}; measured in order
    train: bool = False
    device: str | None = None
    size: str | None = None
    seconds: float = stats.REPEATS * stats.ROUNDS * stats.ROUND_MS / 1e3
    repeats: int = stats.REPEATS
    first_calls: bool = True  # time them; if not, the strategies compile at once
    profiles: bool = False  # save a trace of every strategy
    diagnoses: bool = False  # analyse breaks and wrong outputs
    compile_with: Keywords = field(default_factory=dict, hash=False)
    timeout_s: float | None = None
    quiet: bool = False
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    ranks: int | None = None  # each strategy runs on so many; None: in one process
    wrap: str | None = None  # on several ranks: what wraps the model

    def job(self, spec: StrategySpec, shape: Mapping[str, int]) -> StrategyJob:
        """Returns the job for the worker process."""
        run = Job(
            self.target,
            train=self.train,
            device=self.device,
            size=self.size,
            dtype=spec.dtype,
            shape=shape,
            compile=self.compile_with,
            as_written=spec.as_written,
            wrap=self.wrap,
        )
        return StrategyJob(
            spec.strategy,
            run,
            guards=spec.guards,
            break_costs=self.diagnoses,
            ranks=self.ranks,
        )


@dataclass(frozen=True)
class MeasureResult:
    """The measurements, and how measuring ended."""

    rows: tuple[Measurement, ...]
    environment: shapes.Environment
    ending: str = "finished"
    apart: bool = False  # the strategies did not all fit in memory at once
    events: tuple[Event, ...] = ()  # why outputs differ
    break_costs: BreakCosts | None = None  # of the first compiled strategy
    function: Frame | None = None  # where the target is defined
    # The exceptions of strategies that failed, by name.
    raised: Mapping[str, RaisedError] = field(default_factory=dict)
    exit_code: int | None = None  # of a script target
    error: str | None = None  # one line: why a script stopped early


def assert_on_ranks(target: Target, ranks: int | None, wrap: str | None) -> None:
    """Raises `UserError` for what cannot be measured on several ranks."""
    if ranks is None:
        if wrap is not None:
            raise UserError("--wrap is for several ranks: add --ranks N")
        return
    if ranks < 1:
        raise UserError(f"--ranks {ranks}: at least one rank is needed")
    if target.kind not in ("workload", "factory"):
        raise UserError(
            f"{target.text} is a {target.form}: it can only be measured on several"
            " ranks as a workload or a factory; torchproof check --ranks observes"
            " a script"
        )
