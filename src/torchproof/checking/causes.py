"""Finds which findings follow from others: one cause, and what it explains.

Takes the findings of a run with their events. A finding is attached to a cause only if
the run shows it: the same argument on the same calls, the frame that another finding
separated from its caller, the code that runs alone because of a break.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from torchproof.checking.rules import Matched
from torchproof.checking.rules.advisories import Advisory
from torchproof.checking.rules.answers import (
    EarlierLayer,
    GeneratedCode,
    OtherStaleState,
)
from torchproof.checking.rules.breaks import GraphBreak, place_in_text
from torchproof.checking.rules.interruptions import break_key, only_alone, separated_by
from torchproof.checking.rules.no_ops import NothingCompiled
from torchproof.checking.rules.ranks import FailedCollective, RankEvidence, RankRule
from torchproof.checking.rules.recompile_groups import is_behind_break
from torchproof.checking.rules.recompiles import Recompile, RecompileLimit
from torchproof.checking.rules.rule import (
    PROSE,
    AnyRule,
    E,
    EventGroup,
    Interruption,
)
from torchproof.checking.rules.shapes import QuietSpecialisation, sizes_of
from torchproof.records import (
    SEVERITIES,
    SIZE_CAUSES,
    TIERS,
    BreakEvent,
    CauseTree,
    CompileEvent,
    Event,
    Finding,
    Frame,
    GuardEvent,
    LimitEvent,
    Remedy,
    SpecializationEvent,
    WrapperEvent,
    cells,
    definition,
    is_frame_of,
    place_of,
    qualified_name,
    ranks_in_words,
    resumed_at,
    shown_briefly,
)

# Guards on a size of an argument, whatever they say about it.
_MOST_NAMES = 4
_ON_HOST = re.compile(r"\s*@(?:torchproof\.)?on_host\b")
_SHARED_STATE = frozenset({"global_state", "global"})


@dataclass(frozen=True)
class Explanation:
    """The identities of the causes of a finding, and how it follows from them."""

    causes: tuple[str, ...]
    because: str
    merges: bool = False  # it is evidence of its causes, not a finding of its own


Explanations = dict[str, Explanation]


def explain(found: Sequence[Matched]) -> Explanations:
    """The findings that follow from others, by identity."""
    known: Explanations = {}
    named = Counter(each.finding.identity for each in found)
    for finder in _FINDERS:
        links = list(finder(found))
        explained = Counter(identity for identity, _ in links)
        for identity, explanation in links:
            if explained[identity] < named[identity]:
                continue  # a finding of the same identity is its own cause
            causes = tuple(c for c in explanation.causes if c != identity)
            circular = any(identity in _above(known, cause) for cause in causes)
            if causes and identity not in known and not circular:
                known[identity] = replace(explanation, causes=causes)
    return known


def stopped(found: Sequence[Matched]) -> dict[str, tuple[str, ...]]:
    """By identity of a finding: what was compiled, and runs eagerly because of it.

    That is what torch.compile was called with, not a function within it.
    """
    names: dict[str, dict[str, None]] = {}
    for each in found:
        for wrapper in each.group.facts.of(WrapperEvent) if _stops(each) else ():
            functions = [event.function for event in each.group.events]
            if wrapper.function is not None and wrapper.function in functions:
                own = names.setdefault(each.finding.identity, {})
                own[str(wrapper.name)] = None
    return {identity: tuple(own) for identity, own in names.items()}


def _stops(each: Matched) -> bool:
    kinds = ("skipped_frame", "recompile_limit", "compile_error")
    return each.finding.kind in kinds and each.finding.status == "open"


def linked(
    findings: Iterable[Finding],
    known: Explanations,
    stops: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Finding]:
    """The findings with their links, causes first, the costliest of them first.

    `stops` is what `stopped` returns. A finding that only repeats what its causes say
    becomes their evidence.
    """
    every = list(findings)
    usable = {f.identity: f for f in every if _is_linked(f)}
    # Without one of its causes among them, the finding would not disappear.
    links = {
        identity: explanation
        for identity, explanation in known.items()
        if identity in usable and usable.keys() >= set(explanation.causes)
    }
    below: defaultdict[str, list[str]] = defaultdict(list)
    evidence: defaultdict[str, list[str]] = defaultdict(list)
    for identity, explanation in links.items():
        said = f"{usable[identity].message} ({usable[identity].code})"
        for cause in _not_merged(explanation.causes, links):
            if explanation.merges:
                evidence[cause].append(said)
            else:
                below[cause].append(identity)
    remaining = []
    for finding in every:
        own = links.get(finding.identity) if _is_linked(finding) else None
        if own is None or not own.merges:
            explained = replace(
                finding,
                stops=(stops or {}).get(finding.identity, ()),
                evidence=(*finding.evidence, *evidence[finding.identity]),
                consequences=tuple(below[finding.identity])
                if _is_linked(finding)
                else (),
            )
            if own is not None:
                causes = _not_merged(own.causes, links)
                explained = replace(
                    explained,
                    cause_of=causes,
                    because=own.because,
                    certainty="likely",
                )
            remaining.append(explained)
    return ranked(remaining)


def with_remedies(findings: Iterable[Finding]) -> list[Finding]:
    """The findings; an effect without a remedy as data has those of its causes."""
    every = list(findings)
    tree = CauseTree(every)
    return [_with_remedies(finding, tree) for finding in every]


def _with_remedies(finding: Finding, tree: CauseTree) -> Finding:
    causes = _removing(finding, tree)
    remedies = [cause.remedy for cause in causes if cause.remedy is not None]
    if not causes or _has_data(finding) or not all(map(_has_data, causes)):
        return finding
    if any(map(_splits, remedies)):
        return finding  # what follows is compiled apart as before
    first = causes[0]
    title = f"remove the {first.kind.replace('_', ' ')}"
    if first.file and first.line:
        title += f" at {cells.place(shown_briefly(first.file), first.line)}"
    title += f" ({first.code}), which causes this"
    long = f"{title}: {first.fix}"
    remedy = Remedy(
        remedies[0].kind,
        title=long if len(long) <= PROSE else title,
        tier=max((each.tier for each in remedies), key=TIERS.index),
        of=tuple(cause.identity for cause in causes),
    )
    return replace(finding, remedy=remedy, fix=remedy.text)


def _splits(remedy: Remedy) -> bool:
    """Whether an edit compiles apart what is before and after a function on the host.

    Its values are Python as before: the guards on them remain.
    """
    lines = (line for each in remedy.replacements for line in each.new)
    return any(_ON_HOST.match(line) for line in lines)


def _removing(
    finding: Finding, tree: CauseTree, above: tuple[str, ...] = ()
) -> list[Finding]:
    """The findings whose remedies together remove an effect; none if one is unknown."""
    causes = tree.causes_of(finding)
    if len(causes) < len(finding.cause_of) or finding.identity in above:
        return []
    found: dict[str, Finding] = {}
    for cause in causes:
        is_own = _has_data(cause) or not cause.cause_of
        next_above = (*above, finding.identity)
        more = [cause] if is_own else _removing(cause, tree, next_above)
        if not more:
            return []
        found |= {each.identity: each for each in more}
    return list(found.values())


def _has_data(finding: Finding) -> bool:
    return finding.remedy is not None and finding.remedy.kind != "none"


def _is_linked(finding: Finding) -> bool:
    """Whether a finding can be a cause or a consequence."""
    return finding.status == "open" and not finding.is_suspicion


def _not_merged(causes: Iterable[str], links: Explanations) -> tuple[str, ...]:
    """The causes, with their own in place of those that become evidence."""
    separate: dict[str, None] = {}
    for cause in causes:
        above = links.get(cause)
        merges = above is not None and above.merges
        more = _not_merged(above.causes, links) if above and merges else (cause,)
        separate |= dict.fromkeys(more)
    return tuple(separate)


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Causes by severity, then by whether anything is compiled with them, then cost.

    What makes a whole compiled function eager costs more than its line shows, and hides
    the breaks behind it.
    """
    every = list(findings)
    tree = CauseTree(every)

    def rank(finding: Finding) -> tuple[object, ...]:
        effects = tree.effects(finding)
        costs = [f.cost_us for f in (finding, *effects) if f.cost_us is not None]
        return (
            finding.status != "open",
            tree.is_effect(finding),
            SEVERITIES.index(tree.severity(finding)),
            not finding.stops,
            -max(sum(costs), 0.0),
            -_explains(finding, effects),
        )

    return sorted(every, key=rank)


