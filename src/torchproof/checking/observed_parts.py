"""Runs the parts of a check that run the target: breaks, measurements, lifetimes."""

from __future__ import annotations

import platform
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torchproof.checking import rules
from torchproof.checking.measured_parts import MEASURED, MeasuredParts, PartsMeasurer
from torchproof.checking.ranks import CheckedRanks, check_ranks
from torchproof.checking.rules import RULES
from torchproof.observe import (
    AuditResult,
    Ranks,
    audit,
    observe,
    observe_ranks,
)
from torchproof.records import Finding, Observation, Part, PartState, Run, shapes
from torchproof.targets import Options, Target, live

_NOTHING_RUN = shapes.Environment(
    torch=None, device=None, python=platform.python_version()
)


class PartProgress:
    """The progress of a check: call it with a line, `enter` each part as it begins.

    The time left is estimated from an earlier run of the same parts, and a part of this
    run that has ended: the earlier times, scaled by how long that part took this time.
    """

    def __init__(
        self,
        parts: Iterable[str],
        earlier: Run | None,
        tell: Callable[[str], None],
        *,
        show: Callable[[PartState], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = list(parts)
        self._earlier_s = _seconds(earlier) if earlier else {}
        self._tell, self._show = tell, show
        self._clock = clock
        self._took_s: dict[str, float] = {}
        self._part: str | None = None
        self._begun = 0.0

    def __call__(self, text: str) -> None:
        self._tell(text)

    def enter(self, part: str, limit_s: float | None = None) -> None:
        """`limit_s` is when the part ends at the latest."""
        now = self._clock()
        if self._part is not None:
            self._took_s[self._part] = now - self._begun
        self._part, self._begun = part, now
        number = self._parts.index(part)
        left_s = self._left(self._parts[number:])
        count = len(self._parts)
        self._show(PartState(part, number + 1, count, left_s, limit_s))

    def _left(self, rest: list[str]) -> float | None:
        """What these parts will take; None if a time or the scale is missing."""
        both = [name for name in self._took_s if self._earlier_s.get(name)]
        if not both or any(name not in self._earlier_s for name in rest):
            return None
        now_s = sum(self._took_s[name] for name in both)
        scale = now_s / sum(self._earlier_s[name] for name in both)
        return scale * sum(self._earlier_s[name] for name in rest)


def _seconds(run: Run) -> dict[str, float]:
    """What the parts of a run took; a part that did not apply took no time."""
    spent = {
        name: 0.0 if part.status == "skipped" else part.seconds
        for name, part in run.parts.items()
    }
    return {name: seconds for name, seconds in spent.items() if seconds is not None}


@dataclass(frozen=True)
class ObservedParts:
    """What the parts observed together, and what two of them add."""

    observation: Observation
    measured: MeasuredParts
    audited: AuditResult
    breaks_s: float | None = None  # what part breaks took
    ranks: CheckedRanks | None = None  # of a check with several ranks
    note: str = ""  # about where part breaks ran

    @property
    def found(self) -> list[rules.Matched]:
        """The findings of what was observed, with their rules and events."""
        if self.ranks is not None:
            return list(self.ranks.found)
        return rules.matched(self.observation, self.measured.gaps)

    @property
    def statuses(self) -> dict[str, Part]:
        return {**self.measured.parts, "lifetimes": self.audited.status}

    def part(self, name: str, findings: Iterable[Finding]) -> Part | None:
        """The status of a part: `found` if one of its own findings is open."""
        part = self.statuses.get(name)
        # An audit may fail because of what it found: reused memory was read.
        ended = {"passed", "failed"} if name == "lifetimes" else {"passed"}
        if part is not None and part.status in ended:
            open_codes = {f.code for f in findings if f.status == "open"}
            if any(name in rules.parts_of(code) for code in open_codes):
                return replace(part, status="found")
        return part

    def unseen_codes(self) -> dict[str, str]:
        """Codes that no part of this check could show, and the part that can."""
        passed = {n for n, part in self.statuses.items() if part.status == "passed"}
        passed |= {"static", "breaks"}
        return {r.code: r.parts[0] for r in RULES if passed.isdisjoint(r.parts)}


def observe_on_ranks(
    target: Target, options: Options, ranks: Ranks, progress: PartProgress
) -> ObservedParts:
    """Runs the target once on all ranks; the other parts measure one process only."""
    begin = time.monotonic()
    progress.enter("breaks", options.timeout_s)
    joined = observe_ranks(target, options, ranks, progress)
    seconds = round(time.monotonic() - begin, 2)
    nothing = audit.skipped("")
    checked = check_ranks(joined.run, joined.observations)
    return ObservedParts(joined.observation, MeasuredParts(), nothing, seconds, checked)


def observe_parts(
    target: Target, options: Options, parts: list[str], progress: PartProgress
) -> ObservedParts:
    """Runs the target for each of the parts, as far as it can run again."""
    begin = time.monotonic()
    observation, breaks_s = Observation((), _NOTHING_RUN), None
    if "breaks" in parts:
        progress.enter("breaks", options.timeout_s)
        observation = observe(target, options, progress)
        observation = replace(observation, as_written=options.as_written)
        breaks_s = round(time.monotonic() - begin, 2)
    observation, measured = _measured(
        observation, target, options, parts, progress=progress
    )
    begin = time.monotonic()
    observation, audited = _with_audit(
        observation, target, options, parts, progress=progress
    )
    if audited.status.status != "skipped":
        seconds = round(time.monotonic() - begin, 2)
        audited = replace(audited, status=replace(audited.status, seconds=seconds))
    why = live.why_not_sent(target)
    note = f"in this process, because {why}" if why else ""
    return ObservedParts(observation, measured, audited, breaks_s, note=note)


def _measured(
    observation: Observation,
    target: Target,
    options: Options,
    parts: list[str],
    *,
    progress: PartProgress,
) -> tuple[Observation, MeasuredParts]:
    """Runs the measuring parts if the target can run again."""
    why = _why_not_again(target, observation)
    if target.kind == "script":
        words = ("--", *target.arguments) if target.arguments else ()
        bench = shlex.join(["torchproof", "bench", target.text, *words])
        why = (
            "a script runs only once, so this effort adds nothing to quick; to measure"
            f" it, {bench}"
        )
    measuring = [name for name in parts if name in MEASURED]
    if why or not measuring:
        skipped = {name: Part("skipped", why or "") for name in measuring}
        return observation, MeasuredParts(parts=skipped)
    measurer = PartsMeasurer(target, options, progress, entering=progress.enter)
    measured = measurer.run(measuring)
    return _with(observation, measured), measured


def _with_audit(
    observation: Observation,
    target: Target,
    options: Options,
    parts: list[str],
    *,
    progress: PartProgress,
) -> tuple[Observation, AuditResult]:
    """Adds what part lifetimes observes, if the part is selected and possible."""
    why = _why_not_again(target, observation)
    if target.kind == "script" and "breaks" in parts:
        why = "check runs a script only once; with --skip breaks this part runs it"
    if "lifetimes" not in parts or why:
        return observation, audit.skipped(why or "")
    progress.enter("lifetimes", options.timeout_s)
    audited = audit.audit(target, options, progress)
    return _with(observation, audited), audited


def _with(observation: Observation, more: MeasuredParts | AuditResult) -> Observation:
    """What was observed, and what a part observed besides."""
    return replace(
        observation,
        events=(*observation.events, *more.events),
        environment={**observation.environment, **more.environment},
        ending="interrupted" if more.interrupted else observation.ending,
    )


def _why_not_again(target: Target, observation: Observation) -> str | None:
    """Why the target cannot run once more; None if it can."""
    if target.kind == "trace":
        return "a trace cannot be run"
    if why := live.why_not_sent(target):
        return why
    finished = observation.ending == "finished" and not observation.error
    return None if finished else "the target did not run to its end"
