"""Recompiles: which belong to one cause, and the rules of the recompile limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchproof.guards import BEFORE_THE_BREAK, Guard
from torchproof.places import Place, definition, place_of, qualified_name, whose
from torchproof.records import Event, Severity
from torchproof.rules._rule import Facts, Rule, Subject, plural, shorten

# Torch compiles a changed size or number once more, then with a symbol in its place.
_SETTLES = frozenset(
    {"size", "value", "attribute", "learning_rate", "global_state", "training"}
)


def subjects(facts: Facts) -> Iterator[Subject]:
    """One subject a cause and function, however many frames of it recompiled."""
    groups: dict[tuple[object, ...], list[Event]] = {}
    for event in facts.events("recompile"):
        guard = event.data["guard"]
        place = _place(event)
        where = (place.frame.file, qualified_name(place.frame)) if place.frame else None
        groups.setdefault((where, guard.cause, guard.source, guard.dim), []).append(
            event
        )
    for group in groups.values():
        yield _subject(tuple(group), facts)


def limit_subjects(facts: Facts) -> Iterator[Subject]:
    """One subject a function that hit the limit."""
    groups: dict[object, list[Event]] = {}
    for event in facts.events("recompile_limit"):
        groups.setdefault(event.function, []).append(event)
    for group in groups.values():
        yield Subject(tuple(group), _place(group[0]), facts, len(group), None)


def _subject(group: tuple[Event, ...], facts: Facts) -> Subject:
    calls = {event.call for event in group if event.call is not None}
    steps = len(calls) if calls else None
    return Subject(group, _place(group[0]), facts, len(group), steps)


def _place(event: Event) -> Place:
    """The user's line the guard came from, else the function that recompiled."""
    place = place_of(event.frames)
    if place.frame is not None and place.owner == "user":
        return place
    function = event.function
    if function is not None and whose(function.file) == "user":
        return place_of((definition(function),))
    if place.frame is None and function and whose(function.file) == "library":
        return place_of((definition(function),))
    return place


def values_seen(subject: Subject, limit: int = 6) -> str:
    """The values the guards saw, in order, without repeats."""
    seen = [v for event in subject.events for v in event.data["guard"].values]
    unique = list(dict.fromkeys(seen))
    if len(unique) == 1:
        return f"was {unique[0]}"
    return ", ".join([*unique[:limit], *(["..."] if len(unique) > limit else [])])


class Recompile(Rule):
    """Base of the rules that know one cause of recompilation."""

    kind = "recompile"
    causes: tuple[str, ...] = ()

    def matches(self, subject: Subject) -> bool:
        return (
            subject.data["guard"] is not None
            and subject.data["guard"].cause in self.causes
        )

    def message(self, subject: Subject) -> str:
        where = subject.often
        times = plural(subject.count or 1, "time")
        settled = " (once, then it settles)" if self.severity(subject) == "low" else ""
        return (
            f"{self.changed(subject.data['guard'], subject)}: {subject.compiled} was"
            " recompiled"
            f" {times}{', ' + where if where and not settled else ''}{settled}"
        )

    def changed(self, guard: Guard, subject: Subject) -> str:
        """What changed between calls, with its values."""
        return f"`{guard.source}` changed ({values_seen(subject) or guard.text[:60]})"

    def cause(self, subject: Subject) -> str:
        guard: Guard = subject.data["guard"]
        return (
            f"{self.why(guard, subject)}; the guard that failed:"
            f" {shorten(guard.text.split('  #')[0], 120)}"
        )

    def why(self, guard: Guard, subject: Subject) -> str:
        return (
            f"the compiled code is only valid for the `{guard.source}` it was compiled"
            " with"
        )

    def fix(self, subject: Subject) -> str:
        guard: Guard = subject.data["guard"]
        if guard.source == BEFORE_THE_BREAK:
            return (
                "remove the graph break before this line, or in what it calls: a value"
                " goes from one graph into the next, and is guarded, only because of it"
            )
        return self.remedy(guard, subject)

    def remedy(self, guard: Guard, subject: Subject) -> str:
        return f"keep `{guard.source}` the same between calls, or pass it as a tensor"

    def severity(self, subject: Subject) -> Severity:
        guard: Guard = subject.data["guard"]
        count, calls = subject.count or 1, subject.facts.calls or 0
        if count >= 3 and (subject.steps or count) * 2 >= calls - 1:
            return "high"
        if count == 1 and guard.cause in _SETTLES and not self.per_value(guard):
            return "low"
        if (
            count == 1
            and guard.cause in {"length", "keys"}
            and self._quiet_after(subject)
        ):
            return "low"
        return "medium"

    def _quiet_after(self, subject: Subject) -> bool:
        """Whether a call followed that needed no other recompile."""
        call, calls = subject.first.call, subject.facts.calls
        return call is not None and calls is not None and calls - call > 1

    def per_value(self, guard: Guard) -> bool:
        """Whether each value gets a graph of its own: bools, strings, dtypes."""
        number = (guard.expected or "").lstrip("-")
        return guard.cause in {"value", "attribute"} and not number[:1].isdigit()

    def evidence(self, subject: Subject) -> Iterable[str]:
        for event in subject.events[:3]:
            yield f"{event.compile_id}: {shorten(event.data['guard'].text, 200)}"
        if len(subject.events) > 3:
            yield f"and {len(subject.events) - 3} more"