def _explains(cause: Finding, effects: Sequence[Finding]) -> int:
    """How much of the run a cause explains: recompiles, its own too, and findings."""
    every = (cause, *effects)
    recompiles = sum(f.count or 1 for f in every if f.kind == "recompile")
    return recompiles + len(effects)


def _above(known: Explanations, identity: str) -> set[str]:
    """A finding and everything that explains it."""
    above, new = {identity}, [identity]
    while new:
        explanation = known.get(new.pop())
        more = set(explanation.causes if explanation else ()) - above
        above |= more
        new += more
    return above


# -- what the events show --------------------------------------------------------------

Links = Iterator[tuple[str, Explanation]]


def _with(
    found: Iterable[Matched], kind: type[E], *rules: type[AnyRule]
) -> Iterator[tuple[Matched, list[E]]]:
    """The findings of these rules, each with its events of a class."""
    for each in found:
        if isinstance(each.rule, rules):
            yield each, [e for e in each.group.events if isinstance(e, kind)]


def _link(
    finding: Finding, causes: Iterable[Finding], why: str
) -> tuple[str, Explanation]:
    identities = dict.fromkeys(cause.identity for cause in causes)
    return finding.identity, Explanation(tuple(identities), why)


def _apart(found: Sequence[Matched]) -> Links:
    """Findings about code that is only compiled apart because of another finding.

    Recompiles of such functions, and breaks in code that Dynamo compiles only because
    its function runs eagerly.
    """
    cuts = _Interruptions(found)
    for each, guards in _with(found, GuardEvent, Recompile, RecompileLimit):
        behind = [is_behind_break(e, each.group.facts) for e in guards]
        yield from cuts.explain(each, guards, only=behind)
    for each, fixed in _with(found, SpecializationEvent, QuietSpecialisation):
        yield from cuts.explain(each, fixed)
    for each, breaks in _with(found, BreakEvent, GraphBreak):
        if all(map(only_alone, breaks)):
            yield from cuts.explain(each, breaks)


