"""The frozen records of torchproof: run, finding, event, measurement, search.

Records do not depend on torch: they pickle, compare, and convert to JSON and back. In
saved records, `other` keeps fields that a newer torchproof wrote.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from torchproof.records import printable, shapes
from torchproof.records.fixes import Fix, Mark, Remedy
from torchproof.records.frame import Frame as Frame
from torchproof.records.frame import Owner as Owner
from torchproof.records.mappings import JsonObject
from torchproof.records.schema import Integer, Number, Record, Samples
from torchproof.records.severity import Severity
from torchproof.records.symptom import Symptom as Symptom
from torchproof.records.symptom import page_of_older, symptom_of_older
from torchproof.records.tuning import EAGER, RIGHT, Tuning
from torchproof.records.user_error import UserError as UserError
from torchproof.records.user_error import one_line as one_line

if TYPE_CHECKING:
    from torchproof.records.load_test import LoadTest
    from torchproof.records.ranks import RankRun

SCHEMA = 1
Status = Literal["open", "resolved", "intentional"]
Certainty = Literal["verified", "likely"]
# Whether outputs were compared with eager's: `reference` is eager itself.
Verification = Literal["reference", "verified", "unverified", "wrong"]
# What the interval of a median covers. Processes with the same code differ by more than
# the rounds of one, so only an interval over processes can be expected to repeat.
IntervalOver = Literal["processes", "rounds"]
# What two runs did differently, so that they do not compare.
Difference = Literal["target", "calls", "device", "settings"]

# The counts of every run, in this order; None if no part observed them.
COUNTS = (
    "calls",
    "compiled_calls",
    "graphs",
    "graph_breaks",
    "skipped_frames",
    "recompiles",
    "cudagraph_skips",
    "cudagraph_recordings",
    "cudagraph_replays",
    "cudagraph_pool_bytes",
    "cudagraph_kernel_share",
)

CATEGORIES: dict[str, str] = {
    "graph_break": "Graph breaks",
    "skipped_frame": "Graph breaks",
    "no_op": "Graph breaks",
    "compile_error": "Graph breaks",
    "host_sync": "Graph breaks",
    "recompile": "Recompilation",
    "recompile_limit": "Recompilation",
    "specialization": "Dynamic shape",
    "cudagraph_skip": "CUDA graphs",
    "cudagraph_lifetime": "CUDA graphs",
    "cudagraph_rerecord": "CUDA graphs",
    "numerics": "Correctness",
    "stale_state": "Correctness",
    "slowdown": "Performance",
    "compile_time": "Performance",
    "memory": "Performance",
    "latency": "Performance",
    "rank_difference": "Performance",
    "config": "Configuration",
    "hazard": "Configuration",
}


_KIND = Literal[tuple(CATEGORIES)]  # type: ignore[valid-type]


@dataclass(frozen=True)
class Finding(Record):
    """A rule at a place, with evidence."""

    derived = ("category", "identity")

    code: str
    kind: Annotated[str, _KIND]
    severity: Severity
    message: str
    cause: str
    fix: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    owner: Owner | None = None
    origin: Literal["static", "dynamic", "both"] = "dynamic"
    count: int | None = None
    steps: int | None = None
    # None: not measured, never 0. A difference of two times, so it may be negative.
    cost_us: Annotated[float | None, Number | None] = None
    status: Status = "open"
    evidence: tuple[str, ...] = ()
    column: int | None = None
    end_column: int | None = None
    source: str | None = None
    context: tuple[str, ...] = ()  # the lines around it
    context_from: int | None = None  # the number of the first of them
    suspects: str | None = None  # of a hazard: the kind it is if a run shows it
    marks: tuple[Mark, ...] = ()  # sizes of arguments whose marks may cure it
    remedy: Remedy | None = None  # what removes it, as data; None: not known as data
    # Identities of the findings that explain this one, and of those it explains.
    cause_of: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    because: str | None = None  # of a consequence: how it follows from its causes
    # That it disappears with its causes; `verified` in runs of older versions only.
    certainty: Certainty | None = None
    ranks: tuple[int, ...] = ()  # of a run with several: those that it occurred on
    step: int | None = None  # of a rank: the first step it occurred in
    waited_s: float | None = None  # how long other ranks waited because of it
    # Compiled functions and modules whose own code runs eagerly because of it.
    stops: tuple[str, ...] = ()
    key: str = ""  # what the rule found in the function, without names and values
    page: str | None = None  # torch's own page about it, beside the rule's reference
    symptom: Symptom | None = None  # None: a repro needs no more than the kind
    other: JsonObject = field(default_factory=dict, hash=False)

    @classmethod
    def upgraded(cls, values: JsonObject, plain: JsonObject) -> None:
        """Keeps the identity of a record without a key: others refer to it.

        A symptom, and torch's page, are in the texts of an older record.
        """
        if "key" not in plain and isinstance(plain.get("identity"), str):
            from torchproof.records.identity import recorded

            values["key"] = recorded(plain["identity"])
        if "symptom" not in plain:
            values["symptom"] = symptom_of_older(values)
        if "page" not in plain:
            values["page"] = page_of_older(values)

    @property
    def is_suspicion(self) -> bool:
        """Whether only the source suggests it, and no run has confirmed it."""
        return self.kind == "hazard" and self.origin == "static"

    @property
    def category(self) -> str:
        return CATEGORIES[self.kind]

    @functools.cached_property
    def identity(self) -> str:
        """A hash of code, file, function and key: no line, count, value or text.

        It excludes the kind, since a hazard and its observation are one finding.
        """
        # Imported here because programs that only compile do not need it.
        from torchproof.records.identity import identity

        return identity(self.code, self.file, self.function, self.key)


@dataclass(frozen=True)
class RuleText(Record):
    """What a rule says about all its findings, saved with a run that has one.

    So a saved run is shown as the version of torchproof that wrote it would show it.
    `text` is the page that `torchproof rule` prints, in Markdown.
    """

    name: str
    kind: str
    summary: str
    text: str
    reference: str  # PyTorch's page about it
    parts: tuple[str, ...] = ("breaks",)  # the parts of a check that show it
    has_edits: bool = False  # whether `fix` has edits or settings to try
    other: JsonObject = field(default_factory=dict, hash=False)

    @property
    def link(self) -> str | None:
        """The reference as a link; a damaged run may have anything there."""
        return self.reference if self.reference.startswith("https://") else None

    def section(self, name: str) -> str:
        """A section of the page, without its heading and indentation."""
        _, _, rest = f"{self.text}\n".partition(f"\n## {name}\n")
        return textwrap.dedent(rest.partition("\n## ")[0]).strip("\n")


@dataclass(frozen=True)
class CompileSite(Record):
    """A call of torch.compile in the source.

    Arguments are source text; an absent argument is None. `order` is "before" or
    "after" wrapping with DDP or FSDP, or None without them.
    """

    file: str
    line: int
    end_line: int
    function: str | None
    subject: str  # what is compiled
    backend: str | None = None
    mode: str | None = None
    dynamic: str | None = None
    fullgraph: str | None = None
    options: str | None = None
    order: str | None = None
    observation: str = ""
    calls: int | None = None  # calls of the compiled callable, if it ran
    source: str | None = None
    other: JsonObject = field(default_factory=dict, hash=False)


# What only a measurement with right outputs has.
_OF_VERIFIED = (
    "vs_eager",
    "vs_eager_low",
    "vs_eager_high",
    "median_ratio",
    "break_even",
    "break_even_steps",
)


class Verdict(StrEnum):
    """The verdicts on a measurement that are no factor: of others it is a text."""

    REFERENCE = "reference"  # eager itself
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_MEASURED = "not measured"
    FELL_BACK = "fell back"  # its CUDA graph did not replay
    WRONG = "wrong"
    UNVERIFIED = "unverified"
    NO_EAGER = "no eager to compare with"
    NOT_SIGNIFICANT = "not significant"  # the difference to eager


# How a strategy ended: this stays, whatever is known of its outputs.
_ENDED = (
    Verdict.FAILED,
    Verdict.SKIPPED,
    Verdict.FELL_BACK,
    Verdict.NOT_MEASURED,
)


@dataclass(frozen=True)
class RankTime(Record):
    """The time of one of several ranks, for the same calls as the others'."""

    rank: int
    median_ms: float
    slowest: float  # the share of passes in which no rank took longer


