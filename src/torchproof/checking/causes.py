"""Finds which findings follow from others: one cause, and what it explains.

Takes the findings of a run with their events. A finding is attached to a cause only if
the run shows it: the same argument on the same calls, the frame that another finding
separated from its caller, the code that runs alone because of a break.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torchproof.checking.rules import Matched
from torchproof.checking.rules.advisories import Advisory
from torchproof.checking.rules.answers import (
    EarlierLayer,
    GeneratedCode,
    OtherStaleState,
)
from torchproof.checking.rules.breaks import (
    GraphBreak,
    break_key,
    only_alone,
    place_in_text,
    separated_by,
)
from torchproof.checking.rules.no_ops import NothingCompiled
from torchproof.checking.rules.ranks import FailedCollective, RankRule, evidence_of
from torchproof.checking.rules.recompiles import Recompile, RecompileLimit
from torchproof.checking.rules.shapes import QuietSpecialisation, sizes_of
from torchproof.records import (
    SEVERITIES,
    CauseTree,
    Event,
    Finding,
    Frame,
    definition,
    place_of,
    qualified_name,
    ranks_in_words,
    resumed_at,
)

# Guards on a size of an argument, whatever they say about it.
_OF_SIZE = frozenset({"size", "size_one", "equal_sizes", "shape_condition"})
_MOST_NAMES = 4
_SHARED_STATE = frozenset({"global_state", "global"})


@dataclass(frozen=True)
class Explanation:
    """The identities of the causes of a finding, and how it follows from them."""

    causes: tuple[str, ...]
    because: str


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


def linked(findings: Iterable[Finding], known: Explanations) -> list[Finding]:
    """The findings with their links, causes first, the costliest of them first."""
    every = list(findings)
    usable = {f.identity for f in every if f.status == "open" and not f.is_suspicion}
    # Without one of its causes among them, the finding would not disappear.
    links = {
        identity: explanation
        for identity, explanation in known.items()
        if identity in usable and usable.issuperset(explanation.causes)
    }
    below: dict[str, list[str]] = {}
    for identity, explanation in links.items():
        for cause in explanation.causes:
            below.setdefault(cause, []).append(identity)
    return ranked(_with_links(f, links.get(f.identity), below) for f in every)


def _with_links(
    finding: Finding, explanation: Explanation | None, below: dict[str, list[str]]
) -> Finding:
    if finding.status != "open" or finding.is_suspicion:
        return finding
    return replace(
        finding,
        cause_of=explanation.causes if explanation else (),
        because=explanation.because if explanation else None,
        certainty="likely" if explanation else None,
        consequences=tuple(below.get(finding.identity, ())),
    )


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Causes by severity, then cost, then how much they explain; then the rest."""
    every = list(findings)
    tree = CauseTree(every)

    def rank(finding: Finding) -> tuple[object, ...]:
        effects = tree.effects(finding)
        costs = [f.cost_us for f in (finding, *effects) if f.cost_us is not None]
        return (
            finding.status != "open",
            tree.is_effect(finding),
            SEVERITIES.index(tree.severity(finding)),
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


def _behind(found: Sequence[Matched]) -> Links:
    """Recompiles of functions that are only compiled apart because of a finding."""
    interruptions = _Interruptions(found)
    for each in found:
        if isinstance(each.rule, Recompile | RecompileLimit):
            cuts = [event.data["separated_by"] for event in each.group.events]
            yield from interruptions.explain(each, cuts)
        elif isinstance(each.rule, QuietSpecialisation):
            cuts = [separated_by(e, each.group.facts) for e in each.group.events]
            yield from interruptions.explain(each, cuts)


def _alone(found: Sequence[Matched]) -> Links:
    """Breaks in code that Dynamo compiles only because its function runs eagerly."""
    interruptions = _Interruptions(found)
    for each in found:
        if isinstance(each.rule, GraphBreak) and all(
            map(only_alone, each.group.events)
        ):
            cuts = [separated_by(e, each.group.facts) for e in each.group.events]
            yield from interruptions.explain(each, cuts)


class _Interruptions:
    """The findings about breaks and refused recompiles, by their events."""

    def __init__(self, found: Sequence[Matched]) -> None:
        self._breaks: dict[tuple[object, ...], Finding] = {}
        self._limits: dict[Frame | None, Finding] = {}
        for each in found:
            for event in each.group.events:
                if isinstance(each.rule, GraphBreak):
                    self._breaks.setdefault(break_key(event), each.finding)
                elif isinstance(each.rule, RecompileLimit):
                    self._limits.setdefault(event.function, each.finding)

    def explain(self, each: Matched, cuts: Sequence[Event | None]) -> Links:
        """One explanation, if every event of a finding has an interruption above."""
        causes = [self._finding(cut) for cut in cuts]
        if not cuts or None in causes or each.finding in causes:
            return
        often = Counter(f.identity for f in causes if f is not None)
        places = dict.fromkeys(_in_words(cut) for cut in cuts if cut is not None)
        names = dict.fromkeys(_name(e.function) for e in each.group.events)
        verb = "is" if len(names) == 1 else "are"
        yield (
            each.finding.identity,
            Explanation(
                tuple(identity for identity, _ in often.most_common()),
                f"{_listed(names)} {verb} compiled apart from the caller only because"
                f" of {_listed(places)}",
            ),
        )

    def _finding(self, cut: Event | None) -> Finding | None:
        if cut is None:
            return None
        if cut.kind == "recompile_limit":
            return self._limits.get(cut.function)
        return self._breaks.get(break_key(cut))


def _refused(found: Sequence[Matched]) -> Links:
    """The recompile limit follows from the recompiles of the same function."""
    for limit in found:
        if not isinstance(limit.rule, RecompileLimit):
            continue
        functions = {event.function for event in limit.group.events}
        counts: Counter[str] = Counter()
        for each in found:
            if isinstance(each.rule, Recompile):
                own = [e for e in each.group.events if e.function in functions]
                counts[each.finding.identity] += len(own)
        causes = tuple(identity for identity, n in counts.most_common() if n)
        times = sum(counts.values())
        name = _name(limit.group.first.function)
        because = f"{name} was recompiled {times} times before it reached the limit"
        yield limit.finding.identity, Explanation(causes, because)


def _nothing_left(found: Sequence[Matched]) -> Links:
    """No compiled code runs if breaks make Dynamo skip the compiled function."""
    for each in found:
        if not isinstance(each.rule, NothingCompiled):
            continue
        functions = {event.function for event in each.group.events}
        skips = [
            other.finding.identity
            for other in found
            if isinstance(other.rule, GraphBreak)
            and any(
                event.data.get("skips") and event.function in functions
                for event in other.group.events
            )
        ]
        because = f"Dynamo skips {_name(each.group.first.function)} because of it"
        yield each.finding.identity, Explanation(tuple(skips), because)


def _fixed(found: Sequence[Matched]) -> Links:
    """Recompiles for sizes that a line of the compiled code makes constants."""
    lines = {
        size: each
        for each in found
        if isinstance(each.rule, QuietSpecialisation)
        for size in sizes_of(each.group)
    }
    for each in found:
        if not isinstance(each.rule, Recompile):
            continue
        guards = [event.data["guard"] for event in each.group.events]
        sizes = {(g.source, g.dim) for g in guards if g.cause == "size"}
        heads = {lines[s].finding.identity: lines[s] for s in sizes if s in lines}
        if (
            len(heads) == 1
            and len(sizes) == 1
            and len(guards) == len(each.group.events)
        ):
            [(identity, head)] = heads.items()
            frame = head.group.frame
            where = place_in_text(frame) if frame else "a line of it"
            because = f"{where} makes this size a constant"
            yield each.finding.identity, Explanation((identity,), because)


def _same_input(found: Sequence[Matched]) -> Links:
    """Recompiles of several functions for the same change of one input."""
    changes = [(each, _changes(each)) for each in found if _is_recompile(each)]
    for each, own in changes:
        heads = [
            (other, theirs)
            for other, theirs in changes
            if own < theirs or (own == theirs and other.finding is not each.finding)
        ]
        if not own or not heads:
            continue
        head, theirs = max(heads, key=lambda pair: len(pair[1]))
        earlier = found.index(head) < found.index(each)
        if _code(each) == _code(head) or (own == theirs and not earlier):
            continue
        because = f"the same change of `{head.group.data['guard'].source}`"
        cause = (head.finding.identity,)
        yield each.finding.identity, Explanation(cause, because)


def _is_recompile(each: Matched) -> bool:
    return isinstance(each.rule, Recompile)


def _changes(each: Matched) -> frozenset[tuple[object, ...]]:
    """What changed, and when, for each event; empty if that is not known of all."""
    changes = [_change(event) for event in each.group.events]
    return frozenset() if None in changes else frozenset(filter(None, changes))


def _change(event: Event) -> tuple[object, ...] | None:
    """A change that is the same one wherever a guard notices it.

    It is of one tensor, of a state of torch, or of an argument in the same call.
    """
    guard, call = event.data["guard"], event.data.get("entry_call")
    about = "size" if guard.cause in _OF_SIZE else guard.cause
    if guard.cause in _SHARED_STATE and event.call is not None:
        return (about, guard.source, event.call)
    path = event.data.get("path")
    if call is None or path is None:
        return None
    if (number := call.tensors.get(path)) is not None:
        return (about, guard.dim, number)
    if event.call is None:
        return None
    return (about, guard.dim, call.entry, path, guard.source, event.call)


def _code(each: Matched) -> tuple[Frame | None, str]:
    event = each.group.first
    return event.function, event.data["guard"].cause


def _same_line(found: Sequence[Matched]) -> Links:
    """Breaks that several lines of the user reach at one line of a library."""
    at: dict[tuple[object, ...], list[Matched]] = {}
    for each in found:
        library = each.group.place.library
        if isinstance(each.rule, GraphBreak) and library is not None:
            key = (library.file, library.line, each.group.data["type"])
            at.setdefault(key, []).append(each)
    for group in at.values():
        head = max(group, key=lambda each: each.finding.count or 0)
        library = head.group.place.library
        assert library is not None
        because = f"the same line breaks the graph: {place_in_text(library)}"
        for each in group:
            if each is not head:
                cause = (head.finding.identity,)
                yield each.finding.identity, Explanation(cause, because)


def _known_bug(found: Sequence[Matched]) -> Links:
    """Outputs that differ in a run whose graph can hit a known bug of torch."""
    bugs = [each for each in found if isinstance(each.rule, Advisory)]
    for each in found:
        if not isinstance(each.rule, GeneratedCode | EarlierLayer | OtherStaleState):
            continue
        kind = each.finding.kind
        causes = [b.finding for b in bugs if b.finding.suspects == kind]
        if causes:
            codes = _listed(dict.fromkeys(cause.code for cause in causes))
            because = f"the installed torch has a bug that the graph can hit: {codes}"
            identities = tuple(dict.fromkeys(cause.identity for cause in causes))
            yield each.finding.identity, Explanation(identities, because)


def _on_some_ranks(found: Sequence[Matched]) -> Links:
    """Findings of one rank that are part of what this rank does alone."""
    having = {each.finding.identity: each.finding.ranks for each in found}
    for each in found:
        if not isinstance(each.rule, RankRule):
            continue
        ranks = ranks_in_words(each.finding.ranks)
        for shown in (f for e in evidence_of(each.group) for f in e.shown):
            if set(having.get(shown.identity, ())) <= set(each.finding.ranks):
                because = f"it occurs on {ranks} only"
                cause = (each.finding.identity,)
                yield shown.identity, Explanation(cause, because)


def _while_compiling(found: Sequence[Matched]) -> Links:
    """Collectives that failed while a rank compiled alone."""
    for failed in found:
        if not isinstance(failed.rule, FailedCollective):
            continue
        compiles = {c for e in evidence_of(failed.group) for c in e.compiles if c[1]}
        for each in found:
            if isinstance(each.rule, RankRule) and each is not failed:
                own = {c for e in evidence_of(each.group) for c in e.compiles}
                if compiles & own:
                    because = "the missing rank was compiling because of it"
                    cause = (each.finding.identity,)
                    yield failed.finding.identity, Explanation(cause, because)


_FINDERS = (
    _behind,
    _alone,
    _refused,
    _nothing_left,
    _fixed,
    _same_input,
    _same_line,
    _known_bug,
    _on_some_ranks,
    _while_compiling,
)


def _in_words(cut: Event) -> str:
    if cut.kind == "recompile_limit":
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
