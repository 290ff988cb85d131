"""Recompiles: groups the events of one cause; the recompile limit, other guards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from torchproof.checking.rules import keys, torch_pages
from torchproof.checking.rules.breaks import break_above, place_in_text, separated_by
from torchproof.checking.rules.growth import growth, how_to_stop
from torchproof.checking.rules.rule import (
    EventGroup,
    Facts,
    Rule,
    grouped,
    plural,
    shorten,
)
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

# Torch recompiles once for a changed size or number, then treats it as dynamic.
_SETTLES = frozenset(
    {"size", "value", "attribute", "learning_rate", "global_state", "training"}
)
# Torch makes these dynamic in each function separately, after the first change.
_FOLLOWS = frozenset({"size", "equal_sizes", "shape_condition"})
# Guards on state of torch or of an object: they fail with or without a graph break.
_STATE = frozenset({"global_state", "backend", "global", "training", "learning_rate"})


def _key(event: Event) -> tuple[object, ...]:
    guard, place, cut = event.data["guard"], recompile_place(event), event.data["cut"]
    where = (place.frame.file, qualified_name(place.frame)) if place.frame else None
    if cut is not None and place.owner == "library":
        return (cut.file, cut.line, guard.cause)
    if guard.cause == "size" and is_marked_at_call(event):
        return (where, guard.cause, event.data["entry_call"].line)
    return (where, guard.cause, guard.source, guard.dim)


def _event_group(group: tuple[Event, ...], facts: Facts) -> EventGroup:
    calls = {event.call for event in group if event.call is not None}
    steps = len(calls) if calls else None
    return EventGroup(
        group, recompile_place(group[0]), facts, count=len(group), steps=steps
    )


def in_callers_words(event: Event, facts: Facts) -> Event:
    """The event with its guard in the caller's words, and the break behind it.

    `path` is the argument that the guard checks, and `subject` the same without names
    of variables. `cut` is the graph break without which
    Dynamo would not compile this function separately, and `separated_by` its event, or
    that of the caller's recompile limit.
    """
    guard: Guard | None = event.data["guard"]
    call: Call | None = event.data.get("entry_call")
    origin = call.origin(guard.source) if call and guard else None
    subject = _subject(guard, origin, event) if guard else ""
    if origin and event.data.get("entry") and origin[0] in (("args",), ("kwargs",)):
        origin = None  # `*args` of a function that the call reaches are not its own
    handed_over = guard is not None and (
        _is_handed_over(guard, is_input=bool(origin))
        or (guard.cause not in _STATE and _in_first_call(event, facts))
    )
    data = {
        **event.data,
        "subject": subject,
        "cut": break_above(event, facts) if handed_over else None,
        "separated_by": separated_by(event, facts) if handed_over else None,
    }
    if origin is not None and origin[0] == CALLEE and _is_users(event.function):
        origin = None  # in the user's own method, the user calls it `self`
    if call is not None and guard is not None and origin is not None:
        source, other = call.words(guard.source), call.words(guard.other)
        data["guard"] = replace(guard, source=source, other=other)
        if origin[0] != CALLEE:
            data["path"] = origin[0]
            data["fixed"] = _argument(call, origin[0]).fixed
    return replace(event, data=data)


def _subject(guard: Guard, origin: tuple[Path, str] | None, event: Event) -> str:
    """What a guard checks, by its position in the call or in the function."""
    if origin is None or origin[0] in (("args",), ("kwargs",)):
        return keys.of_name(guard.source, event.function)
    path, rest = origin
    return f"{path[0]}{_items(path[1:])}{rest}"


def _is_users(function: Frame | None) -> bool:
    return function is not None and whose(function.file) == "user"


def converted(guard: Guard, group: EventGroup, change: str) -> str:
    """The edit that converts an argument at the call: `x = x.float()`."""
    if group.data.get("fixed", True):
        return f"{guard.source} = {guard.source}{change}"
    return f"pass `({guard.source}){change}`"


def _is_handed_over(guard: Guard, *, is_input: bool) -> bool:
    """Whether a guard checks a value that passes from one graph to the next."""
    if guard.cause in _STATE or guard.source.startswith(("self.", "self[")):
        return False
    return guard.cause in _FOLLOWS or not is_input


def _in_first_call(event: Event, facts: Facts) -> bool:
    """Whether the call that compiled a function first also recompiled it.

    Then nothing changed between calls: one call runs the function several times. As
    part of its caller's graph, the function would need no second one.
    """
    same = (e for e in facts.observation.events if e.function == event.function)
    first = next(same, None)
    return first is not None and first.call is not None and first.call == event.call


def is_marked_at_call(event: Event) -> bool:
    """Whether the user's own code makes the call and can mark its arguments there."""
    if "path" not in event.data or event.data["cut"] is not None:
        return False
    return bool(event.data["entry_call"].by_user)


class VaryingSize(NamedTuple):
    """One argument, its dimension, and the sizes it had."""

    argument: Argument
    dim: int
    seen: tuple[int, ...] = ()


