"""`check`: target -> observed parts -> rules -> source -> run -> history -> disk."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchproof.checking import causes, counts, history, rules, source_reading
from torchproof.checking.join import Joined
from torchproof.checking.observed_parts import (
    ObservedParts,
    observe_on_ranks,
    observe_parts,
)
from torchproof.checking.part_progress import PartProgress
from torchproof.checking.source_reading import JoinedSource
from torchproof.observe import Ranks, assert_launchable
from torchproof.records import (
    Finding,
    Observation,
    Part,
    PartState,
    Run,
    UserError,
    blame,
    one_line,
    store,
)
from torchproof.targets import Options, Target, assert_size, live
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
EFFORTS: dict[str, tuple[str, ...]] = {
    "static": ("static",),
    "quick": ("static", "breaks"),
    "normal": ("static", "breaks", "baseline", "batch", "sequence", "latency"),
    "full": PARTS,
}


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
            return Part("skipped", "left out with --skip")
        if part not in EFFORTS[self.effort]:
            return Part("skipped", f"not part of --effort {self.effort}")
        if self.ranks is not None and part not in EFFORTS["quick"]:
            return Part("skipped", "several ranks run the target only once")
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
    ranks: Ranks | None = None,
    progress: Progress = lambda text: None,
    entering: Callable[[PartState], None] = lambda state: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """Checks how the target compiles; saves and returns the run.

    `baseline` is the run to compare with, by default the latest saved one with the same
    options. `entering` gets each part that runs.
    """
    target = parse_target(target) if isinstance(target, str) else target
    options = options or Options()
    scope = Scope(effort, tuple(skip), tuple(select), tuple(ignore), ranks)
    _assert_possible(target, options, scope)
    store.assert_writable(save_in)
    baseline = store.load(baseline, save_in) if isinstance(baseline, str) else baseline
    blame.forget()
    started = datetime.datetime.now()
    saved_options = _options_as_saved(target, options, scope)
    earlier = _earlier(target, saved_options, save_in)
    reporting = _reporting(target, scope, earlier, progress, show=entering)
    observed = _observed(target, options, scope, reporting)
    found = observed.found
    every = rules.with_costs([m.finding for m in found], observed.measured.gaps)
    source = _source(target, scope, observed, every, progress=reporting)
    run = replace(
        _record(target, scope, observed, source, every=every, found=found),
        id=f"{started:%Y%m%d-%H%M}-{target.name}",
        started=started.isoformat(timespec="seconds"),
        command=command,
        options=saved_options,
    )
    if (before := baseline or earlier) is not None:
        run = _with_resolved(run, before, scope, source, observed=observed)
    return store.save(rules.with_texts(run), save_in)


def _earlier(target: Target, options: dict[str, Any], save_in: Path) -> Run | None:
    """The latest complete check of the target with the same options."""
    alike = Run("", target.text, "", {}, {}, options=options)
    return history.latest(alike, target.name, save_in)


def _observed(
    target: Target, options: Options, scope: Scope, progress: PartProgress
) -> ObservedParts:
    if scope.ranks is None:
        return observe_parts(target, options, scope.parts, progress)
    return observe_on_ranks(target, options, scope.ranks, progress)


def _reporting(
    target: Target,
    scope: Scope,
    earlier: Run | None,
    progress: Progress,
    *,
    show: Callable[[PartState], None],
) -> PartProgress:
    """The progress of the parts; only a check of the same parts tells their times."""
    mine = (scope.effort, list(scope.skip))
    options = earlier.options if earlier else {}
    alike = (options.get("effort"), options.get("skip")) == mine
    parts = _in_order(target, scope)
    return PartProgress(parts, earlier if alike else None, progress, show=show)


def _with_resolved(
    run: Run,
    before: Run,
    scope: Scope,
    source: JoinedSource,
    *,
    observed: ObservedParts,
) -> Run:
    observation = observed.observation
    return history.with_resolved(
        run,
        before,
        parts_of=lambda finding: _parts_of(finding, before, run),
        suspected=lambda finding: _still_suspected(finding, scope, source),
        reached=lambda finding: source_reading.is_reached(finding, observation),
    )


def _in_order(target: Target, scope: Scope) -> list[str]:
    """The parts that can run, in the order in which they do."""
    parts = [name for name in scope.parts if name != "static"]
    if not target.can_run_again or live.why_not_sent(target):
        parts = [name for name in parts if name in {"breaks", "lifetimes"}]
    return [*parts, "static"] if "static" in scope.parts else parts


def _source(
    target: Target,
    scope: Scope,
    observed: ObservedParts,
    every: list[Finding],
    *,
    progress: PartProgress,
) -> JoinedSource:
    """The findings of the run, joined with what the source suggests."""
    if "static" not in scope.parts:
        return JoinedSource(Joined(tuple(every)))
    progress.enter("static")
    begin = time.monotonic()
    if scope.effort == "static":
        read = source_reading.only_read(target, progress)
    else:
        read = source_reading.read_and_join(
            target,
            observed.observation,
            every,
            unseen=observed.unseen_codes(),
            progress=progress,
        )
    return replace(read, seconds=round(time.monotonic() - begin, 2))


def _options_as_saved(target: Target, options: Options, scope: Scope) -> dict[str, Any]:
    """The options of the check, as the run saves them."""
    ranks = scope.ranks
    on_ranks = {} if ranks is None else {"ranks": ranks.count, "wrap": ranks.wrap}
    session = {"session": live.session()} if target.kind == "live" else {}
    return {
        **on_ranks,
        **session,
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
    if scope.ranks is not None:
        _assert_on_ranks(target, scope.ranks, scope.parts)


def _assert_on_ranks(target: Target, ranks: Ranks, parts: list[str]) -> None:
    assert_launchable(target, ranks)
    if "breaks" not in parts:
        raise UserError(
            "--ranks runs the target in part breaks, which this check leaves out: drop"
            " --ranks, or --skip breaks and --effort static"
        )


def _record(
    target: Target,
    scope: Scope,
    observed: ObservedParts,
    source: JoinedSource,
    *,
    every: list[Finding],
    found: Sequence[rules.Matched],
) -> Run:
    """The run of a check; `every` are the findings of all parts that ran.

    `found` are the same findings with the events that show how they are connected.
    """
    observation = observed.observation
    findings = causes.linked(
        scope.selected(source.findings), causes.explain(found), causes.stopped(found)
    )
    return Run(
        id="",
        target=target.text,
        strategy=_strategy(observation, target, scope),
        environment=observation.environment,
        counts=_counts(scope, observed, every) | observed.audited.counts,
        findings=tuple(findings),
        measurements=tuple(observed.measured.rows),
        parts=_statuses(scope, observed, source, findings),
        configuration=source_reading.configuration(source.read, observation.events),
        ranks=observed.ranks.ranks if observed.ranks else None,
        ending="interrupted" if source.interrupted else observation.ending,
        exit_code=observation.exit_code,
        error=one_line(observation.error) if observation.error else None,
        calls=observation.forms,
    )


def _counts(
    scope: Scope, observed: ObservedParts, every: list[Finding]
) -> dict[str, Any]:
    observation = observed.observation
    unseen = "breaks" not in scope.parts or _missing_hook(observation) is not None
    seen = counts.where_seen(observation, every, unseen)
    if observed.ranks is None or unseen:
        return seen
    return {**seen, **observed.ranks.counts}


def _statuses(
    scope: Scope, observed: ObservedParts, source: JoinedSource, findings: list[Finding]
) -> dict[str, Part]:
    dynamic = [f for f in findings if f.origin != "static"]
    # Also those that are only evidence of others.
    selected = [f for f in scope.selected(source.findings) if f.origin != "static"]
    static = source.failure or source_reading.part(source.read, findings)
    statuses = {
        "static": replace(static, seconds=source.seconds),
        "breaks": replace(
            _breaks(
                observed.observation, source.findings, selected, note=observed.note
            ),
            seconds=observed.breaks_s,
        ),
    }
    return {
        name: scope.left_out(name)
        or observed.part(name, dynamic)
        or statuses.get(name, statuses["breaks"])
        for name in PARTS
    }


def _strategy(observation: Observation, target: Target, scope: Scope) -> str:
    if scope.effort == "static":
        return "-"
    return "as-written" if _as_written(observation, target) else "full"


def _still_suspected(finding: Finding, scope: Scope, source: JoinedSource) -> bool:
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
    if finding.origin == "static":
        return ["static"]
    if finding.ranks and run.ranks is None:
        return []
    parts = rules.parts_of(finding.code)
    devices = {each.environment.get("device") for each in (before, run)}
    return [] if "lifetimes" in parts and len(devices) > 1 else list(parts)


def _as_written(observation: Observation, target: Target) -> bool:
    """Whether the program compiles itself, rather than torchproof compiling it."""
    if target.kind in {"script", "trace"}:
        return True
    return not any(
        e.data["by_torchproof"] for e in observation.events if e.kind == "wrapper"
    )


def _missing_hook(observation: Observation) -> str | None:
    """What the installed torch lacks to be observed at all."""
    return observation.lacks.get("trace") or observation.lacks.get("breaks")


def _breaks(
    observation: Observation,
    joined: Iterable[Finding],
    selected: Iterable[Finding],
    *,
    note: str = "",
) -> Part:
    """The status of part breaks; `selected` are the findings that --select leaves."""
    if missing := _missing_hook(observation):
        return Part("skipped", missing)
    if observation.error or observation.ending != "finished":
        return Part("failed", observation.error or f"ended by {observation.ending}")
    every = [f for f in joined if f.origin != "static"]
    count, total = (
        sum(f.status == "open" and "breaks" in rules.parts_of(f.code) for f in each)
        for each in (selected, every)
    )
    notes = [*observation.lacks.values(), *filter(None, [note])]
    if total > count:
        notes.append(f"{total - count} left out by --select or --ignore")
    return Part("found" if count else "passed", "; ".join(notes))
