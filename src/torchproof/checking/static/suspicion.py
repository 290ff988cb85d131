"""The records that reading source returns: suspicions and compile sites."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchproof.records import CompileSite, Finding


@dataclass(frozen=True)
class Suspicion:
    """A finding that no run has confirmed yet, and how a run would decide it.

    `finding` is what `--effort static` reports. A run confirms it with a finding whose
    code starts with one of `shown_by`, on the lines from `finding.line` to `last_line`
    (for kinds that belong to a whole function: in the same function). A run refutes it
    by tracing those lines for at least `calls` calls without such a finding. A
    `certain` suspicion needs no run.
    """

    finding: Finding
    last_line: int
    shown_by: tuple[str, ...] = ()
    calls: int = 1
    certain: bool = False
    shown_in: tuple[str, ...] = ()  # other functions where a run may report it


@dataclass(frozen=True)
class Reading:
    """The suspicions and compile sites of the files, and the files with problems."""

    suspicions: tuple[Suspicion, ...] = ()
    sites: tuple[CompileSite, ...] = ()
    files: int = 0
    problems: tuple[str, ...] = field(default=())  # one line each
