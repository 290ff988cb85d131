"""A run in words: what every report says about it in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from torchproof.records import (
    SEVERITIES,
    CompileSite,
    Finding,
    Fix,
    Run,
    cells,
    one_line,
)
from torchproof.report import numbers

# The counts that `captured` tells; reports show the others in a table or a line.
NAMES = ("recordings", "replays", "pool_bytes", "kernel_share")
TOLD = tuple(f"cudagraph_{name}" for name in NAMES)
_SHORT_S = 5.0  # shorter checks do not say where their time went
_HOME = Path(__file__).parents[2].as_posix() + "/"  # the parent of the package


def captured(run: Run) -> str:
    """The CUDA graphs; empty if they were not observed, or there were none."""
    recorded, replayed, pool, share = (run.counts.get(name) for name in TOLD)
    skipped = run.counts.get("cudagraph_skips")
    if recorded is None or not (recorded or replayed or skipped):
        return ""
    text = f"CUDA graphs: {recorded} recorded, {numbers.amount(replayed, 'replay')},"
    text += f" {numbers.amount(skipped, 'skip')}, {numbers.size(pool)} of memory"
    if share is None:
        return text
    return f"{text}; they launch {share:.0%} of a call's kernels"


def incomplete(run: Run) -> str:
    """Why the run did not finish; empty if it did."""
    if run.error or run.ending != "finished":
        return run.error or f"the run ended early ({run.ending})"
    return ""


def failed_parts(run: Run) -> list[str]:
    """Each part that failed, with the reason, unless `incomplete` tells it."""
    shown = {run.error, f"ended by {run.ending}"} if incomplete(run) else set()
    return [
        f"part {name} failed: {part.why or 'no reason was recorded'}"
        for name, part in run.parts.items()
        if part.status == "failed" and one_line(part.why) not in shown
    ]


def failures(run: Run) -> list[str]:
    """Why the run did not finish, and which parts failed: what every format shows."""
    return [*filter(None, [incomplete(run)]), *failed_parts(run)]


def measured_ranks(run: Run) -> str:
    """`2 ranks, ddp`; empty if the run measured one process."""
    facts = run.environment
    if facts.get("ranks") is None:
        return ""
    text = numbers.amount(facts["ranks"], "rank")
    return f"{text}, {facts['wrap']}" if facts.get("wrap") else text


def call_time(run: Run) -> str:
    """The time of a call, eager and compiled; empty if it was not measured."""
    rows = [row for row in run.measurements if not row.variant and row.median_ms]
    if [row.strategy for row in rows[:1]] != ["eager"] or len(rows) < 2:
        return ""
    eager, compiled = rows[:2]
    text = f"a call takes {numbers.milliseconds(eager.median_ms)} eager,"
    text += f" {numbers.milliseconds(compiled.median_ms)} compiled"
    text += f" ({compiled.verdict})" if compiled.verdict else ""
    if compiled.first_call_s is not None:
        text += f"; first compiled call {numbers.seconds(compiled.first_call_s)}"
    same = (compiled.numerics or {}).get("verdict")
    return text + (f"; outputs: {same}" if same else "")


def by_severity(findings: Iterable[Finding]) -> dict[str, int]:
    counts = Counter(finding.severity for finding in findings)
    return {severity: counts[severity] for severity in SEVERITIES}


def severities(findings: Iterable[Finding]) -> str:
    """`1 high, 2 low`."""
    counts = by_severity(findings).items()
    return ", ".join(f"{count} {severity}" for severity, count in counts if count)


def place(finding: Finding | Fix | CompileSite) -> str:
    """`file.py:42` without the directories above a package, or `In [3], line 7`."""
    if finding.file is None:
        return numbers.UNKNOWN
    file = finding.file.removeprefix(_HOME).rpartition("/site-packages/")[2]
    return cells.place(file, finding.line)


def tone(low: float | None, high: float | None) -> str:
    """Whether the interval of a ratio to eager lies above or below 1."""
    if low is not None and low > 1:
        return "faster"
    return "slower" if high is not None and high < 1 else "level"


def time_spent(run: Run) -> str | None:
    """Where the time of a check went, by part; None if it was short or only watched."""
    spent = {name: part.seconds for name, part in run.parts.items() if part.seconds}
    total = sum(spent.values())
    if total < _SHORT_S or not spent.keys() - {"static", "breaks"}:
        return None
    each = ", ".join(
        f"{name} {seconds:.0f} s" for name, seconds in spent.items() if seconds >= 0.5
    )
    return f"Took {total:.0f} s: {each}."
