"""Recompiles: which belong to one cause, and the rules of the recompile limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchproof.checking.rules.breaks import break_above, told_at
from torchproof.checking.rules.rule import EventGroup, Facts, Rule, plural, shorten
from torchproof.observe import (
    BEFORE_THE_BREAK,
    CALLEE,
    Argument,
    Call,
    Guard,
    Path,
    varying,
)
from torchproof.records import (
    Event,
    Frame,
    Place,
    Severity,
    definition,
    place_of,
    qualified_name,
    source_line,
    user_frame,
    whose,
)

# Torch compiles a changed size or number once more, then with a symbol in its place.
_SETTLES = frozenset(
    {"size", "value", "attribute", "learning_rate", "global_state", "training"}
)
# What torch makes dynamic in each function apart, once it has seen it change.
_FOLLOWS = frozenset({"size", "equal_sizes", "shape_condition"})
# Guards on the state of torch or of an object, which fail with and without a break.
_STATE = frozenset({"global_state", "backend", "global", "training", "learning_rate"})


def event_groups(facts: Facts) -> Iterator[EventGroup]:
    """One group a cause and function, however many frames of it recompiled.

    Sizes that differ between two calls at one line are one cause, whichever of the
    arguments a guard names: they are all marked there. So is a break in a library, for
    all that is compiled on its own because of it.
    """
    groups: dict[tuple[object, ...], list[Event]] = {}
    for event in facts.events("recompile"):
        event = _understood(event, facts)
        groups.setdefault(_key(event), []).append(event)
    for group in groups.values():
        yield _event_group(tuple(group), facts)


def _key(event: Event) -> tuple[object, ...]:
    guard, place, cut = event.data["guard"], _place(event), event.data["cut"]
    where = (place.frame.file, qualified_name(place.frame)) if place.frame else None
    if cut is not None and place.owner == "library":
        return (cut.file, cut.line, guard.cause)
    if guard.cause == "size" and is_marked_at_call(event):
        return (where, guard.cause, event.data["entry_call"].line)
    return (where, guard.cause, guard.source, guard.dim)


def limit_groups(facts: Facts) -> Iterator[EventGroup]:
    """One group a function that hit the limit."""
    groups: dict[object, list[Event]] = {}
    for event in facts.events("recompile_limit"):
        groups.setdefault(event.function, []).append(event)
    for events in groups.values():
        group = [_understood(event, facts) for event in events]
        yield EventGroup(tuple(group), _place(group[0]), facts, len(group), None)


def _event_group(group: tuple[Event, ...], facts: Facts) -> EventGroup:
    calls = {event.call for event in group if event.call is not None}
    steps = len(calls) if calls else None
    return EventGroup(group, _place(group[0]), facts, len(group), steps)


def _understood(event: Event, facts: Facts) -> Event:
    """The event with its guard in the caller's words, and the break behind it.

    `path` is the argument the guard is about; `cut` the graph break without which
    there would be no such function to recompile.
    """
    guard: Guard | None = event.data["guard"]
    call: Call | None = event.data.get("entry_call")
    origin = call.origin(guard.source) if call and guard else None
    handed_over = guard is not None and _is_handed_over(guard, is_input=bool(origin))
    data = {
        **event.data,
        "cut": break_above(event, facts) if handed_over else None,
    }
    if origin is not None and origin[0] == CALLEE and _is_users(event.function):
        origin = None  # in the user's own method, `self` is the user's word for it
    if call is not None and guard is not None and origin is not None:
        source, other = call.words(guard.source), call.words(guard.other)
        data["guard"] = replace(guard, source=source, other=other)
        if origin[0] != CALLEE:
            data["path"] = origin[0]
            data["fixed"] = _argument(call, origin[0]).fixed
    return replace(event, data=data)


def _is_users(function: Frame | None) -> bool:
    return function is not None and whose(function.file) == "user"


def made(guard: Guard, group: EventGroup, change: str) -> str:
    """The edit that gives an argument another form, at the call: `x = x.float()`."""
    if group.data.get("fixed", True):
        return f"{guard.source} = {guard.source}{change}"
    return f"pass `({guard.source}){change}`"


def _is_handed_over(guard: Guard, *, is_input: bool) -> bool:
    """Whether a guard is on a value that a graph break takes from graph to graph."""
    if guard.cause in _STATE or guard.source.startswith(("self.", "self[")):
        return False
    return guard.cause in _FOLLOWS or not is_input


def is_marked_at_call(event: Event) -> bool:
    """Whether the user's own code makes the call, and can mark its arguments there."""
    if "path" not in event.data or event.data["cut"] is not None:
        return False
    return bool(event.data["entry_call"].by_user)


