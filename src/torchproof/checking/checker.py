"""`check` in six steps: parse, observe, judge, explain, save, render.

`parse` validates a request, `observe` runs its parts, `judge` makes findings of the
events and of the source, `explain` connects them with their causes and with the
previous run, and the run is saved. Rendering needs nothing but the saved run:
`torchproof.report` does it.
"""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torchproof.checking import causes, history, rules, source_reading
from torchproof.checking.counts import counts_of
from torchproof.checking.join import Joined
from torchproof.checking.observed_parts import (
    ObservedParts,
    PartProgress,
    observe_on_ranks,
    observe_parts,
)
from torchproof.observe import Ranks, assert_launchable
from torchproof.records import (
    Finding,
    Observation,
    Part,
    PartLimit,
    PartState,
    Run,
    UserError,
    WrapperEvent,
    blame,
    one_line,
    store,
)
from torchproof.targets import Options, Target, assert_size, live
from torchproof.targets import parse as parse_target

Progress = Callable[[str], None]
# Takes the findings of a run, and those of its events with their rules and events.
Draft = Callable[[Sequence[Finding], Sequence[rules.Matched]], Sequence[Finding]]

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
EFFORTS: dict[str, tuple[str, ...]] = {
    "static": ("static",),
    "quick": ("static", "breaks"),
    "normal": ("static", "breaks", "baseline", "batch", "sequence", "latency"),
    "full": PARTS,
}


def check(
    target: str | Target,
    options: Options | None = None,
    *,
    effort: str = "normal",
    skip: Iterable[str] = (),
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    baseline: Run | str | None = None,
    ranks: Ranks | None = None,
    progress: Progress = lambda text: None,
    entering: Callable[[PartState], None] = lambda state: None,
    command: str = "",
    save_in: Path = store.RUNS,
    draft: Draft | None = None,
) -> Run:
    """Checks how the target compiles; saves and returns the run.

    `baseline` is the run to compare with, by default the latest saved one with the same
    options. `entering` gets each part that runs. `draft` adds the edits of findings.
    """
    scope = Scope(effort, tuple(skip), tuple(select), tuple(ignore), ranks)
    request = parse(target, options or Options(), scope, command=command)
    store.assert_writable(save_in)
    if isinstance(baseline, str):
        baseline = store.load(baseline, save_in)
    earlier = history.latest(request.empty_run, request.target.name, save_in)
    parts = PartProgress(
        request.in_order,
        earlier if earlier and request.runs_the_parts_of(earlier) else None,
        progress,
        show=entering,
    )
    observed = observe(request, parts)
    judged = judge(request, observed, parts)
    run = explain(request, observed, judged, before=baseline or earlier)
    if draft is not None:
        run = with_drafts(run, judged, draft)
    return store.save(run, save_in)


# -- parse -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Scope:
    """The parts and codes that a check covers."""

    effort: str
    skip: tuple[str, ...]
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    ranks: Ranks | None = None

    @property
    def parts(self) -> list[str]:
        return [name for name in EFFORTS[self.effort] if not self.left_out(name)]

    def selected(self, findings: Iterable[Finding]) -> list[Finding]:
        return rules.select(list(findings), list(self.select), list(self.ignore))

    def left_out(self, part: str) -> Part | None:
        """The status of a part that does not run, with the reason; None if it runs."""
        if part in self.skip:
            return Part("skipped", "left out with --skip", limit="flag")
        if part not in EFFORTS[self.effort]:
            why = f"not part of --effort {self.effort}"
            return Part("skipped", why, limit="effort")
        if self.ranks is not None and part not in EFFORTS["quick"]:
            return Part("skipped", "several ranks run the target only once")
        return None