@dataclass(frozen=True)
class Marks:
    """The arguments of one call whose sizes vary between calls."""

    call: Call
    sizes: tuple[VaryingSize, ...]


def marks(group: EventGroup) -> list[Marks]:
    """Every argument and dimension that varies between calls, in the caller's words.

    Marking only one is not enough: torch takes sizes that meet in one operation as
    equal, so one fixed size fixes the others. For the same reason every place that
    calls the function must mark its own arguments.
    """
    same = _calls(group)
    sites = {(each.file, each.line, each.span): each for each in reversed(same)}
    sizes = varying(same)
    return [
        Marks(
            each,
            _distinct(
                VaryingSize(_argument(each, s.path), s.dim, s.seen) for s in sizes
            ),
        )
        for each in sorted(sites.values(), key=lambda each: (each.file, each.line))
    ]


def _distinct(marks: Iterable[VaryingSize]) -> tuple[VaryingSize, ...]:
    """Removes duplicates: one tensor may be passed as two arguments."""
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
    """The sources, as torch names them, that vary between calls made by a library.

    The user's code has no line where it could mark them.
    """
    call: Call | None = group.data.get("entry_call")
    if call is None or whose(call.file) != "library":
        return []
    sources = [call.source_of(size.path) for size in varying(_calls(group))]
    return list(dict.fromkeys(source for source in sources if source is not None))


def _argument(call: Call, path: Path) -> Argument:
    written = call.argument(path) if call.by_user else None
    sources = (s for s, at in call.sources.items() if at == path[: max(len(at), 2)])
    source = next(sources, None)
    if source is None and path[0] == "args":  # torch has not named it
        return written or Argument("args" + _items(path[1:]), fixed=True)
    return written or Argument(call.name(path, source or "it"), fixed=True)


def _items(path: Path) -> str:
    return "".join(f"[{step!r}]" for step in path)


