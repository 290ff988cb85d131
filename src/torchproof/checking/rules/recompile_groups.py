"""Which recompiles have one cause, and where it is."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

from torchproof.checking.rules import keys
from torchproof.checking.rules.interruptions import break_above
from torchproof.checking.rules.rule import AnyGroup, EventGroup, Facts, expression_of
from torchproof.records import (
    BEFORE_THE_BREAK,
    Call,
    Frame,
    Guard,
    GuardEvent,
    Place,
    RecompileEvent,
    cells,
    definition,
    place_of,
    qualified_name,
    shown_briefly,
    source_line,
    user_frame,
    whose,
)

_MANY_VALUES = 3
# Torch makes these dynamic in each function separately, after the first change.
_FOLLOWS = frozenset({"size", "equal_sizes", "shape_condition"})
# Guards on state of torch or of an object: they fail with or without a graph break.
_STATE = frozenset({"global_state", "backend", "global", "training", "learning_rate"})


@dataclass(frozen=True)
class RecompileGroup(EventGroup[GuardEvent]):
    """Recompiles of one cause; the first of them stands for all."""

    @property
    def guard(self) -> Guard:
        """The guard that failed, in the caller's words."""
        guard = self.first.callers_guard
        assert guard is not None  # the rules match only events with a guard
        return guard

    @property
    def guards(self) -> list[Guard]:
        guards = (event.callers_guard for event in self.events)
        return [guard for guard in guards if guard is not None]

    @functools.cached_property
    def cut(self) -> Frame | None:
        return cut_of(self.first, self.facts)

    @property
    def is_quiet_after(self) -> bool:
        """Whether a later call of the run needed no other graph for it."""
        return self._quiet_calls > 0

    @property
    def is_over(self) -> bool:
        """Whether the calls after the last recompile show that no value is left.

        A value that lasts for some calls is quiet for as long; many values, longer.
        """
        calls = sorted({event.call for event in self.events if event.call is not None})
        gaps = (after - before for before, after in itertools.pairwise(calls))
        values = {value for guard in self.guards for value in guard.values}
        least = max(gaps, default=0) * (1 if len(values) < _MANY_VALUES else 2)
        return self._quiet_calls >= max(least, 1)

    @property
    def _quiet_calls(self) -> int:
        """The calls of the run after the last recompile; 0 if they are not known."""
        seen, calls = [event.call for event in self.events], self.facts.calls
        known = [call for call in seen if call is not None]
        is_known = len(known) == len(seen) and calls is not None
        return calls - 1 - max(known) if is_known and calls else 0

    @functools.cached_property
    def stays_constant(self) -> bool:
        """Whether it recompiled again, although torch makes a size or number an input.

        Compile ids tell that from a recompile after a reset, of another frame.
        """
        own = self.first.guard
        if own is None or self.compile_arguments.get("dynamic") == "False":
            return own is not None
        ids = {
            event.compile_id
            for event in self.facts.of(GuardEvent)
            if event.function == self.first.function
            and event.guard is not None
            and event.compile_id is not None
            and (event.guard.cause, event.guard.source, event.guard.dim)
            == (own.cause, own.source, own.dim)
        }
        return len({each.partition("/")[0] for each in ids}) < len(ids)

    @property
    def is_marked_at_call(self) -> bool:
        return is_marked_at_call(self.first, self.facts)

    @property
    def is_fixed(self) -> bool:
        """Whether the guard's source names an object, as a variable does."""
        argument = self.first.argument
        return argument is None or argument.fixed


def key_of(event: RecompileEvent, facts: Facts) -> tuple[object, ...]:
    """What the recompiles of one finding have in common."""
    guard, cut = event.callers_guard, cut_of(event, facts)
    assert guard is not None
    place = recompile_place(event, facts)
    where = (place.frame.file, qualified_name(place.frame)) if place.frame else None
    if cut is not None and place.owner == "library":
        return (cut.file, cut.line, guard.cause)
    if guard.cause == "size" and is_marked_at_call(event, facts):
        return (where, guard.cause, event.entry_call and event.entry_call.line)
    return (where, guard.cause, guard.source, guard.dim)


def placed(frame: Frame, group: AnyGroup) -> str:
    """A place for use in a sentence: file, line and the expression there."""
    at = cells.place(shown_briefly(frame.file), frame.line)
    return f"{at} (`{expression_of(frame, group.width)}`)"


def cut_of(event: GuardEvent, facts: Facts) -> Frame | None:
    """The break without which Dynamo would not compile this function separately."""
    return break_above(event, facts) if is_behind_break(event, facts) else None


def is_behind_break(event: GuardEvent, facts: Facts) -> bool:
    """Whether the guard is on a value that passes from one graph to the next."""
    guard = event.guard
    if guard is None or guard.cause in _STATE:
        return False
    if BEFORE_THE_BREAK in guard.source:
        return True
    is_state = guard.source.startswith(("self.", "self[")) or "G['" in guard.text
    if not is_state and (guard.cause in _FOLLOWS or event.origin is None):
        return True
    return _in_first_call(event, facts)


def _in_first_call(event: GuardEvent, facts: Facts) -> bool:
    """Whether the call that compiled a function first also recompiled it, as no other.

    Then nothing changed between calls: one call runs the function several times. As
    part of its caller's graph, the function would need no second one.
    """
    same = [e for e in facts.observation.events if e.function == event.function]
    subject = event.guard and (event.guard.cause, event.guard.source)
    own = [
        e.call
        for e in same
        if isinstance(e, GuardEvent)
        and e.guard is not None
        and (e.guard.cause, e.guard.source) == subject
    ]
    return bool(same) and same[0].call is not None and {*own} == {same[0].call}


def is_marked_at_call(event: GuardEvent, facts: Facts) -> bool:
    """Whether the user's own code makes the call and can mark its arguments there."""
    call = event.entry_call
    if call is None or event.path is None or cut_of(event, facts) is not None:
        return False
    return call.by_user


def subject(event: GuardEvent) -> str:
    """What a guard checks, by its position in the call or in the function."""
    assert event.guard is not None
    source = event.guard.source
    origin = event.entry_call.origin(source) if event.entry_call else None
    if origin is None or origin[0] in (("args",), ("kwargs",)):
        return keys.of_name(source, event.function)
    path, rest = origin
    return f"{path[0]}{''.join(f'[{step!r}]' for step in path[1:])}{rest}"


def recompile_place(event: GuardEvent, facts: Facts) -> Place:
    """The user's line that the guard came from, else the function that recompiled.

    If that function is in a library and an argument is the cause, the user's call.
    """
    place = place_of(event.frames)
    function = event.function
    if place.owner == "user":
        return place
    if function is not None and whose(function.file) == "user":
        return place_of((definition(function),))
    if event.path is not None and cut_of(event, facts) is None:
        call = event.entry_call
        caller = (call and call_frame(call)) or user_frame(event.callers)
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
