"""Recompiles: groups the events of one cause; the recompile limit, other guards."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torchproof.checking.rules import keys, torch_pages
from torchproof.checking.rules.breaks import place_in_text
from torchproof.checking.rules.growth import growth, how_to_stop
from torchproof.checking.rules.recompile_groups import (
    RecompileGroup,
    call_frame,
    key_of,
    recompile_place,
    subject,
)
from torchproof.checking.rules.rule import (
    Facts,
    Rule,
    grouped,
    plural,
    shorten,
)
from torchproof.records import (
    BEFORE_THE_BREAK,
    Argument,
    Call,
    GraphEvent,
    Guard,
    GuardCause,
    GuardEvent,
    LimitEvent,
    RecompileEvent,
    Severity,
    Symptom,
    varying,
    whose,
)

# Torch recompiles once for a changed size or number, then treats it as dynamic.
_SETTLES = frozenset(
    {"size", "value", "attribute", "learning_rate", "global_state", "training"}
)


def converted(guard: Guard, group: RecompileGroup, change: str) -> str:
    """The edit that converts an argument at the call: `x = x.float()`."""
    if group.is_fixed:
        return f"{guard.source} = {guard.source}{change}"
    return f"pass `({guard.source}){change}`"


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


def marks(group: RecompileGroup) -> list[Marks]:
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
                VaryingSize(each.described(s.path), s.dim, s.seen) for s in sizes
            ),
        )
        for each in sorted(sites.values(), key=lambda each: (each.file, each.line))
    ]


def _distinct(marks: Iterable[VaryingSize]) -> tuple[VaryingSize, ...]:
    """Removes duplicates: one tensor may be passed as two arguments."""
    return tuple({(mark.argument.words, mark.dim): mark for mark in marks}.values())


def _calls(group: RecompileGroup) -> list[Call]:
    """All recorded calls of the compiled function whose argument has changed."""
    call: Call | None = group.first.entry_call
    if call is None or group.first.path is None:
        return []
    events = group.facts.of(GraphEvent, GuardEvent)
    calls = [e.entry_call for e in events if e.entry_call]
    return [each for each in calls if each.entry == call.entry]


def sources_passed_by_library(group: RecompileGroup) -> list[str]:
    """The sources, as torch names them, that vary between calls made by a library.

    The user's code has no line where it could mark them.
    """
    call: Call | None = group.first.entry_call
    if call is None or whose(call.file) != "library":
        return []
    sources = [call.source_of(size.path) for size in varying(_calls(group))]
    return list(dict.fromkeys(source for source in sources if source is not None))


def values_seen(group: RecompileGroup, limit: int = 6) -> str:
    """The values that the guards on one source saw, in order, without repeats."""
    first = group.guard
    about = (first.source, first.dim)
    same = [guard for guard in group.guards if (guard.source, guard.dim) == about]
    values = [value for guard in same for value in guard.values]
    unique = list(dict.fromkeys(values))
    if len(unique) == 1:
        return f"was {unique[0]}"
    return ", ".join([*unique[:limit], *(["..."] if len(unique) > limit else [])])


class Recompile(Rule[RecompileGroup]):
    """Base class of the rules for recompiles; each rule knows one cause."""

    kind = "recompile"
    reference = torch_pages.RECOMPILES
    causes: ClassVar[tuple[GuardCause, ...]] = ()
    source_text = "`{at.expression}` would recompile {at.function} in each call"
    changed_text: ClassVar[str] = ""  # what changed between calls, with its values
    cause_text = (
        "the compiled code is only valid for the `{guard.source}` it was compiled with"
    )
    advice_text = "keep `{guard.source}` the same between calls, or pass it as a tensor"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RecompileGroup]:
        """One group per cause and function, for all of its recompiled frames.

        Sizes that differ between two calls at one line are one cause, whichever
        argument the guard names: the fix marks all of them at that line. A break in a
        library is also one cause, for every function that Dynamo compiles separately
        because of it.
        """
        key = functools.partial(key_of, facts=facts)
        for events in grouped(facts.of(RecompileEvent), key):
            calls = {event.call for event in events} - {None}
            yield RecompileGroup(
                tuple(events),
                recompile_place(events[0], facts),
                facts,
                count=len(events),
                steps=len(calls) or None,
            )

    def matches(self, group: RecompileGroup) -> bool:
        guard = group.first.guard
        return guard is not None and guard.cause in self.causes

    def words(self, group: RecompileGroup) -> dict[str, object]:
        return {"guard": group.guard, "seen": values_seen(group)}

    def key(self, group: RecompileGroup) -> str:
        """The kind of guard, and what it checks; or what the group has in common."""
        guard, cut = group.guard, group.cut
        if cut is not None and group.place.owner == "library":
            return f"{guard.cause} behind {cut.function} > {keys.of_frame(cut)}"
        if guard.cause == "size" and group.is_marked_at_call:
            call = group.first.entry_call
            frame = call and call_frame(call)
            return f"{guard.cause} at {keys.of_frame(frame) if frame else 'the call'}"
        dim = "" if guard.dim is None else f" {guard.dim}"
        return f"{guard.cause} of {subject(group.first)}{dim}"

    def message(self, group: RecompileGroup) -> str:
        where = group.often
        times = plural(group.count or 1, "time")
        settled = " (once, then it settles)" if self.severity(group) == "low" else ""
        cut = group.cut
        separately = ", compiled on its own after a graph break," if cut else ""
        grown = growth(group)
        growing = f", growing {grown.text}" if grown else ""
        return (
            f"{self.changed(group.guard, group)}{growing}:"
            f" {group.compiled}{separately} was recompiled"
            f" {times}{', ' + where if where and not settled else ''}{settled}"
        )

    def changed(self, guard: Guard, group: RecompileGroup) -> str:
        """What changed between calls, with its values."""
        if self.changed_text:
            return self.say(self.changed_text, group)
        return f"`{guard.source}` changed ({values_seen(group) or guard.text[:60]})"

    def cause(self, group: RecompileGroup) -> str:
        guard = group.guard
        return (
            f"{self.why(guard, group)}; the guard that failed:"
            f" {shorten(guard.text.split('  #')[0], 120)}"
        )

    def why(self, guard: Guard, group: RecompileGroup) -> str:
        return self.say(self.cause_text, group)

    def advice(self, group: RecompileGroup) -> str:
        guard = group.guard
        cut = group.cut
        if cut is None and guard.source != BEFORE_THE_BREAK:
            stop, remedy = how_to_stop(group), self.ways(guard, group)
            return f"{stop}; {remedy}" if stop else remedy
        above = "before this line, or in a function that it calls"
        where = f"at {place_in_text(cut)}" if cut else above
        return (
            f"remove the graph break {where}, as its finding says: it splits"
            f" {group.compiled}, and each part guards the values of the part before"
        )

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        return self.say(self.advice_text, group)

    def severity(self, group: RecompileGroup) -> Severity:
        guard = group.guard
        count = group.count or 1
        calls = group.facts.calls or 0
        merged = guard.cause == "size" and group.is_marked_at_call
        if merged or (group.cut and group.place.owner == "library"):
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

    def _quiet_after(self, group: RecompileGroup) -> bool:
        """Whether a later call needed no other recompile."""
        call = group.first.call
        calls = group.facts.calls
        return call is not None and calls is not None and calls - call > 1

    def per_value(self, guard: Guard) -> bool:
        """Whether each value gets its own graph: bools, strings, dtypes."""
        number = (guard.expected or "").lstrip("-")
        return guard.cause in {"value", "attribute"} and not number[:1].isdigit()

    def evidence(self, group: RecompileGroup) -> Iterable[str]:
        for event in group.events[:3]:
            text = event.guard.text if event.guard else ""
            yield f"{event.compile_id}: {shorten(text, 200)}"
        if len(group.events) > 3:
            yield f"and {len(group.events) - 3} more"

    def symptom(self, group: RecompileGroup) -> Symptom | None:
        guard = group.first.guard
        return Symptom(text=shorten(guard.text, 200)) if guard else None


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

    def matches(self, group: RecompileGroup) -> bool:
        return group.first.guard is not None

    def changed(self, guard: Guard, group: RecompileGroup) -> str:
        return (
            "a condition of the compiled code no longer held:"
            f" `{shorten(guard.source)}`"
        )


class RecompileLimit(Rule[RecompileGroup]):
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
    def groups(cls, facts: Facts) -> Iterator[RecompileGroup]:
        """One group per function that hit the limit."""
        limits = facts.of(LimitEvent)
        for events in grouped(limits, lambda event: event.function):
            place = recompile_place(events[0], facts)
            yield RecompileGroup(tuple(events), place, facts, count=len(events))

    def key(self, group: RecompileGroup) -> str:
        """The function that hit the limit: it may be called at the place."""
        return group.compiled

    def _limit(self, group: RecompileGroup) -> LimitEvent:
        assert isinstance(group.first, LimitEvent)
        return group.first

    def message(self, group: RecompileGroup) -> str:
        limit = self._limit(group).limit
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

    def cause(self, group: RecompileGroup) -> str:
        rule = group.facts.first(Recompile, group)
        if rule is None:
            return "too many recompilations"
        return f"it recompiled for each change: {rule.changed(group.guard, group)}"

    def advice(self, group: RecompileGroup) -> str:
        rule = group.facts.first(Recompile, group)
        advice = (
            rule.advice(group) if rule else "find what changes with TORCH_LOGS=recompiles"
        )
        return (
            f"{advice}; if you need the variants and there are only a few, raise"
            f" torch._dynamo.config.{self._limit(group).setting}"
        )

    def evidence(self, group: RecompileGroup) -> Iterable[str]:
        if group.first.guard is not None:
            yield f"last guard to fail: {shorten(group.guard.text, 200)}"
        yield (
            "GB0039"
            " https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0039.html"
        )

    def symptom(self, group: RecompileGroup) -> Symptom | None:
        known = group.first.guard is not None
        text = shorten(group.guard.text, 200) if known else ""
        return Symptom(text=text, gb_id="GB0039")