@dataclass(frozen=True)
class Measurement(Record):
    """The measurements of a strategy; `variant` names other differences (batch...).

    Times are per call. `rounds_ms` are the samples in the rounds they were taken in;
    round i of all strategies was taken side by side. What was not measured is None.

    Without a verdict on its outputs, or with a wrong one, a measurement has no ratio,
    no break-even and no verdict on its speed, whoever made it or saved it.
    """

    older_names: ClassVar = {"sittings": "repeats"}
    derived = ("verification", "processes")

    strategy: str
    variant: shapes.Values = field(default_factory=dict, hash=False)
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    samples: int | None = None
    outliers: int | None = None
    p95_ms: float | None = None
    rounds_ms: Annotated[tuple[tuple[float, ...], ...], tuple[Samples, ...]] = ()
    # Evenly spaced order statistics of all samples of each round, for the tail.
    tail_rounds_ms: Annotated[tuple[tuple[float, ...], ...], tuple[Samples, ...]] = ()
    tail: shapes.Tail | None = field(default=None, hash=False)
    repeats: tuple[int, ...] = ()  # number of rounds in each process
    interval_over: Annotated[IntervalOver | None, str | None] = None
    # Relative variation between processes of the same code that intervals assume.
    luck: float | None = None
    first_call_s: float | None = None
    start: shapes.Start | None = field(default=None, hash=False)
    warm_start: shapes.Start | None = field(default=None, hash=False)
    compile_s: Mapping[str, float] | None = field(default=None, hash=False)
    peak_bytes: int | None = None
    memory: Mapping[str, int | None] | None = field(default=None, hash=False)
    numerics: shapes.Numerics | None = field(default=None, hash=False)
    vs_eager: float | None = None
    vs_eager_low: float | None = None
    vs_eager_high: float | None = None
    # Eager's median over this one's; `vs_eager` is of rounds taken side by side.
    median_ratio: float | None = None
    verdict: str = ""
    break_even: str | None = None
    break_even_steps: int | None = None
    throughput: float | None = None
    unit: str | None = None
    counts: shapes.Counts | None = field(default=None, hash=False)
    guards: shapes.Guards | None = field(default=None, hash=False)
    kernels: shapes.Kernels | None = field(default=None, hash=False)
    mfu: float | None = None  # model FLOPs utilisation, a share of the device's peak
    flops: shapes.Flops | None = field(default=None, hash=False)
    energy: JsonObject | None = field(default=None, hash=False)  # of older runs
    ranks: tuple[RankTime, ...] = ()  # of several; the times above are the slowest's
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()  # those notes that say how to measure better
    fell_back: tuple[str, ...] = ()  # why a CUDA graph did not replay
    error: str | None = None
    source: str = ""
    other: JsonObject = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.verification in ("unverified", "wrong"):
            for name in _OF_VERIFIED:
                object.__setattr__(self, name, None)
            if self.verdict and self.verdict not in _ENDED:
                object.__setattr__(self, "verdict", self.verification)

    @property
    def verification(self) -> Verification:
        """Whether its outputs were compared with eager's, and were right."""
        verdict = (self.numerics or {}).get("verdict")
        if "wrong" in (verdict, self.verdict):
            return "wrong"
        if self.strategy == EAGER:
            return "reference"
        if self.verdict in ("unverified", "not verified"):  # the second in older runs
            return "unverified"
        return "verified" if verdict in RIGHT else "unverified"

    @property
    def is_unverified(self) -> bool:
        """Whether it has times, and nothing is known of its outputs."""
        timed = self.median_ms is not None and not self.error
        claims = self.verdict in ("", "unverified")
        return timed and claims and self.verification == "unverified"

    @property
    def why_unverified(self) -> str:
        why: str | None = (self.numerics or {}).get("why")
        return why or "its outputs were not compared with eager's"

    @property
    def processes(self) -> int | None:
        """The number of processes that were timed, one after the other."""
        return len(self.repeats) or None