class _Interruptions:
    """The findings about breaks and refused recompiles, by their events."""

    def __init__(self, found: Sequence[Matched]) -> None:
        self._breaks: dict[tuple[object, ...], Finding] = {}
        self._limits: dict[Frame | None, Finding] = {}
        for each, breaks in _with(found, BreakEvent, GraphBreak):
            for event in breaks:
                self._breaks.setdefault(break_key(event), each.finding)
        for each, limits in _with(found, LimitEvent, RecompileLimit):
            for limit in limits:
                self._limits.setdefault(limit.function, each.finding)

    def explain(
        self,
        each: Matched,
        events: Sequence[CompileEvent],
        *,
        only: Sequence[bool] = (),
    ) -> Links:
        """One explanation, if every event of a finding has an interruption above."""
        facts = each.group.facts
        cuts = [separated_by(event, facts) for event in events]
        causes = [self._finding(cut) for cut in cuts]
        if not cuts or not all(only) or None in causes or each.finding in causes:
            return
        often = Counter(f.identity for f in causes if f is not None)
        places = dict.fromkeys(_in_words(cut) for cut in cuts if cut is not None)
        names = dict.fromkeys(_name(event.function) for event in events)
        verb = "is" if len(names) == 1 else "are"
        because = (
            f"{_listed(names)} {verb} compiled apart from the caller only because of"
            f" {_listed(places)}"
        )
        causes_by_count = tuple(identity for identity, _ in often.most_common())
        yield each.finding.identity, Explanation(causes_by_count, because)

    def _finding(self, cut: Interruption | None) -> Finding | None:
        if isinstance(cut, LimitEvent):
            return self._limits.get(cut.function)
        return None if cut is None else self._breaks.get(break_key(cut))


def _refused(found: Sequence[Matched]) -> Links:
    """The recompile limit follows from the recompiles of the same function."""
    for limit, _ in _with(found, LimitEvent, RecompileLimit):
        functions = {event.function for event in limit.group.events}
        counts: Counter[str] = Counter()
        for each, guards in _with(found, GuardEvent, Recompile):
            own = sum(event.function in functions for event in guards)
            counts[each.finding.identity] += own
        causes = tuple(identity for identity, n in counts.most_common() if n)
        times = sum(counts.values())
        name = _name(limit.group.first.function)
        because = f"{name} was recompiled {times} times before it reached the limit"
        yield limit.finding.identity, Explanation(causes, because)


