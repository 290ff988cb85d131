"""Finds the previous run of a target, and the findings resolved since."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

from torchproof.records import (
    SEVERITIES,
    Baseline,
    Difference,
    Finding,
    Run,
    UserError,
    is_recorded,
    place_of_finding,
    recorded_places,
    same_calls,
    store,
)

_MOST_READ = 50  # saved runs that `latest` reads at most
# Options that change the findings of the same code.
_SETTINGS = ("arguments", "as_written", "compile", "ranks", "size", "train", "wrap")
_SAME = (*_SETTINGS, "device", "session")
_DIFFERENCES = set(get_args(Difference))
_FEWER_IS_BETTER = ("graph_breaks", "skipped_frames", "recompiles", "cudagraph_skips")
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
        alike = _same(run, this, _SAME)
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
    reached: Callable[[Finding], bool] = lambda finding: True,
) -> Run:
    """The run with the findings resolved since `before`, and a summary of `before`."""
    gone = resolved(
        before, run, parts_of=parts_of, suspected=suspected, reached=reached
    )
    summary = for_comparison(before)
    known = recorded_places(filter(_open, before.findings))
    same = {f.identity for f in run.findings if place_of_finding(f) in known}
    summary = replace(
        summary,
        identities=tuple(sorted({*(summary.identities or ()), *same})),
        differences=differences(before, run),
        worse=worse(before, run),
        unjudged=len(_lost(before, run)) - len(gone),
    )
    rules = {**before.rules, **run.rules}  # also those of findings that are gone
    return replace(run, findings=(*run.findings, *gone), rules=rules, baseline=summary)


def resolved(
    before: Run,
    run: Run,
    *,
    parts_of: Callable[[Finding], Iterable[str]],
    suspected: Callable[[Finding], bool],
    reached: Callable[[Finding], bool] = lambda finding: True,
) -> list[Finding]:
    """Open findings of the earlier run that this run looked for and does not have.

    `parts_of` names the parts of a check that can report a finding. `suspected` says
    that source analysis still suggests the finding, although this run did not show it,
    and `reached` that this run got to its function.
    """
    return [
        replace(finding, status="resolved")
        for finding in _lost(before, run)
        if _looked_for(finding, before, run, parts_of)
        and reached(finding)
        and not suspected(finding)
    ]


def differences(before: Run, run: Run) -> tuple[Difference, ...]:
    """What the two runs did differently, so that a finding may be absent for it."""
    found: list[Difference] = []
    if _last_part(before.target) != _last_part(run.target):
        found.append("target")
    if not same_calls(before, run):
        found.append("calls")
    devices = {r.environment.get("device") for r in (before, run)} - {None}
    if len(devices) > 1 or not _same(before, run, ("device",)):
        found.append("device")
    if not _same(before, run, _SETTINGS):
        found.append("settings")
    return tuple(found)


def _last_part(target: str) -> str:
    """A target without its folder, which may be another copy of the repository."""
    return target.replace("\\", "/").rpartition("/")[2]


def _same(before: Run, run: Run, names: Iterable[str]) -> bool:
    return all(before.options.get(n) == run.options.get(n) for n in names)


def worse(before: Run, run: Run) -> tuple[str, ...]:
    """The counts that are higher than in the earlier run, of the same calls.

    More graphs are worse, unless more of the program is compiled. `findings` are the
    open ones above low, if both runs looked for the same.
    """
    if differences(before, run) or not (_complete(before) and _complete(run)):
        return ()

    def rise(name: str) -> int:
        counts = before.counts.get(name), run.counts.get(name)
        return 0 if None in counts else counts[1] - counts[0]  # type: ignore[operator]

    names = [name for name in _FEWER_IS_BETTER if rise(name) > 0]
    compiles_more = rise("skipped_frames") < 0 or rise("compiled_calls") > 0
    if rise("graphs") > 0 and before.counts.get("graphs") and not compiles_more:
        names.insert(0, "graphs")
    scope = ("effort", "skip", "select", "ignore")
    if _same(before, run, scope) and _loud(run) > _loud(before):
        names.append("findings")
    return tuple(names)


def _loud(run: Run) -> int:
    return sum(
        _open(f) and not f.is_suspicion and f.severity != "low" for f in run.findings
    )


def _lost(before: Run, run: Run) -> list[Finding]:
    """Open findings of the earlier run that this run does not have.

    Two equal findings in one function count as two. A finding is not lost if the same
    line is now in a function of another name. One of an older record, whose identity
    is made in another way, is there if one of its code is in its function.
    """
    unmatched = Counter(f.identity for f in run.findings)
    places = {place_of_finding(f) for f in run.findings}
    lost = []
    for finding in filter(_open, before.findings):
        if unmatched[finding.identity]:
            unmatched[finding.identity] -= 1
        elif not (is_recorded(finding.key) and place_of_finding(finding) in places):
            lost.append(finding)
    # Findings that the earlier run did not have, counted by code, file and source line.
    keys = {f.identity: _without_function(f) for f in run.findings}
    new_ones: Counter[_Key] = Counter()
    for identity in keys:
        new_ones[keys[identity]] += unmatched[identity]
    return [f for f in lost if not _take_match(new_ones, _without_function(f))]


def _looked_for(
    finding: Finding,
    before: Run,
    run: Run,
    parts_of: Callable[[Finding], Iterable[str]],
) -> bool:
    """Whether this run did what made the earlier one find it."""
    if not _complete(run):
        return False
    static = finding.origin == "static"
    unlike = set(differences(before, run)) & ({"target"} if static else _DIFFERENCES)
    names = [n for n in parts_of(finding) if _done(before, n)]
    looked = bool(names) and all(_done(run, name) for name in names)
    return looked and not unlike and _read_alike(finding, before, run)


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