@dataclass(frozen=True)
class Request:
    """A target, how to run it, and what to look for."""

    target: Target
    options: Options
    scope: Scope
    command: str = ""
    started: datetime.datetime = field(default_factory=datetime.datetime.now)

    @functools.cached_property
    def saved_options(self) -> dict[str, Any]:
        scope, ranks = self.scope, self.scope.ranks
        on_ranks = {} if ranks is None else {"ranks": ranks.count, "wrap": ranks.wrap}
        is_live = self.target.kind == "live"
        return {
            **on_ranks,
            **({"session": live.session()} if is_live else {}),
            "effort": scope.effort,
            "skip": list(scope.skip),
            "select": list(scope.select),
            "ignore": list(scope.ignore),
            "compile": dict(self.options.compile),
            "as_written": self.options.as_written,
            "train": self.options.train,
            "device": self.options.device,
            "size": self.options.size,
            "arguments": list(self.target.arguments),
        }

    @property
    def empty_run(self) -> Run:
        """The run before anything is known."""
        return Run(
            id=f"{self.started:%Y%m%d-%H%M}-{self.target.name}",
            target=self.target.text,
            strategy="-",
            environment={},
            counts={},
            started=self.started.isoformat(timespec="seconds"),
            command=self.command,
            options=self.saved_options,
        )

    def runs_the_parts_of(self, earlier: Run) -> bool:
        return all(
            earlier.options.get(name) == self.saved_options[name]
            for name in ("effort", "skip")
        )

    @property
    def in_order(self) -> list[str]:
        """The parts that can run, in the order in which they do."""
        parts = [name for name in self.scope.parts if name != "static"]
        if not self.target.can_run_again or live.why_not_sent(self.target):
            parts = [name for name in parts if name in {"breaks", "lifetimes"}]
        return [*parts, "static"] if "static" in self.scope.parts else parts


def parse(
    target: str | Target, options: Options, scope: Scope, *, command: str = ""
) -> Request:
    """Raises a UserError for mistakes that are visible before anything runs."""
    target = parse_target(target) if isinstance(target, str) else target
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
    if scope.ranks is not None:
        assert_launchable(target, scope.ranks)
        if "breaks" not in scope.parts:
            raise UserError(
                "--ranks runs the target in part breaks, which this check leaves out:"
                " drop --ranks, or --skip breaks and --effort static"
            )
    return Request(target, options, scope, command)


# -- observe ---------------------------------------------------------------------------


def observe(request: Request, progress: PartProgress) -> ObservedParts:
    """Runs the target for each part, as far as it can run again."""
    blame.forget()
    target, options, scope = request.target, request.options, request.scope
    if scope.ranks is not None:
        return observe_on_ranks(target, options, scope.ranks, progress)
    return observe_parts(target, options, scope.parts, progress)


# -- judge -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """What the rules say of the events, and of the source."""

    matched: list[rules.Matched]  # of the events
    source: Joined  # these joined with what the source suggests

    @property
    def findings(self) -> list[Finding]:
        return [each.finding for each in self.matched]


def judge(request: Request, observed: ObservedParts, progress: PartProgress) -> Judged:
    matched = observed.found
    findings = [each.finding for each in matched]
    if "static" not in request.scope.parts:
        return Judged(matched, Joined(tuple(findings)))
    progress.enter("static")
    begin = time.monotonic()
    if request.scope.effort == "static":
        source = source_reading.only_read(request.target, progress)
    else:
        source = source_reading.read_and_join(
            request.target,
            observed.observation,
            findings,
            unseen=observed.unseen_codes(),
            progress=progress,
        )
    seconds = round(time.monotonic() - begin, 2)
    return Judged(matched, replace(source, seconds=seconds))


# -- explain ---------------------------------------------------------------------------


def explain(
    request: Request, observed: ObservedParts, judged: Judged, *, before: Run | None
) -> Run:
    """The run: findings below their causes, and those resolved since `before`."""
    observation, source, scope = observed.observation, judged.source, request.scope
    findings = causes.linked(
        scope.selected(source.findings),
        causes.explain(judged.matched),
        causes.stopped(judged.matched),
    )
    run = replace(
        request.empty_run,
        strategy=_strategy(request, observation),
        environment=observation.environment,
        counts=_counts(scope, observed, judged.findings) | observed.audited.counts,
        findings=tuple(findings),
        measurements=tuple(observed.measured.rows),
        parts=_statuses(scope, observed, source, findings),
        configuration=source_reading.configuration(source.read, observation),
        ranks=observed.ranks.ranks if observed.ranks else None,
        ending="interrupted" if source.interrupted else observation.ending,
        exit_code=observation.exit_code,
        error=one_line(observation.error) if observation.error else None,
        calls=observation.forms,
    )
    if before is not None:
        run = history.with_resolved(
            run,
            before,
            parts_of=lambda finding: _parts_of(finding, before, run),
            suspected=lambda finding: _still_suspected(finding, scope, source),
            reached=lambda finding: source_reading.is_reached(finding, observation),
        )
    return rules.with_texts(run)