def _nothing_left(found: Sequence[Matched]) -> Links:
    """No compiled code runs if breaks make Dynamo skip the compiled function."""
    for each, events in _with(found, Event, NothingCompiled):
        functions = {event.function for event in events} - {None}
        breaks = [
            other.finding
            for other, cuts in _with(found, BreakEvent, GraphBreak)
            if other.finding.status == "open"
            if any(_is_in(event, functions) for event in cuts)
        ]
        whole = [finding for finding in breaks if finding.kind == "skipped_frame"]
        because = f"it leaves nothing of {_name(each.group.first.function)} to compile"
        identity, explanation = _link(each.finding, whole or breaks, because)
        yield identity, replace(explanation, merges=True)


def _is_in(event: Event, functions: set[Frame | None]) -> bool:
    """Whether an event happened in one of these functions, or in what it calls."""
    return event.function in functions or any(
        is_frame_of(frame, function) for frame in event.frames for function in functions
    )


def _inside(found: Sequence[Matched]) -> Links:
    """Breaks of an expression within another one that breaks: `print(x.item())`.

    Breaks in a library, that one line of the user reaches, are findings of their own.
    """
    breaks = [
        each.finding
        for each, _ in _with(found, BreakEvent, GraphBreak)
        if each.group.place.library is None
    ]
    # Of breaks at the same expression, the one that skips the function comes first.
    breaks.sort(key=lambda finding: finding.kind != "skipped_frame")
    for number, inner in enumerate(breaks):
        for other, outer in enumerate(breaks):
            before = other < number or _columns(outer) != _columns(inner)
            if other != number and before and _contains(outer, inner):
                because = f"it is part of the expression of {outer.code}"
                identity, explanation = _link(inner, [outer], because)
                yield identity, replace(explanation, merges=True)
                break


def _columns(finding: Finding) -> tuple[float, float]:
    """The columns of an expression; those of the line if it is the whole line."""
    if finding.column is None or finding.end_column is None:
        return 0, math.inf
    return finding.column, finding.end_column


def _contains(outer: Finding, inner: Finding) -> bool:
    """Whether the expression of one break lies within that of another."""
    place = (outer.file, outer.line, outer.status)
    if outer.file is None or place != (inner.file, inner.line, inner.status):
        return False
    (begin, end), (inner_begin, inner_end) = _columns(outer), _columns(inner)
    severe = SEVERITIES.index(outer.severity) <= SEVERITIES.index(inner.severity)
    return severe and begin <= inner_begin and inner_end <= end


def _fixed(found: Sequence[Matched]) -> Links:
    """Recompiles for sizes that a line of the compiled code makes constants."""
    lines = {
        size: each
        for each, _ in _with(found, SpecializationEvent, QuietSpecialisation)
        for size in sizes_of(cast(EventGroup[SpecializationEvent], each.group))
    }
    for each, events in _with(found, GuardEvent, Recompile):
        guards = [event.callers_guard for event in events]
        sizes = {(g.source, g.dim) for g in guards if g and g.cause == "size"}
        heads = {lines[s].finding.identity: lines[s] for s in sizes if s in lines}
        if len(heads) == 1 and len(sizes) == 1 and None not in guards:
            [head] = heads.values()
            where = place_in_text(head.group.frame) if head.group.frame else "a line"
            because = f"{where} makes this size a constant"
            yield _link(each.finding, [head.finding], because)


def _same_input(found: Sequence[Matched]) -> Links:
    """Recompiles of several functions for the same change of one input."""
    every = [
        (each, events[0], _changes(events))
        for each, events in _with(found, GuardEvent, Recompile)
    ]
    for number, (each, event, own) in enumerate(every):
        heads = [
            (len(theirs), -other, other)
            for other, (_, _, theirs) in enumerate(every)
            if other != number and own <= theirs
        ]
        if not own or not heads:
            continue
        head, first, theirs = every[max(heads)[2]]
        alike = _code(event) == _code(first)
        if alike or (own == theirs and number < max(heads)[2]):
            continue
        guard = first.callers_guard
        because = f"the same change of `{guard.source if guard else ''}`"
        yield _link(each.finding, [head.finding], because)


