"""Where Dynamo stops compiling a function, and compiles what it calls on its own."""

from __future__ import annotations

import itertools

from torchproof.checking.rules.rule import Facts, Interruption
from torchproof.records import (
    COMPREHENSIONS,
    BreakEvent,
    CompileEvent,
    ErrorEvent,
    Frame,
    GraphEvent,
    LimitEvent,
    first_line,
    original_name,
    place_of,
    resumed_at,
)

# Torch's ids of the breaks at a generator's frame, at an unknown iterator, and at a
# value that cannot be rebuilt.
_GENERATOR = "GB0003"
_LOST_VALUE = "GB0092"
_ITERATORS = ("GB0192", "GB0811", "GB1752", "GB4347")


def _where(event: CompileEvent) -> tuple[object, ...]:
    """The user's line and the library line it calls: one line may call several."""
    place = place_of(event.frames)
    if place.frame is None:
        return (event.function,)
    behind = (place.library.file, place.library.line) if place.library else None
    return place.frame.file, place.frame.line, behind


def break_key(event: BreakEvent) -> tuple[object, ...]:
    """What the events of one finding have in common: place and type of the break."""
    return (*_where(event), event.reason.type)


def only_alone(event: BreakEvent | ErrorEvent) -> bool:
    """Whether a break is only there because Dynamo compiles this code on its own.

    A comprehension or a generator is part of the graph of its function, unless the
    function runs eagerly. Then the comprehension gets an iterator as an argument, and
    Dynamo compiles neither that nor a generator's own frame. What a function returns is
    only rebuilt for a caller that runs eagerly.
    """
    what = event.reason.gb_id
    code = event.function.function if event.function else ""
    if what == _LOST_VALUE:
        return bool(event.frames) and event.frames[-1].code.startswith("return ")
    return what == _GENERATOR or (code in COMPREHENSIONS and what in _ITERATORS)


def break_above(event: CompileEvent, facts: Facts) -> Frame | None:
    """The graph break that makes Dynamo compile this function separately.

    After a break Dynamo continues with a resume function, and it compiles the functions
    called in between when it reaches them.
    """
    by = separated_by(event, facts)
    if by is None:  # a trace does not record the whole stack
        return _break_near(event, facts) if event.above is None else None
    return place_of(by.frames).frame if isinstance(by, BreakEvent) else None


def separated_by(event: CompileEvent, facts: Facts) -> Interruption | None:
    """The event because of which this function is not part of its caller's graph.

    It is a graph break, or the recompile limit of the caller. None if the function is
    the first of its region, or if that is not certain.
    """
    known = facts.separated_by
    if id(event) not in known:
        known[id(event)] = event, _separated_by(event, facts)
    return known[id(event)][1]


def _separated_by(event: CompileEvent, facts: Facts) -> Interruption | None:
    function = event.function
    if function is None:
        return None
    earlier = _interruptions(event, facts)
    for frame in reversed(event.above or ()):
        if own := [cut for cut in earlier if _is_code(frame, cut.function)]:
            return _at_line(own, frame)
        if any(_is_code(frame, each.function) for each in facts.of(GraphEvent)):
            break
    code = (function.file, original_name(function.function))
    line = resumed_at(function.function)
    here = [cut for cut in earlier if line and (*code, line) in _lines_of(cut)]
    return here[-1] if here else None


def _interruptions(event: CompileEvent, facts: Facts) -> list[Interruption]:
    """The breaks and refused recompiles of other functions before an event."""
    events = facts.of(BreakEvent, LimitEvent, type(event))
    earlier = itertools.takewhile(lambda each: each is not event, events)
    own = (None, event.function)
    return [
        each
        for each in earlier
        if isinstance(each, BreakEvent | LimitEvent) and each.function not in own
    ]


def _is_code(frame: Frame, function: Frame | None) -> bool:
    """Whether a frame of a stack runs this code object, whose first line is known."""
    if function is None or (frame.file, frame.function) != (
        function.file,
        function.function,
    ):
        return False
    if resumed_at(function.function) is not None:
        return True  # the name of a resume function has its line
    first = first_line(frame.file, frame.function, frame.line)
    return first is None or first == function.line


def _lines_of(cut: Interruption) -> set[tuple[str, str, int]]:
    return {(f.file, original_name(f.function), f.line) for f in cut.frames}


def _at_line(cuts: list[Interruption], frame: Frame) -> Interruption | None:
    """Of a function's interruptions, the one at the line that it runs.

    A skipped function has no such line, and torch omits some lines of a stack: then
    the interruptions must agree on their place.
    """
    code = (frame.file, original_name(frame.function), frame.line)
    here = [cut for cut in cuts if code in _lines_of(cut)]
    whole = [cut for cut in cuts if _stops_all(cut)]
    if whole and not here:
        return whole[-1]
    places = {_where(cut) for cut in here or cuts}
    return (here or cuts)[-1] if len(places) == 1 else None


def _stops_all(cut: Interruption) -> bool:
    """Whether the rest of the function runs eagerly."""
    return isinstance(cut, LimitEvent) or cut.skips or cut.reason.rest_is_eager


def _break_near(event: CompileEvent, facts: Facts) -> Frame | None:
    """The nearest break in a function above, as far as a stack shows the functions."""
    function = event.function
    if function is None:
        return None
    code_object = (function.file, original_name(function.function))
    above = [(f.file, original_name(f.function)) for f in event.frames]
    above = above[: above.index(code_object)] if code_object in above else above
    if entry := event.entry:
        above.insert(0, (entry.file, original_name(entry.function)))
    depths = {code: depth for depth, code in enumerate(above)}
    nearest: tuple[int, BreakEvent] | None = None
    for cut in (e for e in reversed(facts.of(BreakEvent)) if e.logged):
        code = cut.function and (
            cut.function.file,
            original_name(cut.function.function),
        )
        depth = depths.get(code, -1) if code else -1
        if depth > (nearest[0] if nearest else -1):
            nearest = depth, cut
    return place_of(nearest[1].frames).frame if nearest else None
