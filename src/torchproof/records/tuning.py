"""The records of a search: its trials, its state while it runs, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from torchproof.records import shapes
from torchproof.records.mappings import JsonObject
from torchproof.records.schema import Record

EAGER = "eager"
# Verdicts on outputs that a strategy needs to be ranked.
RIGHT = ("same", "rounding", "random")
Stage = Literal["forms", "switches", "together"]
Outcome = Literal[
    "measured",
    "wrong",
    "unverified",
    "failed",
    "timed out",
    "out of memory",
    "not applicable",
    "lost",
]


@dataclass(frozen=True)
class Trial(Record):
    """The result of a trial.

    `start_s` is the whole start: imports, the first call, and compilation in later
    calls. `cold` is False if the trial reused compiled code of other trials, or if
    others started at the same time: its first call is then not cold. `value` is what
    the objective minimises, in seconds or bytes. `plan` says what the strategy
    compiles; a resumed search needs it, and `pass_ms` and `graph_breaks`. `facts` are
    the raw values that the strategy's process reported; a run does not store them.
    """

    name: str
    stage: Annotated[Stage, str] = "forms"  # a later version may save others
    outcome: Annotated[Outcome, str] = "measured"  # here too
    why: str | None = None
    seconds: float | None = None  # duration of the trial
    limit_s: float | None = None
    step_ms: float | None = None
    first_call_s: float | None = None
    start_s: float | None = None
    cold: bool | None = None
    peak_bytes: float | None = None
    kernel_ms: float | None = None
    mfu: float | None = None
    mfu_at_least: bool = False  # some operations could not be counted
    joules_per_step: float | None = None  # of older runs
    generated_ms: float | None = None  # the part of it in kernels Inductor generated
    numerics: shapes.Numerics | None = field(default=None, hash=False)
    vs_eager: float | None = None
    vs_eager_low: float | None = None
    vs_eager_high: float | None = None
    value: float | None = None
    replays: int | None = None  # bitwise equal to those without a switch that may race
    where: str = ""
    resumed: bool = False
    final: bool = False
    source: str = ""
    pass_ms: float | None = None  # one pass over all calls
    graph_breaks: int | None = None
    plan: Annotated[JsonObject | None, Any] = field(default=None, hash=False)
    facts: JsonObject = field(default_factory=dict, hash=False, repr=False)
    other: JsonObject = field(default_factory=dict, hash=False, repr=False)

    @property
    def is_eager(self) -> bool:
        return self.name == EAGER

    def __post_init__(self) -> None:
        """A trial whose outputs were not compared has no ratio and no rank."""
        right = self.is_eager or self.verdict in RIGHT
        if self.outcome == "measured" and not right:
            object.__setattr__(self, "outcome", "unverified")
            why = self.why or "its outputs were not compared with eager's"
            object.__setattr__(self, "why", why)
        if self.outcome != "measured":
            for name in ("vs_eager", "vs_eager_low", "vs_eager_high", "value"):
                object.__setattr__(self, name, None)

    @property
    def is_ranked(self) -> bool:
        return self.outcome == "measured"

    @property
    def is_warm(self) -> bool:
        """Whether its first call is known, and was not a cold start."""
        return self.cold is False and self.first_call_s is not None

    @property
    def verdict(self) -> str | None:
        """The comparison of its outputs with eager's, in a word."""
        return (self.numerics or {}).get("verdict")

    def to_json(self) -> JsonObject:
        plain = super().to_json()
        del plain["facts"]
        return plain


@dataclass(frozen=True)
class Skip(Record):
    """A candidate that was not tried."""

    name: str
    why: str = ""


@dataclass(frozen=True)
class Tuning(Record):
    """A search: what was asked, what it tried, and what it chose."""

    objective: str = "step"
    effort: str = ""
    budget_s: float | None = None
    spent_s: float | None = None
    min_gain: float | None = None
    stopped: str = ""
    executor: str = ""
    key: str = ""  # of the target, its code and the machine: --resume compares it
    resumed: int = 0  # trials of an earlier search
    probe: shapes.Probe = field(default_factory=shapes.Probe, hash=False)
    trials: tuple[Trial, ...] = ()
    skipped: tuple[Skip, ...] = ()
    chosen: str | None = None
    why: str | None = None
    recipe: Annotated[JsonObject | None, shapes.Recipe | None] = field(
        default=None, hash=False
    )
    recipe_file: str | None = None
    other: JsonObject = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """A saved search may have chosen a trial that has no rank."""
        unranked = {trial.name: trial for trial in self.trials if not trial.is_ranked}
        if trial := unranked.get(self.chosen or ""):
            why = f"{trial.name} was chosen, but is {trial.outcome}: {trial.why}"
            for name, value in (("chosen", None), ("why", why), ("recipe", None)):
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class SearchState:
    """A search while it runs; `left` counts the candidates that wait."""

    trials: tuple[Trial, ...] = ()
    running: tuple[str, ...] = ()
    left: int = 0
    time_left_s: float = 0.0
    objective: str = "step"
