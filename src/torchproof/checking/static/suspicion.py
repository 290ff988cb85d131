"""What reading gives: suspicions that a run can show or refute, and facts."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchproof.records import CompileSite, Finding


@dataclass(frozen=True)
class Suspicion:
    """A finding that nothing has run for yet, and how a run would decide it.

    `finding` is what `--effort static` reports. A run shows it with a finding of its
    own whose code starts with one of `shown_by`, on the lines from `finding.line` to
    `last_line` (or, for what belongs to a function as a whole, in the same function).
    It refutes it by tracing those lines over at least `calls` calls without one. What
    is `certain` stands without a run.
    """

    finding: Finding
    last_line: int
    shown_by: tuple[str, ...] = ()
    calls: int = 1
    certain: bool = False
    shown_in: tuple[str, ...] = ()  # other functions of the file that a run names


@dataclass(frozen=True)
class Reading:
    """What was read, what it gave, and what could not be read and why."""

    suspicions: tuple[Suspicion, ...] = ()
    sites: tuple[CompileSite, ...] = ()
    files: int = 0
    problems: tuple[str, ...] = field(default=())  # one line each
