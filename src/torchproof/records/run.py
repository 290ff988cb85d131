"""The frozen records of torchproof (run, finding, event, measurement) and their JSON.

Records do not depend on torch: they pickle, compare, and convert to JSON and back. In
saved records, `other` keeps fields that a newer torchproof wrote.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchproof.records.printable import seen

SCHEMA = 1

Severity = Literal["high", "medium", "low"]
Status = Literal["open", "resolved", "intentional"]
Owner = Literal["user", "library"]

SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")

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
    "config": "Configuration",
    "hazard": "Configuration",
}


class UserError(Exception):
    """An error that the user can fix: one line with the problem and the next step."""

    def __str__(self) -> str:
        return one_line(super().__str__())


def one_line(text: str, limit: int = 600) -> str:
    """Text that may quote a long error, shortened to one line."""
    words = seen(" ".join(text.split()))
    return words if len(words) <= limit else words[: limit - 4] + " ..."


def finite(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON lacks, by null."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(finite, value))
    unknown = isinstance(value, float) and not math.isfinite(value)
    return None if unknown else value


@dataclass(frozen=True)
class Frame:
    """One line of a Python stack; `columns` is the part the traceback underlines."""

    file: str
    line: int
    function: str
    code: str = ""
    columns: tuple[int, int] | None = None

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Frame:
        columns = tuple(plain["columns"]) if plain["columns"] else None
        return cls(**{**plain, "columns": columns})

    @property
    def expression(self) -> str:
        """The underlined part of the line, or all of it."""
        if self.columns is None:  # a whole statement: the expression it computes
            return re.sub(r"^(return |[\w.,\[\] ]+ = )(?=\S)", "", self.code)
        return self.code[slice(*self.columns)].strip() or self.code


@dataclass(frozen=True)
class Event:
    """An action of the compiler, or of the program with it.

    `frames` is the stack inside the compiled region, outermost first, and `callers` the
    stack above it; `function` is the code object that was being compiled, and `call`
    the index of the call it happened in, None if unknown.
    """

    kind: str
    compile_id: str | None = None
    frames: tuple[Frame, ...] = ()
    function: Frame | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    call: int | None = None
    callers: tuple[Frame, ...] = ()

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Event:
        """From the output of `dataclasses.asdict` in another process."""
        frames = tuple(map(Frame.from_json, plain["frames"]))
        callers = tuple(map(Frame.from_json, plain["callers"]))
        function = plain["function"] and Frame.from_json(plain["function"])
        stacks = {"frames": frames, "callers": callers, "function": function}
        return cls(**{**plain, **stacks})


@dataclass(frozen=True)
class Observation:
    """The result of one run of a target. Counts that were not observed are None."""

    events: tuple[Event, ...]
    environment: Mapping[str, Any]
    calls: int | None = None
    compiled_calls: int | None = None
    ending: str = "finished"  # finished, timeout, interrupted, crashed
    exit_code: int | None = None
    error: str | None = None  # one line: why the target itself could not run
    # What Dynamo traced: file -> qualified function -> lines; None where not observed.
    traced: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None
    # What was compiled, and what its calls may run: file -> qualified functions.
    compiled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A rule at a place, with evidence."""

    code: str
    kind: str
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
    cost_us: float | None = None  # None: not measured. Never 0 for unknown.
    status: Status = "open"
    evidence: tuple[str, ...] = ()
    column: int | None = None
    end_column: int | None = None
    source: str | None = None
    context: tuple[str, ...] = ()  # the lines around it
    context_from: int | None = None  # the number of the first of them
    suspects: str | None = None  # of a hazard: the kind it is if a run shows it
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def category(self) -> str:
        return CATEGORIES[self.kind]

    @property
    def identity(self) -> str:
        """A hash that stays the same after edits elsewhere: no line, count or value.

        It excludes the kind, since a hazard and its observation are one finding.
        """
        # Imported here because programs that only compile do not need it.
        from torchproof.records.identity import identity

        return identity(self.code, self.file, self.function, self.cause)

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            if item.name != "other":
                plain[item.name] = getattr(self, item.name)
            if item.name == "kind":
                plain["category"] = self.category
        plain["evidence"], plain["context"] = list(self.evidence), list(self.context)
        plain["identity"] = self.identity
        return plain | dict(self.other)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Finding:
        values, other = _sorted_out(cls, plain)
        for derived in ("category", "identity"):
            other.pop(derived, None)
        for name in ("evidence", "context"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values, other=other)


@dataclass(frozen=True)
class CompileSite:
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
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        plain = {k: v for k, v in vars(self).items() if k != "other"}
        return plain | dict(self.other)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> CompileSite:
        values, other = _sorted_out(cls, plain)
        return cls(**values, other=other)


# Fields of a measurement with another name in older saved runs.
OLDER_NAMES = {"sittings": "repeats"}