# What limits a part: only a higher effort runs it, a flag leaves it out, the target is
# an object of this process, a file could not be read.
PartLimit = Literal["effort", "flag", "process", "unreadable"]
_OLDER_LIMITS: dict[PartLimit, str] = {
    "effort": "not part of --effort",
    "flag": "left out with --skip",
    "process": "in this process, because ",
    "unreadable": "not understood",
}


@dataclass(frozen=True)
class Part(Record):
    """One part of a verb's work: passed, found, skipped or failed, with why."""

    status: Literal["passed", "found", "skipped", "failed"]
    why: str = ""
    seconds: float | None = None  # what it took; None: not measured
    limit: PartLimit | None = None
    other: JsonObject = field(default_factory=dict, hash=False)

    @classmethod
    def upgraded(cls, values: dict[str, Any], plain: JsonObject) -> None:
        """Older records say in words what limits a part."""
        why = str(plain.get("why", ""))
        if "limit" not in plain and why:
            found = (name for name, text in _OLDER_LIMITS.items() if text in why)
            values["limit"] = next(found, None)


@dataclass(frozen=True)
class PartState:
    """A part of a check that begins: its number among all, and the time left."""

    name: str
    number: int
    count: int
    left_s: float | None = None  # of the whole check; None: there is no estimate
    limit_s: float | None = None  # the part ends then at the latest