class Mark(NamedTuple):
    """One argument, its dimension, and the sizes that were seen."""

    argument: Argument
    dim: int
    seen: tuple[int, ...] = ()


@dataclass(frozen=True)
class Marks:
    """The arguments of one call whose sizes differ from call to call."""

    call: Call
    sizes: tuple[Mark, ...]


def marks(group: EventGroup) -> list[Marks]:
    """Every argument and dimension that differs between the calls, in their words.

    To mark one alone does not do: torch takes the sizes it meets in one operation for
    equal, and one that is fixed fixes the others. For the same reason each place that
    calls the function has to mark its own.
    """
    same = _calls(group)
    sites = {(each.file, each.line, each.span): each for each in reversed(same)}
    sizes = varying(same)
    return [
        Marks(
            each, _distinct(Mark(_argument(each, s.path), s.dim, s.seen) for s in sizes)
        )
        for each in sorted(sites.values(), key=lambda each: (each.file, each.line))
    ]


def _distinct(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """One tensor may be passed as two arguments."""
    return tuple({(mark.argument.words, mark.dim): mark for mark in marks}.values())


def _calls(group: EventGroup) -> list[Call]:
    """All recorded calls of the compiled function whose argument has changed."""
    call: Call | None = group.data.get("entry_call")
    if call is None or "path" not in group.data:
        return []
    events = group.facts.events("graph", "recompile", "recompile_limit")
    calls = [e.data["entry_call"] for e in events if e.data.get("entry_call")]
    return [each for each in calls if each.entry == call.entry]


def sources_passed_by_library(group: EventGroup) -> list[str]:
    """What differs between calls that a library makes, as torch names it.

    There is no line in the user's code where it could be marked.
    """
    call: Call | None = group.data.get("entry_call")
    if call is None or whose(call.file) != "library":
        return []
    sources = [call.source_of(size.path) for size in varying(_calls(group))]
    return list(dict.fromkeys(source for source in sources if source is not None))


def _argument(call: Call, path: Path) -> Argument:
    written = call.argument(path) if call.by_user else None
    sources = (source for source, known in call.sources.items() if known == path)
    return written or Argument(call.name(path, next(sources, "it")), fixed=True)


def _place(event: Event) -> Place:
    """The user's line the guard came from, else the function that recompiled.

    Where that is in a library, and an argument is the cause, the user's call.
    """
    place = place_of(event.frames)
    function = event.function
    if place.owner == "user":
        return place
    if function is not None and whose(function.file) == "user":
        return place_of((definition(function),))
    if "path" in event.data and event.data["cut"] is None:
        caller = call_frame(event.data["entry_call"]) or user_frame(event.callers)
        if caller is not None:
            return Place(caller, "user", None)
    if place.frame is None and function and whose(function.file) == "library":
        return place_of((definition(function),))
    caller = user_frame(event.callers)
    if place.frame is None and caller is not None:
        return Place(caller, "user", None)  # torch's own code was compiled
    return place


def call_frame(call: Call) -> Frame | None:
    if not call.by_user:
        return None
    text = source_line(call.file, call.line)
    frame = Frame(call.file, call.line, call.function, text.strip())
    if call.span is None or call.span[0] != call.span[1]:
        return frame
    indent = len(text) - len(text.lstrip())
    start, end = (len(text.encode()[:at].decode()) for at in call.span[2:])
    return replace(frame, columns=(start - indent, end - indent))


def values_seen(group: EventGroup, limit: int = 6) -> str:
    """The values that the guards on one thing saw, in order, without repeats."""
    first = group.data["guard"]
    guards = [event.data["guard"] for event in group.events]
    same = [g for g in guards if (g.source, g.dim) == (first.source, first.dim)]
    seen = [value for guard in same for value in guard.values]
    unique = list(dict.fromkeys(seen))
    if len(unique) == 1:
        return f"was {unique[0]}"
    return ", ".join([*unique[:limit], *(["..."] if len(unique) > limit else [])])


class Recompile(Rule):
    """Base of the rules that know one cause of recompilation."""

    kind = "recompile"
    causes: tuple[str, ...] = ()

    def matches(self, group: EventGroup) -> bool:
        return (
            group.data["guard"] is not None and group.data["guard"].cause in self.causes
        )

    def message(self, group: EventGroup) -> str:
        where = group.often
        times = plural(group.count or 1, "time")
        settled = " (once, then it settles)" if self.severity(group) == "low" else ""
        cut: Frame | None = group.data["cut"]
        own = ", compiled on its own after a graph break," if cut else ""
        return (
            f"{self.changed(group.data['guard'], group)}: {group.compiled}{own}"
            " was recompiled"
            f" {times}{', ' + where if where and not settled else ''}{settled}"
        )

    def changed(self, guard: Guard, group: EventGroup) -> str:
        """What changed between calls, with its values."""
        return f"`{guard.source}` changed ({values_seen(group) or guard.text[:60]})"

    def cause(self, group: EventGroup) -> str:
        guard: Guard = group.data["guard"]
        return (
            f"{self.why(guard, group)}; the guard that failed:"
            f" {shorten(guard.text.split('  #')[0], 120)}"
        )

    def why(self, guard: Guard, group: EventGroup) -> str:
        return (
            f"the compiled code is only valid for the `{guard.source}` it was compiled"
            " with"
        )

    def fix(self, group: EventGroup) -> str:
        guard: Guard = group.data["guard"]
        cut: Frame | None = group.data["cut"]
        if cut is None and guard.source != BEFORE_THE_BREAK:
            return self.remedy(guard, group)
        where = f"at {told_at(cut)}" if cut else "before this line, or in what it calls"
        return (
            f"remove the graph break {where}, as its own finding says: only because of"
            f" it is {group.compiled} compiled in parts, which guard what goes from"
            " one to the next"
        )

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        return f"keep `{guard.source}` the same between calls, or pass it as a tensor"

    def severity(self, group: EventGroup) -> Severity:
        guard: Guard = group.data["guard"]
        count, calls = group.count or 1, group.facts.calls or 0
        merged = guard.cause == "size" and is_marked_at_call(group.first)
        if merged or (group.data["cut"] and group.place.owner == "library"):
            count = group.steps or count  # all frames of one call, for one cause
        if count >= 3 and (group.steps or count) * 2 >= calls - 1:
            return "high"
        if count == 1 and guard.cause in _SETTLES and not self.per_value(guard):
            return "low"
        if (
            count == 1
            and guard.cause in {"length", "keys"}
            and self._quiet_after(group)
        ):
            return "low"
        return "medium"

    def _quiet_after(self, group: EventGroup) -> bool:
        """Whether a call followed that needed no other recompile."""
        call, calls = group.first.call, group.facts.calls
        return call is not None and calls is not None and calls - call > 1

    def per_value(self, guard: Guard) -> bool:
        """Whether each value gets a graph of its own: bools, strings, dtypes."""
        number = (guard.expected or "").lstrip("-")
        return guard.cause in {"value", "attribute"} and not number[:1].isdigit()

    def evidence(self, group: EventGroup) -> Iterable[str]:
        for event in group.events[:3]:
            yield f"{event.compile_id}: {shorten(event.data['guard'].text, 200)}"
        if len(group.events) > 3:
            yield f"and {len(group.events) - 3} more"