@dataclass(frozen=True)
class Measurement:
    """The measurements of a strategy; `variant` names other differences (batch...).

    Times are per call. `rounds_ms` are the samples in the rounds they were taken in;
    round i of all strategies was taken side by side. What was not measured is None.
    """

    strategy: str
    variant: Mapping[str, Any] = field(default_factory=dict, hash=False)
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    samples: int | None = None
    outliers: int | None = None
    p95_ms: float | None = None
    rounds_ms: tuple[tuple[float, ...], ...] = ()
    repeats: tuple[int, ...] = ()  # number of rounds in each process
    luck: float | None = None  # relative variation between processes of the same code
    first_call_s: float | None = None
    start: Mapping[str, Any] | None = field(default=None, hash=False)
    warm_start: Mapping[str, Any] | None = field(default=None, hash=False)
    compile_s: Mapping[str, float] | None = field(default=None, hash=False)
    peak_bytes: int | None = None
    memory: Mapping[str, int | None] | None = field(default=None, hash=False)
    numerics: Mapping[str, Any] | None = field(default=None, hash=False)
    vs_eager: float | None = None
    vs_eager_low: float | None = None
    vs_eager_high: float | None = None
    verdict: str = ""
    break_even: str | None = None
    break_even_steps: int | None = None
    throughput: float | None = None
    unit: str | None = None
    counts: Mapping[str, int | None] | None = field(default=None, hash=False)
    guards: Mapping[str, Any] | None = field(default=None, hash=False)
    kernels: Mapping[str, Any] | None = field(default=None, hash=False)
    notes: tuple[str, ...] = ()
    error: str | None = None
    source: str = ""
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        plain = {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if item.name != "other"
        }
        plain["rounds_ms"] = [list(samples) for samples in self.rounds_ms]
        plain["repeats"], plain["notes"] = list(self.repeats), list(self.notes)
        return plain | dict(self.other)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Measurement:
        for older, name in OLDER_NAMES.items():
            if older in plain:
                renamed = {k: v for k, v in plain.items() if k != older}
                plain = {name: plain[older], **renamed}
        values, other = _sorted_out(cls, plain)
        rounds = values.get("rounds_ms", ())
        values["rounds_ms"] = tuple(tuple(map(float, each)) for each in rounds)
        for name in ("repeats", "notes"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values, other=other)


@dataclass(frozen=True)
class Part:
    """One part of a verb's work: passed, found, skipped or failed, with why."""

    status: Literal["passed", "found", "skipped", "failed"]
    why: str = ""
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status, "why": self.why} | dict(self.other)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Part:
        values, other = _sorted_out(cls, plain)
        return cls(**values, other=other)


@dataclass(frozen=True)
class Run:
    """The saved record of one verb on one target."""

    id: str
    target: str
    strategy: str
    environment: Mapping[str, Any]
    counts: Mapping[str, int | None]
    findings: tuple[Finding, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    parts: Mapping[str, Part] = field(default_factory=dict)
    configuration: tuple[CompileSite, ...] = ()
    baseline: Mapping[str, Any] | None = None  # the earlier run, in short
    options: Mapping[str, Any] = field(default_factory=dict)  # of a check
    tuning: Mapping[str, Any] | None = None  # of a search: trials, and what was chosen
    verb: str = "check"
    command: str = ""
    started: str = ""
    ending: str = "finished"
    exit_code: int | None = None
    error: str | None = None
    other: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"schema": SCHEMA}
        for item in dataclasses.fields(self):
            if item.name != "other":
                plain[item.name] = getattr(self, item.name)
        plain["environment"] = dict(self.environment)
        plain["counts"] = dict(self.counts)
        plain["findings"] = [finding.to_json() for finding in self.findings]
        plain["measurements"] = [row.to_json() for row in self.measurements]
        plain["parts"] = {name: part.to_json() for name, part in self.parts.items()}
        plain["configuration"] = [site.to_json() for site in self.configuration]
        return {name: finite(v) for name, v in (plain | dict(self.other)).items()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Run:
        """From JSON that `schema.check_run` accepts."""
        values, other = _sorted_out(cls, plain)
        other.pop("schema", None)
        parts = {k: Part.from_json(v) for k, v in plain.get("parts", {}).items()}
        sites = tuple(map(CompileSite.from_json, plain.get("configuration", ())))
        values |= {"parts": parts, "configuration": sites}
        values["findings"] = tuple(map(Finding.from_json, plain.get("findings", ())))
        rows = tuple(map(Measurement.from_json, plain.get("measurements", ())))
        return cls(**(values | {"measurements": rows}), other=other)


def _sorted_out(
    cls: type, plain: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that a record has, and those that a newer torchproof added."""
    fields = {f.name for f in dataclasses.fields(cls)} - {"other"}
    return (
        {key: value for key, value in plain.items() if key in fields},
        {key: value for key, value in plain.items() if key not in fields},
    )