def recompile_place(event: Event) -> Place:
    """The user's line that the guard came from, else the function that recompiled.

    If that function is in a library and an argument is the cause, the user's call.
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
        return Place(caller, "user", None)  # the compiled code is torch's own
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
    """The values that the guards on one source saw, in order, without repeats."""
    first = group.data["guard"]
    guards = [event.data["guard"] for event in group.events]
    same = [g for g in guards if (g.source, g.dim) == (first.source, first.dim)]
    values = [value for guard in same for value in guard.values]
    unique = list(dict.fromkeys(values))
    if len(unique) == 1:
        return f"was {unique[0]}"
    return ", ".join([*unique[:limit], *(["..."] if len(unique) > limit else [])])


class Recompile(Rule):
    """Base class of the rules for recompiles; each rule knows one cause."""

    kind = "recompile"
    reference = torch_pages.RECOMPILES
    causes: tuple[str, ...] = ()
    source_text = "`{at.expression}` would recompile {at.function} in each call"
    changed_text: ClassVar[str] = ""  # what changed between calls, with its values
    cause_text = (
        "the compiled code is only valid for the `{guard.source}` it was compiled with"
    )
    fix_text = "keep `{guard.source}` the same between calls, or pass it as a tensor"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        """One group per cause and function, for all of its recompiled frames.

        Sizes that differ between two calls at one line are one cause, whichever
        argument the guard names: the fix marks all of them at that line. A break in a
        library is also one cause, for every function that Dynamo compiles separately
        because of it.
        """
        events = [in_callers_words(e, facts) for e in facts.events("recompile")]
        for group in grouped(events, _key):
            yield _event_group(tuple(group), facts)

    def matches(self, group: EventGroup) -> bool:
        return (
            group.data["guard"] is not None and group.data["guard"].cause in self.causes
        )

    def words(self, group: EventGroup) -> dict[str, object]:
        return {"guard": group.data["guard"], "seen": values_seen(group)}

    def key(self, group: EventGroup) -> str:
        """The kind of guard, and what it checks; or what the group has in common."""
        guard, cut, data = group.data["guard"], group.data["cut"], group.data
        if cut is not None and group.place.owner == "library":
            return f"{guard.cause} behind {cut.function} > {keys.of_frame(cut)}"
        if guard.cause == "size" and is_marked_at_call(group.first):
            frame = call_frame(data["entry_call"])
            return f"{guard.cause} at {keys.of_frame(frame) if frame else 'the call'}"
        dim = "" if guard.dim is None else f" {guard.dim}"
        return f"{guard.cause} of {data['subject']}{dim}"

    def message(self, group: EventGroup) -> str:
        where = group.often
        times = plural(group.count or 1, "time")
        settled = " (once, then it settles)" if self.severity(group) == "low" else ""
        cut: Frame | None = group.data["cut"]
        separately = ", compiled on its own after a graph break," if cut else ""
        grown = growth(group)
        growing = f", growing {grown.text}" if grown else ""
        return (
            f"{self.changed(group.data['guard'], group)}{growing}:"
            f" {group.compiled}{separately} was recompiled"
            f" {times}{', ' + where if where and not settled else ''}{settled}"
        )

    def changed(self, guard: Guard, group: EventGroup) -> str:
        """What changed between calls, with its values."""
        if self.changed_text:
            return self.say(self.changed_text, group)
        return f"`{guard.source}` changed ({values_seen(group) or guard.text[:60]})"

    def cause(self, group: EventGroup) -> str:
        guard: Guard = group.data["guard"]
        return (
            f"{self.why(guard, group)}; the guard that failed:"
            f" {shorten(guard.text.split('  #')[0], 120)}"
        )

    def why(self, guard: Guard, group: EventGroup) -> str:
        return self.say(self.cause_text, group)

    def fix(self, group: EventGroup) -> str:
        guard: Guard = group.data["guard"]
        cut: Frame | None = group.data["cut"]
        if cut is None and guard.source != BEFORE_THE_BREAK:
            stop, remedy = how_to_stop(group), self.remedy(guard, group)
            return f"{stop}; {remedy}" if stop else remedy
        above = "before this line, or in a function that it calls"
        where = f"at {place_in_text(cut)}" if cut else above
        return (
            f"remove the graph break {where}, as its finding says: it splits"
            f" {group.compiled}, and each part guards the values of the part before"
        )

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        return self.say(self.fix_text, group)

    def severity(self, group: EventGroup) -> Severity:
        guard: Guard = group.data["guard"]
        count = group.count or 1
        calls = group.facts.calls or 0
        merged = guard.cause == "size" and is_marked_at_call(group.first)
        if merged or (group.data["cut"] and group.place.owner == "library"):
            count = group.steps or count  # several frames of one call, one cause
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
        """Whether a later call needed no other recompile."""
        call = group.first.call
        calls = group.facts.calls
        return call is not None and calls is not None and calls - call > 1

    def per_value(self, guard: Guard) -> bool:
        """Whether each value gets its own graph: bools, strings, dtypes."""
        number = (guard.expected or "").lstrip("-")
        return guard.cause in {"value", "attribute"} and not number[:1].isdigit()

    def evidence(self, group: EventGroup) -> Iterable[str]:
        for event in group.events[:3]:
            yield f"{event.compile_id}: {shorten(event.data['guard'].text, 200)}"
        if len(group.events) > 3:
            yield f"and {len(group.events) - 3} more"


class OtherGuard(Recompile):
    """A guard failed that no other rule covers.

    ## Why
    The finding quotes the guard as torch reports it.

    ## Bad
        # a value that Dynamo reads while tracing, and that changes later

    ## Good
        # the same value as a tensor argument, or kept constant

    ## Fix safety
    Unknown: compare the outputs before and after.
    """

    code = "RC299"

    def matches(self, group: EventGroup) -> bool:
        return group.data["guard"] is not None

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return (
            "a condition of the compiled code no longer held:"
            f" `{shorten(guard.source)}`"
        )


class RecompileLimit(Rule):
    """A function hits the recompile limit and runs eagerly from then on.

    ## Why
    After 8 graphs of one function torch stops compiling it. There is no error: the
    function is only slower.

    ## Bad
        # a value that is a constant of the graph and changes in every call

    ## Good
        # a tensor instead; or a higher recompile_limit, if there are few variants

    ## Fix safety
    See the rule of the cause that the finding names.
    """

    code = "RC290"
    kind = "recompile_limit"
    reference = torch_pages.RECOMPILES

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        """One group per function that hit the limit."""
        limits = facts.events("recompile_limit")
        for events in grouped(limits, lambda event: event.function):
            group = [in_callers_words(event, facts) for event in events]
            yield EventGroup(
                tuple(group), recompile_place(group[0]), facts, count=len(group)
            )

    def key(self, group: EventGroup) -> str:
        """The function that hit the limit: it may be called at the place."""
        return group.compiled

    def message(self, group: EventGroup) -> str:
        limit = group.data["limit"]
        facts = group.facts.observation
        eager = ""
        if (
            facts.calls
            and facts.compiled_calls is not None
            and facts.compiled_calls < facts.calls
        ):
            eager = (
                f"; {facts.calls - facts.compiled_calls} of {facts.calls} calls ran no"
                " compiled code"
            )
        return (
            f"{group.compiled} hit the recompile limit ({limit or '-'}) and runs"
            f" eagerly from then on{eager}"
        )

    def cause(self, group: EventGroup) -> str:
        rule = group.facts.first(Recompile, group)
        if rule is None:
            return "too many recompilations"
        return (
            f"it recompiled for each change: {rule.changed(group.data['guard'], group)}"
        )

    def fix(self, group: EventGroup) -> str:
        rule = group.facts.first(Recompile, group)
        advice = (
            rule.fix(group) if rule else "find what changes with TORCH_LOGS=recompiles"
        )
        return (
            f"{advice}; if you need the variants and there are only a few, raise"
            f" torch._dynamo.config.{group.data['setting']}"
        )

    def evidence(self, group: EventGroup) -> Iterable[str]:
        if group.data["guard"] is not None:
            yield f"last guard to fail: {shorten(group.data['guard'].text, 200)}"
        yield (
            "GB0039"
            " https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0039.html"
        )