def _changes(events: Iterable[GuardEvent]) -> frozenset[tuple[object, ...]]:
    """What changed, and when, for each event; empty if that is not known of all."""
    changes = [_change(event) for event in events]
    return frozenset() if None in changes else frozenset(filter(None, changes))


def _change(event: GuardEvent) -> tuple[object, ...] | None:
    """A change that is the same one wherever a guard notices it.

    It is of one tensor, of a state of torch, or of an argument in the same call.
    """
    guard, call = event.callers_guard, event.entry_call
    assert guard is not None
    about = "size" if guard.cause in SIZE_CAUSES else guard.cause
    if guard.cause in _SHARED_STATE and event.call is not None:
        return (about, guard.source, event.call)
    path = event.path
    if call is None or path is None:
        return None
    if (number := call.tensors.get(path)) is not None:
        return (about, guard.dim, number)
    if event.call is None:
        return None
    return (about, guard.dim, call.entry, path, guard.source, event.call)


def _code(event: GuardEvent) -> tuple[object, ...]:
    return event.function, event.guard and event.guard.cause


def _same_line(found: Sequence[Matched]) -> Links:
    """Breaks that several lines of the user reach at one line of a library."""
    at: dict[tuple[object, ...], list[Matched]] = {}
    for each, events in _with(found, BreakEvent, GraphBreak):
        if library := each.group.place.library:
            key = (library.file, library.line, events[0].reason.type)
            at.setdefault(key, []).append(each)
    for group in at.values():
        head = max(group, key=lambda each: each.finding.count or 0)
        assert head.group.place.library is not None
        where = place_in_text(head.group.place.library)
        for each in group:
            if each is not head:
                because = f"the same line breaks the graph: {where}"
                yield _link(each.finding, [head.finding], because)


def _known_bug(found: Sequence[Matched]) -> Links:
    """Outputs that differ in a run whose graph can hit a known bug of torch."""
    bugs = [each.finding for each in found if isinstance(each.rule, Advisory)]
    for each, _ in _with(found, Event, GeneratedCode, EarlierLayer, OtherStaleState):
        if causes := [bug for bug in bugs if bug.suspects == each.finding.kind]:
            codes = _listed(dict.fromkeys(cause.code for cause in causes))
            because = f"the installed torch has a bug that the graph can hit: {codes}"
            yield _link(each.finding, causes, because)


def _on_some_ranks(found: Sequence[Matched]) -> Links:
    """Findings of one rank that are part of what this rank does alone."""
    having = {each.finding.identity: each.finding.ranks for each in found}
    for each, evidence in _with(found, RankEvidence, RankRule):
        because = f"it occurs on {ranks_in_words(each.finding.ranks)} only"
        for shown in (finding for event in evidence for finding in event.shown):
            if set(having.get(shown.identity, ())) <= set(each.finding.ranks):
                yield _link(shown, [each.finding], because)


def _while_compiling(found: Sequence[Matched]) -> Links:
    """Collectives that failed while a rank compiled alone."""
    because = "the missing rank was compiling because of it"
    for failed, evidence in _with(found, RankEvidence, FailedCollective):
        compiles = {c for event in evidence for c in event.compiles if c[1]}
        for each, theirs in _with(found, RankEvidence, RankRule):
            own = {c for event in theirs for c in event.compiles}
            if each is not failed and compiles & own:
                yield _link(failed.finding, [each.finding], because)


_FINDERS = (
    _apart,
    _refused,
    _nothing_left,
    _inside,
    _fixed,
    _same_input,
    _same_line,
    _known_bug,
    _on_some_ranks,
    _while_compiling,
)


def _in_words(cut: Interruption) -> str:
    if isinstance(cut, LimitEvent):
        return f"the recompile limit of {_name(cut.function)}"
    frame = place_of(cut.frames).frame
    return f"the break at {place_in_text(frame)}" if frame else "a break in torch"


def _name(function: Frame | None) -> str:
    if function is None:
        return "the function"
    name, line = qualified_name(definition(function)), resumed_at(function.function)
    return name if line is None else f"{name} from line {line} on"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    if len(every) > _MOST_NAMES:
        every[_MOST_NAMES - 1 :] = [f"{len(every) - _MOST_NAMES + 1} others"]
    *most, last = every
    return f"{', '.join(most)} and {last}" if most else last
