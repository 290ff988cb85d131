"""Finds the previous run of a target, and the findings resolved since."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from torchproof.records import SEVERITIES, Baseline, Finding, Run, UserError, store

_MOST_READ = 50  # saved runs that `latest` reads at most
# Options that change the findings of the same code.
_SAME = (
    "arguments",
    "as_written",
    "compile",
    "device",
    "ranks",
    "size",
    "train",
    "wrap",
    "session",
)
_Key = tuple[str, str | None, str]


def latest(this: Run, name: str, root: Path = store.RUNS) -> Run | None:
    """The latest complete check of the same target with the same options, if any.

    `name` is the short name of the target, which is part of the ids of its runs.
    """
    named = re.compile(rf"\d+-\d+-{re.escape(name)}(-\d+)?")
    folders = [path for path in store.listing(root) if named.fullmatch(path.name)]
    folders.sort(key=lambda path: (path / "run.json").stat().st_mtime, reverse=True)
    for folder in folders[:_MOST_READ]:
        try:
            run = store.read(folder / "run.json")
        except UserError:
            continue  # damaged, or written by a newer torchproof
        alike = all(run.options.get(key) == this.options.get(key) for key in _SAME)
        if (
            run.verb == this.verb
            and run.target == this.target
            and _complete(run)
            and alike
        ):
            return run
    return None


def for_comparison(run: Run) -> Baseline:
    """The parts of a run that a before-and-after table needs."""
    still_open = [f for f in run.findings if f.status == "open"]
    by_severity = Counter(finding.severity for finding in still_open)
    return Baseline(
        id=run.id,
        target=run.target,
        started=run.started,
        command=run.command,
        counts=run.counts,
        environment=run.environment,
        measurements=tuple(replace(row, rounds_ms=()) for row in run.measurements),
        findings={severity: by_severity[severity] for severity in SEVERITIES},
        identities=tuple(sorted({finding.identity for finding in still_open})),
    )


def with_resolved(
    run: Run,
    before: Run,
    *,
    parts_of: Callable[[Finding], Iterable[str]],
    suspected: Callable[[Finding], bool],
) -> Run:
    """The run with the findings resolved since `before`, and a summary of `before`."""
    gone = resolved(before, run, parts_of=parts_of, suspected=suspected)
    findings = (*run.findings, *gone)
    return replace(run, findings=findings, baseline=for_comparison(before))


def resolved(
    before: Run,
    run: Run,
    *,
    parts_of: Callable[[Finding], Iterable[str]],
    suspected: Callable[[Finding], bool],
) -> list[Finding]:
    """Open findings of the earlier run that this run looked for and does not have.

    `parts_of` names the parts of a check that can report a finding. `suspected` says
    that source analysis still suggests the finding, although this run did not show it.
    Two equal findings in one function count as two. A finding is not resolved if the
    same line is now in a function of another name.
    """
    if not _complete(run):
        return []
    unmatched = Counter(f.identity for f in run.findings)
    gone = []
    for finding in before.findings:
        if finding.status != "open":
            continue
        if unmatched[finding.identity]:
            unmatched[finding.identity] -= 1
            continue
        names = [n for n in parts_of(finding) if _done(before, n)]
        looked = bool(names) and all(_done(run, name) for name in names)
        if looked and _read_alike(finding, before, run) and not suspected(finding):
            gone.append(replace(finding, status="resolved"))
    # Findings that the earlier run did not have, counted by code, file and source line.
    keys = {f.identity: _without_function(f) for f in run.findings}
    new_ones: Counter[_Key] = Counter()
    for identity in keys:
        new_ones[keys[identity]] += unmatched[identity]
    return [f for f in gone if not _take_match(new_ones, _without_function(f))]


def appeared(before: Run, run: Run) -> list[Finding]:
    """Open findings of this run that the earlier one did not have.

    The counterpart of `resolved`: of equal findings, those beyond the earlier number;
    none that only moved to a function of another name. A suspicion that this run
    confirms has appeared.
    """
    known = Counter((f.identity, f.is_suspicion) for f in before.findings if _open(f))
    suspected = {f.identity for f in before.findings if _open(f)}
    appeared = []
    for finding in filter(_open, run.findings):
        key = finding.identity, finding.is_suspicion
        if known[key]:
            known[key] -= 1
        elif not (finding.is_suspicion and finding.identity in suspected):
            appeared.append(finding)
    keys = {f.identity: _without_function(f) for f in filter(_open, before.findings)}
    renamed: dict[bool, Counter[_Key]] = {False: Counter(), True: Counter()}
    for (identity, suspicion), count in known.items():
        renamed[suspicion][keys[identity]] += count
    return [
        finding
        for finding in appeared
        if not _take_match(renamed[finding.is_suspicion], _without_function(finding))
    ]


def _open(finding: Finding) -> bool:
    return finding.status == "open"


def _without_function(finding: Finding) -> _Key:
    """The parts of a finding that stay if its function is renamed."""
    return finding.code, finding.file, (finding.source or "").strip()


def _take_match(unmatched: Counter[_Key], key: _Key) -> bool:
    """Whether one is left to match; if so, removes it."""
    if not key[-1] or not unmatched[key]:
        return False
    unmatched[key] -= 1
    return True


def _complete(run: Run) -> bool:
    return run.ending == "finished" and run.error is None


def _done(run: Run, part: str) -> bool:
    return part in run.parts and run.parts[part].status in {"passed", "found"}


def _read_alike(finding: Finding, before: Run, run: Run) -> bool:
    """Whether both runs read the source in the same way.

    --effort static treats every forward as compiled; other efforts only what the run
    reaches.
    """
    if finding.origin != "static":
        return True
    return len({r.options.get("effort") == "static" for r in (before, run)}) == 1
