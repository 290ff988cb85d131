"""`check`: runs its parts, applies the rules, reads the source, compares history."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchproof.checking import counts, history, measured_parts, rules, source_reading
from torchproof.checking.measured_parts import (
    MEASURED,
    OF_MEASURED,
    MeasuredParts,
    PartsMeasurer,
)
from torchproof.checking.static.join import Joined, join
from torchproof.checking.static.join import without_run as not_run
from torchproof.checking.static.suspicion import Reading
from torchproof.observe import AuditResult, audit, observe
from torchproof.records import (
    SEVERITIES,
    Finding,
    Observation,
    Part,
    Run,
    UserError,
    blame,
    one_line,
    store,
)
from torchproof.targets import Options, Target, assert_size
from torchproof.targets import parse as parse_target

Progress = Callable[[str], None]

PARTS = (
    "static",
    "breaks",
    "baseline",
    "batch",
    "sequence",
    "latency",
    "guards",
    "lifetimes",
)
OF_OTHERS = (*OF_MEASURED, *audit.CODES)  # codes of parts other than breaks
EFFORTS: dict[str, tuple[str, ...]] = {
    "static": ("static",),
    "quick": ("static", "breaks"),
    "normal": ("static", "breaks", "baseline", "batch", "sequence", "latency"),
    "full": PARTS,
}
_NOTHING_RUN = {"torch": None, "device": None, "python": platform.python_version()}


@dataclass(frozen=True)
class Scope:
    """The parts and codes that a check covers."""

    effort: str
    skip: tuple[str, ...]
    select: tuple[str, ...]
    ignore: tuple[str, ...]

    @property
    def parts(self) -> list[str]:
        return [name for name in EFFORTS[self.effort] if name not in self.skip]

    def selected(self, findings: Iterable[Finding]) -> list[Finding]:
        return rules.select(list(findings), list(self.select), list(self.ignore))

    def left_out(self, part: str) -> Part | None:
        """The status of a part that does not run, with the reason; None if it runs."""
        if part in self.skip:
            return Part("skipped", "left out with --skip")
        if part not in EFFORTS[self.effort]:
            return Part("skipped", f"not part of --effort {self.effort}")
        return None


def check(
    target: str | Target,
    options: Options | None = None,
    *,
    effort: str = "normal",
    skip: Iterable[str] = (),
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    baseline: Run | str | None = None,
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """Checks how the target compiles; saves and returns the run.

    `baseline` is the earlier run to compare with. By default it is the latest saved run
    of this target with the same options.
    """
    target = parse_target(target) if isinstance(target, str) else target
    options = options or Options()
    scope = Scope(effort, tuple(skip), tuple(select), tuple(ignore))
    _assert_possible(target, options, scope)
    store.assert_writable(save_in)
    blame.forget()
    saved_options = _options_as_saved(target, options, scope)
    if isinstance(baseline, str):
        baseline = store.load(baseline, save_in)
    before = baseline or history.latest(
        target.text, target.name, saved_options, save_in
    )
    this_check = _Check(target, options, scope, progress)
    run = replace(this_check.run(), command=command, options=saved_options)
    if before is not None:
        gone = history.resolved(
            before,
            run,
            parts_of=lambda finding: _parts_of(finding, before, run),
            suspected=this_check.suspects,
        )
        findings = (*run.findings, *gone)
        run = replace(run, findings=findings, baseline=history.for_comparison(before))
    return store.save(run, save_in)


def _options_as_saved(target: Target, options: Options, scope: Scope) -> dict[str, Any]:
    """The options of the check, as the run saves them."""
    return {
        "effort": scope.effort,
        "skip": list(scope.skip),
        "select": list(scope.select),
        "ignore": list(scope.ignore),
        "compile": dict(options.compile),
        "as_written": options.as_written,
        "train": options.train,
        "device": options.device,
        "size": options.size,
        "arguments": list(target.arguments),
    }


def _assert_possible(target: Target, options: Options, scope: Scope) -> None:
    """Raises a UserError for mistakes that are visible before anything runs."""
    if scope.effort not in EFFORTS:
        efforts = ", ".join(EFFORTS)
        raise UserError(f"no effort {scope.effort!r}: choose one of {efforts}")
    if target.kind == "source" and scope.effort != "static":
        raise UserError(
            f"{target.text} is a folder, and check cannot run a folder: use --effort"
            " static to read it"
        )
    if target.kind == "trace" and scope.effort == "static":
        raise UserError(
            f"{target.text} is a trace, which has no source: --effort static reads"
            " files and folders"
        )
    assert_size(target, options.size)
    if unknown := sorted(set(scope.skip) - set(PARTS)):
        raise UserError(
            f"no part {unknown[0]!r} to skip: the parts are {', '.join(PARTS)}"
        )
    scope.selected([])  # raises for an unknown code, before the run


class _Check:
    """One check: runs its parts, and keeps the reading and the open suspicions."""

    def __init__(
        self, target: Target, options: Options, scope: Scope, progress: Progress
    ) -> None:
        self.target = target
        self.options = options
        self.scope = scope
        self.progress = progress
        self.read = Reading()
        self.joined = Joined(())
        self.interrupted = False

    def run(self) -> Run:
        started = datetime.datetime.now()
        parts = self.scope.parts
        observation, measured = _run_parts(
            self.target, self.options, parts, self.progress
        )
        observation, audited = _with_audit(
            observation, self.target, self.options, parts, tell=self.progress
        )
        every = rules.with_costs(rules.check(observation), measured.gaps)
        not_read = self._read(observation, every, measured, audited)
        joined = source_reading.with_source(self.joined.findings)
        findings = self.scope.selected(joined)
        findings.sort(key=lambda f: (f.status != "open", SEVERITIES.index(f.severity)))
        dynamic = [f for f in findings if f.origin != "static"]
        statuses = {
            "static": not_read or source_reading.part(self.read, findings),
            "breaks": _breaks(observation, joined, dynamic),
            "lifetimes": audited.part(dynamic),
        }
        return Run(
            id=f"{started:%Y%m%d-%H%M}-{self.target.name}",
            target=self.target.text,
            strategy=self._strategy(observation),
            environment=observation.environment,
            counts=counts.where_seen(observation, every, "breaks" not in parts)
            | audited.counts,
            findings=tuple(findings),
            measurements=tuple(measured.rows),
            parts={
                name: self.scope.left_out(name)
                or measured.part(name, dynamic)
                or statuses.get(name, statuses["breaks"])
                for name in PARTS
            },
            configuration=source_reading.configuration(self.read, observation.events),
            started=started.isoformat(timespec="seconds"),
            ending="interrupted" if self.interrupted else observation.ending,
            exit_code=observation.exit_code,
            error=one_line(observation.error) if observation.error else None,
        )

    def _strategy(self, observation: Observation) -> str:
        if self.scope.effort == "static":
            return "-"
        return "as-written" if _as_written(observation, self.target) else "full"

    def _read(
        self,
        observation: Observation,
        every: list[Finding],
        measured: MeasuredParts,
        audited: AuditResult,
    ) -> Part | None:
        """Reads the source and joins it with the run; returns a status on failure."""
        self.joined = Joined(tuple(every))
        if "static" not in self.scope.parts:
            return None
        if self.target.kind == "trace":
            return Part("skipped", "a trace has no source")
        if self.scope.effort == "static":
            self.read = source_reading.read_target(self.target, self.progress)
            self.joined = not_run(self.read.suspicions)
            return None
        try:
            if observation.traced is None:
                self.read = source_reading.read_target(self.target, self.progress)
            else:
                self.read = source_reading.read_beside_run(self.target, observation)
        except (Exception, KeyboardInterrupt) as error:
            # Keep what the run gave: it may have taken long.
            self.interrupted = isinstance(error, KeyboardInterrupt)
            return Part("failed", one_line(f"{type(error).__name__}: {error}"))
        decided = source_reading.run_evidence(observation, _unseen(measured, audited))
        self.joined = join(self.read.suspicions, every, decided)
        return None

    def suspects(self, finding: Finding) -> bool:
        """Whether a finding that is not in this run may still be present."""
        if not self.scope.selected([finding]):
            return True
        if finding.origin == "static":
            suspected = {s.finding.identity for s in self.read.suspicions}
            return finding.identity in suspected
        # The line may have moved, so its function and text identify it.
        words = finding.function, (finding.source or "").strip()
        return any(
            finding.code.startswith(each.shown_by)
            and (each.finding.function, (each.finding.source or "").strip()) == words
            for each in self.joined.undecided
            if each.shown_by
        )


def _unseen(measured: MeasuredParts, audited: AuditResult) -> dict[str, str]:
    """Codes that no part of this check could show, and the part that can."""
    passed = {name for name, part in measured.parts.items() if part.status == "passed"}
    if audited.status.status == "passed":
        passed.add("lifetimes")
    codes_of = {**measured_parts.CODES, "lifetimes": audit.CODES}
    covered = {code for name in passed for code in codes_of[name]}
    return {c: n for n, codes in codes_of.items() for c in codes if c not in covered}


def _parts_of(finding: Finding, before: Run, run: Run) -> list[str]:
    """The parts that can report a finding; empty if the two runs do not compare."""
    if finding.origin == "static":
        return ["static"]
    if finding.code.startswith(audit.CODES):
        devices = {each.environment.get("device") for each in (before, run)}
        return ["lifetimes"] if len(devices) == 1 else []
    parts = [
        n for n, codes in measured_parts.CODES.items() if finding.code.startswith(codes)
    ]
    return parts or ["breaks"]


def _run_parts(
    target: Target, options: Options, parts: list[str], progress: Progress
) -> tuple[Observation, MeasuredParts]:
    """Observes the target, then runs the measuring parts if it can run again."""
    observation = Observation((), _NOTHING_RUN)
    if "breaks" in parts:
        observation = observe(target, options, progress)
    why = None
    if target.kind == "script":
        why = "check runs a script only once; torchproof bench measures it"
    elif target.kind == "trace":
        why = "a trace cannot be run"
    elif observation.error or observation.ending != "finished":
        why = "the target did not run to its end"
    measuring = [name for name in parts if name in MEASURED]
    if why or not measuring:
        skipped = {name: Part("skipped", why or "") for name in measuring}
        return observation, MeasuredParts(parts=skipped)
    measured = PartsMeasurer(target, options, progress).run(measuring)
    ending = "interrupted" if measured.interrupted else observation.ending
    return replace(
        observation,
        events=(*observation.events, *measured.events),
        environment={**observation.environment, **measured.environment},
        ending=ending,
    ), measured


def _with_audit(
    observation: Observation,
    target: Target,
    options: Options,
    parts: list[str],
    *,
    tell: Progress,
) -> tuple[Observation, AuditResult]:
    """Adds what part lifetimes observes, if the part is selected and possible."""
    why = _why_not_audited(target, parts, observation)
    if "lifetimes" not in parts or why:
        return observation, audit.skipped(why or "")
    audited = audit.audit(target, options, tell)
    return replace(
        observation,
        events=(*observation.events, *audited.events),
        environment={**observation.environment, **audited.environment},
        ending="interrupted" if audited.interrupted else observation.ending,
    ), audited


def _why_not_audited(
    target: Target, parts: list[str], observation: Observation
) -> str | None:
    if target.kind == "trace":
        return "a trace cannot be run"
    if target.kind == "script" and "breaks" in parts:
        return "check runs a script only once; with --skip breaks this part runs it"
    if observation.error or observation.ending != "finished":
        return "the target did not run to its end"
    return None


def _as_written(observation: Observation, target: Target) -> bool:
    """Whether the program compiles itself, rather than torchproof compiling it."""
    if target.kind in {"script", "trace"}:
        return True
    return not any(
        e.data["by_torchproof"] for e in observation.events if e.kind == "wrapper"
    )


def _breaks(
    observation: Observation, joined: Iterable[Finding], selected: Iterable[Finding]
) -> Part:
    """The status of part breaks; `selected` are the findings that --select leaves."""
    if observation.error or observation.ending != "finished":
        return Part("failed", observation.error or f"ended by {observation.ending}")
    every = [f for f in joined if f.origin != "static"]
    count, total = (
        sum(f.status == "open" and not f.code.startswith(OF_OTHERS) for f in each)
        for each in (selected, every)
    )
    hidden = f"{total - count} left out by --select or --ignore"
    return Part("found" if count else "passed", hidden if total > count else "")