@dataclass(frozen=True)
class Baseline(Record):
    """The summary of an earlier run; its measurements have no samples."""

    id: str | None = None
    target: str | None = None
    started: str | None = None
    command: str | None = None
    counts: Annotated[Mapping[str, int | None] | None, shapes.Totals | None] = None
    environment: shapes.Environment | None = None
    measurements: tuple[Measurement, ...] | None = None
    findings: Mapping[str, int | None] | None = None  # open ones, by severity
    identities: tuple[str, ...] | None = None
    # What this run did differently: then no finding counts as resolved.
    differences: tuple[Difference, ...] = ()
    worse: tuple[str, ...] = ()  # counts that are higher now; `findings`: those to fix
    unjudged: int | None = None  # findings that are neither open nor resolved now
    other: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Fixing(Record):
    """The outcome of `fix`: what is left, and the counts with all fixes."""

    rounds: int
    proofs: int
    seconds: float
    counts: Annotated[Mapping[str, int | None], shapes.Totals]
    remaining: tuple[Finding, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)  # by identity: why
    sources: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of edited files
    edited: Mapping[str, str] = field(default_factory=dict)  # and of the proved texts
    proved_alone: bool = False  # what was written, without the fixes that were not
    other: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Run(Record):
    """The saved record of one verb on one target."""

    schema = SCHEMA
    derived = ("schema",)
    late_types: ClassVar = {
        "LoadTest": "torchproof.records.load_test",
        "RankRun": "torchproof.records.ranks",
    }

    id: str
    target: str
    strategy: str
    environment: shapes.Environment
    counts: Annotated[Mapping[str, int | None], shapes.Totals]
    findings: tuple[Finding, ...] = ()
    # The rules of the findings, by code; empty in runs of older versions.
    rules: Mapping[str, RuleText] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    parts: Mapping[str, Part] = field(default_factory=dict)
    configuration: tuple[CompileSite, ...] = ()
    baseline: Baseline | None = None  # the earlier run, in short
    options: Annotated[JsonObject, shapes.Options] = field(default_factory=dict)
    tuning: Tuning | None = None
    fixes: tuple[Fix, ...] = ()
    fixing: Fixing | None = None
    load_test: LoadTest | None = None
    ranks: RankRun | None = None  # of a run with several ranks
    verb: str = "check"
    command: str = ""
    started: str = ""
    ending: str = "finished"
    # Negative for a process that a signal killed.
    exit_code: Annotated[int | None, Integer | None] = None
    error: str | None = None
    calls: Mapping[str, int] = field(default_factory=dict)  # by their arguments' form
    other: JsonObject = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        return {"schema": SCHEMA} | super().to_json()  # it comes first in the file

    def __repr__(self) -> str:
        open_ones = sum(finding.status == "open" for finding in self.findings)
        facts = [f"{self.verb} of {self.target}"]
        facts += [f"open findings: {open_ones}"] if self.verb == "check" else []
        facts += [f"measurements: {len(self.measurements)}"] * bool(self.measurements)
        facts += [f"fixes: {len(self.fixes)}"] * bool(self.fixes)
        facts += [f"error: {self.error}"] if self.error else []
        return printable.line(f"<Run {self.id}: {', '.join(facts)}>")

    def __str__(self) -> str:
        """The report as the command line prints it, for `print(run)`."""
        return SHOWN["text"](self).rstrip() if "text" in SHOWN else repr(self)

    def _repr_html_(self) -> str | None:
        """How IPython shows the run in a notebook."""
        return SHOWN["html"](self) if "html" in SHOWN else None

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How IPython shows the run in a terminal."""
        printer.text(str(self))


# How a run is printed and shown in IPython. `api` sets it, because this package renders
# nothing.
SHOWN: dict[str, Callable[[Run], str]] = {}
