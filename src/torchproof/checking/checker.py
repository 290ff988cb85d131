"""`check`: what each part saw, what the source says, and what an earlier run had."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchproof.checking import counts, history, measured_parts, rules, source_reading
from torchproof.checking.measured_parts import MEASURED, OF_MEASURED, Examination, Found
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
OF_OTHERS = (*OF_MEASURED, *audit.CODES)  # codes that are not of part breaks
EFFORTS: dict[str, tuple[str, ...]] = {
    "static": ("static",),
    "quick": ("static", "breaks"),
    "normal": ("static", "breaks", "baseline", "batch", "sequence", "latency"),
    "full": PARTS,
}
_NOTHING_RUN = {"torch": None, "device": None, "python": platform.python_version()}


@dataclass(frozen=True)
class Scope:
    """What a check was asked to look at."""

    effort: str
    skip: tuple[str, ...]
    select: tuple[str, ...]
    ignore: tuple[str, ...]

    @property
    def wanted(self) -> list[str]:
        return [name for name in EFFORTS[self.effort] if name not in self.skip]

    def selected(self, findings: Iterable[Finding]) -> list[Finding]:
        return rules.select(list(findings), list(self.select), list(self.ignore))

    def left_out(self, part: str) -> Part | None:
        """A part that is not to be done, and why; None for one that is."""
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
    """What goes wrong when the target compiles; the run is saved and returned.

    `baseline` is the earlier run to compare with; without one it is the latest that
    was saved of this target, run in the same way.
    """
    target = parse_target(target) if isinstance(target, str) else target
    options = options or Options()
    scope = Scope(effort, tuple(skip), tuple(select), tuple(ignore))
    _assert_possible(target, options, scope)
    store.assert_writable(save_in)
    blame.forget()
    asked = _asked(target, options, scope)
    if isinstance(baseline, str):
        baseline = store.load(baseline, save_in)
    before = baseline or history.latest(target.text, target.name, asked, save_in)
    done = _Check(target, options, scope, progress)
    run = replace(done.run(), command=command, options=asked)
    if before is not None:
        gone = history.resolved(
            before,
            run,
            parts_of=lambda finding: _parts_of(finding, before, run),
            suspected=done.suspects,
        )
        findings = (*run.findings, *gone)
        run = replace(run, findings=findings, baseline=history.in_short(before))
    return store.save(run, save_in)


def _asked(target: Target, options: Options, scope: Scope) -> dict[str, Any]:
    """What was asked for, as it is saved."""
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
    """What can be said to be wrong before anything runs."""
    if scope.effort not in EFFORTS:
        known = ", ".join(EFFORTS)
        raise UserError(f"no effort {scope.effort!r}: choose one of {known}")
    if target.kind == "source" and scope.effort != "static":
        raise UserError(
            f"{target.text} is a folder, which cannot be run: --effort static reads it"
        )
    if target.kind == "trace" and scope.effort == "static":
        raise UserError(
            f"{target.text} is a trace, which holds no source: --effort static reads"
            " files and folders"
        )
    assert_size(target, options.size)
    if unknown := sorted(set(scope.skip) - set(PARTS)):
        raise UserError(f"no part {unknown[0]!r} to skip: parts are {', '.join(PARTS)}")
    scope.selected([])  # a wrong code fails before the run


class _Check:
    """One check: runs its parts, and keeps what was read and what stays open."""

    def __init__(
        self, target: Target, options: Options, scope: Scope, progress: Progress
    ) -> None:
        self.target, self.options = target, options
        self.scope, self.progress = scope, progress
        self.read = Reading()
        self.joined = Joined(())
        self.interrupted = False

    def run(self) -> Run:
        started = datetime.datetime.now()
        wanted = self.scope.wanted
        seen, measured = _seen(self.target, self.options, wanted, self.progress)
        seen, audited = _audited(
            seen, self.target, self.options, wanted, tell=self.progress
        )
        every = rules.with_costs(rules.check(seen), measured.gaps)
        told = self._read(seen, every, measured, audited)
        joined = source_reading.with_source(self.joined.findings)
        found = self.scope.selected(joined)
        found.sort(key=lambda f: (f.status != "open", SEVERITIES.index(f.severity)))
        shown = [f for f in found if f.origin != "static"]
        own = {
            "static": told or source_reading.part(self.read, found),
            "breaks": _breaks(seen, joined, shown),
            "lifetimes": audited.part(shown),
        }
        return Run(
            id=f"{started:%Y%m%d-%H%M}-{self.target.name}",
            target=self.target.text,
            strategy=self._strategy(seen),
            environment=seen.environment,
            counts=counts.where_seen(seen, every, "breaks" not in wanted)
            | audited.counts,
            findings=tuple(found),
            measurements=tuple(measured.rows),
            parts={
                name: self.scope.left_out(name)
                or measured.part(name, shown)
                or own.get(name, own["breaks"])
                for name in PARTS
            },
            configuration=source_reading.configuration(self.read, seen.events),
            started=started.isoformat(timespec="seconds"),
            ending="interrupted" if self.interrupted else seen.ending,
            exit_code=seen.exit_code,
            error=one_line(seen.error) if seen.error else None,
        )

    def _strategy(self, seen: Observation) -> str:
        if self.scope.effort == "static":
            return "-"
        return "as-written" if _as_written(seen, self.target) else "full"

    def _read(
        self,
        seen: Observation,
        every: list[Finding],
        measured: Found,
        audited: AuditResult,
    ) -> Part | None:
        """Reads the source and joins it with the run; why not, where it cannot."""
        self.joined = Joined(tuple(every))
        if "static" not in self.scope.wanted:
            return None
        if self.target.kind == "trace":
            return Part("skipped", "a trace holds no source")
        if self.scope.effort == "static":
            self.read = source_reading.alone(self.target, self.progress)
            self.joined = not_run(self.read.suspicions)
            return None
        try:
            if seen.traced is None:
                self.read = source_reading.alone(self.target, self.progress)
            else:
                self.read = source_reading.beside(self.target, seen)
        except (Exception, KeyboardInterrupt) as error:
            # What the run gave, which may have taken long, is kept.
            self.interrupted = isinstance(error, KeyboardInterrupt)
            return Part("failed", one_line(f"{type(error).__name__}: {error}"))
        decided = source_reading.what_was_seen(seen, _unseen(measured, audited))
        self.joined = join(self.read.suspicions, every, decided)
        return None

    def suspects(self, finding: Finding) -> bool:
        """Whether a finding that is not in this run may be there all the same."""
        if not self.scope.selected([finding]):
            return True
        if finding.origin == "static":
            known = {s.finding.identity for s in self.read.suspicions}
            return finding.identity in known
        # The line may have moved; its words tell that it is the same.
        words = finding.function, (finding.source or "").strip()
        return any(
            finding.code.startswith(each.shown_by)
            and (each.finding.function, (each.finding.source or "").strip()) == words
            for each in self.joined.undecided
            if each.shown_by
        )


def _unseen(measured: Found, audited: AuditResult) -> dict[str, str]:
    """Codes that nothing in this check could show, and the part that does."""
    done = {name for name, part in measured.parts.items() if part.status == "passed"}
    if audited.status.status == "passed":
        done.add("lifetimes")
    made = {**measured_parts.CODES, "lifetimes": audit.CODES}
    shown = {code for name in done for code in made[name]}
    return {c: n for n, codes in made.items() for c in codes if c not in shown}


def _parts_of(finding: Finding, before: Run, run: Run) -> list[str]:
    """The parts that can make a finding; none where the two runs do not compare."""
    if finding.origin == "static":
        return ["static"]
    if finding.code.startswith(audit.CODES):
        devices = {each.environment.get("device") for each in (before, run)}
        return ["lifetimes"] if len(devices) == 1 else []
    made = [
        n for n, codes in measured_parts.CODES.items() if finding.code.startswith(codes)
    ]
    return made or ["breaks"]


def _seen(
    target: Target, options: Options, wanted: list[str], progress: Progress
) -> tuple[Observation, Found]:
    """What the parts saw; those that measure, where the target can run again."""
    seen = Observation((), _NOTHING_RUN)
    if "breaks" in wanted:
        seen = observe(target, options, progress)
    why = None
    if target.kind == "script":
        why = "a script is run once; torchproof bench measures it"
    elif target.kind == "trace":
        why = "a trace cannot be run"
    elif seen.error or seen.ending != "finished":
        why = "the target did not run to its end"
    measuring = [name for name in wanted if name in MEASURED]
    if why or not measuring:
        skipped = {name: Part("skipped", why or "") for name in measuring}
        return seen, Found(parts=skipped)
    found = Examination(target, options, progress).run(measuring)
    ending = "interrupted" if found.interrupted else seen.ending
    return replace(
        seen,
        events=(*seen.events, *found.events),
        environment={**seen.environment, **found.environment},
        ending=ending,
    ), found


def _audited(
    seen: Observation,
    target: Target,
    options: Options,
    wanted: list[str],
    *,
    tell: Progress,
) -> tuple[Observation, AuditResult]:
    """What part lifetimes adds to what was seen, if it is wanted and possible."""
    why = _why_not_audited(target, wanted, seen)
    if "lifetimes" not in wanted or why:
        return seen, audit.skipped(why or "")
    found = audit.audit(target, options, tell)
    return replace(
        seen,
        events=(*seen.events, *found.events),
        environment={**seen.environment, **found.environment},
        ending="interrupted" if found.interrupted else seen.ending,
    ), found


def _why_not_audited(
    target: Target, wanted: list[str], seen: Observation
) -> str | None:
    if target.kind == "trace":
        return "a trace cannot be run"
    if target.kind == "script" and "breaks" in wanted:
        return "a script is run once; with --skip breaks this part runs it"
    if seen.error or seen.ending != "finished":
        return "the target did not run to its end"
    return None


def _as_written(observation: Observation, target: Target) -> bool:
    """Whether the program compiled itself, rather than torchproof for it."""
    if target.kind in {"script", "trace"}:
        return True
    return not any(
        e.data["by_torchproof"] for e in observation.events if e.kind == "wrapper"
    )


def _breaks(
    observation: Observation, joined: Iterable[Finding], shown: Iterable[Finding]
) -> Part:
    """The part's status; `shown` is what the run shows of what was asked for."""
    if observation.error or observation.ending != "finished":
        return Part("failed", observation.error or f"ended by {observation.ending}")
    every = [f for f in joined if f.origin != "static"]
    count, total = (
        sum(f.status == "open" and not f.code.startswith(OF_OTHERS) for f in each)
        for each in (shown, every)
    )
    hidden = f"{total - count} left out by --select or --ignore"
    return Part("found" if count else "passed", hidden if total > count else "")