def with_drafts(run: Run, judged: Judged, draft: Draft) -> Run:
    """The run with the edits of its findings; none if drafting fails."""
    try:
        found = causes.with_remedies(draft(run.findings, judged.matched))
        return replace(run, findings=tuple(found))
    except KeyboardInterrupt:
        return replace(run, ending="interrupted")
    except Exception:  # such as a missing libcst
        return run


def _counts(
    scope: Scope, observed: ObservedParts, every: list[Finding]
) -> dict[str, Any]:
    """The counts, None for each if part breaks did not run: never 0 for unknown."""
    counts = counts_of(observed.observation, every)
    if "breaks" not in scope.parts or _missing_hook(observed.observation):
        return dict.fromkeys(counts)
    return {**counts, **observed.ranks.counts} if observed.ranks else counts


def _statuses(
    scope: Scope, observed: ObservedParts, source: Joined, findings: list[Finding]
) -> dict[str, Part]:
    dynamic = [f for f in findings if f.origin != "static"]
    own = {
        "static": source.failure or source_reading.part(source.read, findings),
        "breaks": _breaks(scope, observed, source.findings),
    }
    own["static"] = replace(own["static"], seconds=source.seconds)
    return {
        name: scope.left_out(name)
        or observed.part(name, dynamic)
        or own.get(name, own["breaks"])
        for name in PARTS
    }


def _breaks(scope: Scope, observed: ObservedParts, joined: Iterable[Finding]) -> Part:
    """The status of part breaks; findings that are only evidence of others count."""
    observation, seconds = observed.observation, observed.breaks_s
    if missing := _missing_hook(observation):
        return Part("skipped", missing, seconds)
    if observation.error or observation.ending != "finished":
        why = observation.error or f"ended by {observation.ending}"
        return Part("failed", why, seconds)
    own = [
        f
        for f in joined
        if f.origin != "static"
        and f.status == "open"
        and "breaks" in rules.parts_of(f.code)
    ]
    count = len(scope.selected(own))
    notes = [*observation.lacks.values(), *filter(None, [observed.note])]
    if len(own) > count:
        notes.append(f"{len(own) - count} left out by --select or --ignore")
    status: Literal["found", "passed"] = "found" if count else "passed"
    limit: PartLimit | None = "process" if observed.note else None
    return Part(status, "; ".join(notes), seconds, limit)


def _missing_hook(observation: Observation) -> str | None:
    """What the installed torch lacks to be observed at all."""
    return observation.lacks.get("trace") or observation.lacks.get("breaks")


def _strategy(request: Request, observation: Observation) -> str:
    """`as-written` if the program compiles itself, rather than torchproof it."""
    if request.scope.effort == "static":
        return "-"
    compiled = any(each.by_torchproof for each in observation.of(WrapperEvent))
    own = request.target.kind in {"script", "trace"} or not compiled
    return "as-written" if own else "full"


def _still_suspected(finding: Finding, scope: Scope, source: Joined) -> bool:
    """Whether a finding that is not in this run may still be present."""
    if not scope.selected([finding]):
        return True
    if finding.origin == "static":
        return finding.identity in {s.finding.identity for s in source.read.suspicions}
    # The line may have moved, so its function and text identify it.
    words = finding.function, (finding.source or "").strip()
    return any(
        finding.code.startswith(each.shown_by)
        and (each.finding.function, (each.finding.source or "").strip()) == words
        for each in source.undecided
        if each.shown_by
    )


def _parts_of(finding: Finding, before: Run, run: Run) -> list[str]:
    """The parts that can report a finding; empty if the two runs do not compare."""
    parts = rules.parts_of(finding.code)
    if not parts:
        return []  # its rule was retired: nothing looked for it
    if finding.origin == "static":
        return ["static"]
    if finding.ranks and run.ranks is None:
        return []
    devices = {each.environment.get("device") for each in (before, run)}
    return [] if "lifetimes" in parts and len(devices) > 1 else list(parts)
