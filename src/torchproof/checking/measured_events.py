"""The events of the parts of a check that measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchproof.observe import Gap, GraphLines
from torchproof.records import Event


@dataclass(frozen=True, kw_only=True)
class TimingEvent(Event):
    """Eager and compiled calls were timed side by side, well enough to compare."""

    eager_ms: float
    compiled_ms: float
    ratio: float  # eager's time over that of compiled calls
    low: float  # of the interval of the ratio
    high: float
    first_call_s: float | None = None
    overhead_us: float | None = None  # of a call, outside its only graph
    gaps: tuple[Gap, ...] = ()
    graphs: int | None = None
    recompiles_in_steps: int | None = None

    @property
    def loss_us(self) -> float:
        """How much longer a compiled call takes."""
        return (self.compiled_ms - self.eager_ms) * 1e3

    @property
    def gaps_us(self) -> float:
        """What the breaks of a call take."""
        return sum(gap.us for gap in self.gaps)


@dataclass(frozen=True, kw_only=True)
class MemoryEvent(Event):
    """The most device memory that eager and a strategy needed."""

    strategy: str
    eager_bytes: int
    compiled_bytes: int


@dataclass(frozen=True, kw_only=True)
class GraphLinesEvent(Event):
    """The lines that a graph was traced from, and the time of a call in eager."""

    graph: GraphLines
    eager_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class SweepEvent(Event):
    """The recompiles for each size of a dimension, in the order of the calls."""

    dimension: str
    recompiles: Mapping[int, int]

    @property
    def again(self) -> dict[int, int]:
        """Those for other sizes than the first."""
        return {value: n for value, n in [*self.recompiles.items()][1:] if n}

    @property
    def storm(self) -> list[int]:
        """The sizes behind them. Torch always compiles 0 and 1 separately."""
        return [value for value in self.again if value not in (0, 1)]


@dataclass(frozen=True, kw_only=True)
class LatencyEvent(Event):
    """The first calls of full and regional compilation."""

    full_s: float
    regional_s: float
    shared: bool  # equal blocks shared one compiled graph
    blocks: int
    block_class: str


@dataclass(frozen=True, kw_only=True)
class GuardCostEvent(Event):
    """The time that a call spends on guards."""

    guards: int | None
    lookup_us: float
    share: float  # of a call
