"""Graph breaks and skipped frames: which events are one break, and how often it ran."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torchproof.checking.rules.rule import (
    Facts,
    Rule,
    Subject,
    expression_of,
    sentence,
    shorten,
)
from torchproof.records import (
    COMPREHENSIONS,
    Event,
    Frame,
    Severity,
    Status,
    definition,
    module_of,
    original_name,
    package_of,
    place_of,
    resumed_at,
    shown_briefly,
)

_BOILERPLATE = re.compile(
    r"report an issue|file an issue|graph break is fundamental|may be possible to write"
    r" Dynamo"
    r"|caused by an earlier graph break|Avoid calling the function|dont_skip_tracing"
    r"|Dynamo may be able|Your code may result in an error",
    re.IGNORECASE,
)
# Frames that Dynamo gives up on before it traces: skipped, though no break is logged.
_NEVER_TRACED = re.compile(
    r"Attempt to trace generator|skip_frame|functor?ch mode", re.IGNORECASE
)


def subjects(facts: Facts) -> Iterator[Subject]:
    """One subject a place and cause, in the order they were first seen."""
    groups: dict[tuple[object, ...], list[Event]] = {}
    for event in [*facts.events("graph_break"), *_silent_skips(facts)]:
        groups.setdefault((*_where(event), event.data["type"]), []).append(event)
    for group in groups.values():
        skipping = [event for event in group if event.data.get("skips")]
        count, steps = _runs(group, facts)
        # Dynamo meets a break of an inlined function twice: inlined, then on its own.
        leader = _own(skipping)[0] if skipping else group[0]
        events = (leader, *(event for event in group if event is not leader))
        kind = "skipped_frame" if skipping else "graph_break"
        place = place_of(leader.frames)
        if place.frame is None and leader.function is not None:
            place = place_of((definition(leader.function),))
        yield Subject(events, place, facts, count, steps, {"kind": kind})


def _own(events: list[Event]) -> list[Event]:
    """The events of the function that holds the line, else all of them."""
    own = [
        e
        for e in events
        if e.function and _innermost(e) == original_name(e.function.function)
    ]
    return own or events


def _where(event: Event) -> tuple[object, ...]:
    """The user's line and the library's behind it: one line may call into many."""
    place = place_of(event.frames)
    if place.frame is None:
        return (event.function,)
    behind = (place.library.file, place.library.line) if place.library else None
    return place.frame.file, place.frame.line, behind


def _silent_skips(facts: Facts) -> Iterable[Event]:
    for event in facts.events("compile_failure"):
        if is_error(event):
            continue
        yield replace(event, kind="graph_break", data={**event.data, "skips": True})


def is_error(event: Event) -> bool:
    """Whether a failed compilation raises, or only makes its frame run eagerly.

    A live run has seen it; of a trace it must be concluded: Dynamo logs a break for
    each frame it skips while tracing, so a failure without one raises.
    """
    raised = event.data.get("raised")
    if raised is not None:
        return bool(raised)
    return not _NEVER_TRACED.search(event.data["type"])


def _runs(group: list[Event], facts: Facts) -> tuple[int | None, int | None]:
    """How often a break was run through, and in how many calls; None if not counted."""
    found = [_executions(event, facts) for event in _own(group)]
    known = [runs for runs in found if runs is not None]
    if not known:
        return None, None
    calls = facts.calls or 0
    return sum(r[0] for r in known), min(sum(r[1] for r in known), calls)


def _innermost(event: Event) -> str:
    return original_name(event.frames[-1].function) if event.frames else ""


def _executions(event: Event, facts: Facts) -> tuple[int, int] | None:
    """Runs of the skipped frame, of the graph before the break, or of what follows."""
    if event.data.get("skip_runs"):
        return tuple(event.data["skip_runs"])
    if event.data.get("runs"):
        return tuple(event.data["runs"])
    if event.function is None:
        return None
    name = original_name(event.function.function)
    lines = [f.line for f in event.frames if original_name(f.function) == name]
    resumed = [f"torch_dynamo_resume_in_{name}_at_{line}" for line in lines[-1:]]
    after = [
        graph.data["runs"]
        for graph in facts.events("graph")
        if graph.function
        and graph.function.function in resumed
        and graph.data.get("runs")
    ]
    return (sum(r[0] for r in after), sum(r[1] for r in after)) if after else None


class GraphBreak(Rule):
    """Base of the rules that know one cause of a graph break."""

    kind = "graph_break"
    types: tuple[str, ...] = ()  # patterns of torch's break type

    def matches(self, subject: Subject) -> bool:
        return self.of_type(subject)

    def of_type(self, subject: Subject) -> bool:
        """Whether torch's type of the break is one of the rule's."""
        return any(re.search(pattern, subject.data["type"]) for pattern in self.types)

    def message(self, subject: Subject) -> str:
        what = (
            f"`{subject.expression}`"
            if subject.expression
            else sentence(subject.data["type"])
        )
        often = f", {subject.often}" if subject.often else ""
        inside = ""
        if subject.place.library is not None:
            inside = f" (inside {package_of(subject.place.library.file)})"
        elif subject.frame is None and subject.expression:
            inside = " (in torch)"
        elif subject.place.owner == "library" and subject.frame is not None:
            inside = f" (in the library {package_of(subject.frame.file)})"
        if subject.extra["kind"] == "skipped_frame":
            return (
                f"{what}{inside} makes Dynamo give up on {subject.compiled}: all of it"
                f" runs eagerly{often}; breaks further down stay hidden until this one"
                " is gone"
            )
        rest = "; the rest of the function runs eagerly" * subject.data["rest_is_eager"]
        return f"{what}{inside} splits the graph of {subject.compiled}{often}{rest}"

    def cause(self, subject: Subject) -> str:
        if outer := _skipped_around(subject):
            return (
                f"{outer} makes Dynamo skip {subject.function}, and compile this"
                f" comprehension on its own: {sentence(subject.data['explanation'])}"
            )
        why = self.why(subject)
        nested = subject.data.get("nested") or ""
        if subject.extra["kind"] == "skipped_frame":
            if "loop" in nested:
                why += (
                    "; Dynamo cannot resume inside a loop, so it skips the whole frame"
                )
            elif "Context" in nested or "with" in nested.lower():
                why += (
                    "; Dynamo cannot resume inside this `with`, so it skips the whole"
                    " frame"
                )
            else:
                why += "; Dynamo cannot resume here, so it skips the whole frame"
        return why

    def why(self, subject: Subject) -> str:
        """Why Dynamo breaks here, about this code."""
        data = subject.data
        return (
            f"{sentence(data['type'])}: {sentence(shorten(data['explanation'], 300))}"
        )

    def fix(self, subject: Subject) -> str:
        if outer := _skipped_around(subject):
            return f"remove the break at {outer}: without it this one does not happen"
        if subject.place.owner == "library" and subject.frame is not None:
            return self.elsewhere(subject)
        advice = self.remedy(subject)
        nested = subject.data.get("nested") or ""
        if subject.extra["kind"] == "skipped_frame":
            if "loop" in nested:
                advice += (
                    "; or take it outside the loop, or move the loop body into its own "
                    "function, so that only that function breaks"
                )
            elif "Context" in nested or "with" in nested.lower():
                advice += "; or take it outside the `with` block"
        return advice

    def remedy(self, subject: Subject) -> str:
        """What to change, naming this code."""
        return own_hints(subject) or move_out(subject)

    def setting(self, subject: Subject) -> str:
        """A setting of torch's that keeps it in the graph, as a statement."""
        return ""

    def elsewhere(self, subject: Subject) -> str:
        """What to do about a line in a package that the user did not write."""
        assert subject.frame is not None
        package = package_of(subject.frame.file)
        ways = []
        if _first_call_only(subject):
            ways.append(
                "it runs in the first call only: if it sets something up, call the"
                " model once before it is compiled"
            )
        if setting := self.setting(subject):
            ways.append(f"before the first call, set {setting}")
        ways.append(
            f"the line is in {package}, not in your code: {_replacement(subject)}look"
            f" for a release of {package} without it: {self.remedy(subject)}"
        )
        skipped = subject.extra["kind"] == "skipped_frame"
        if skipped and subject.compiled.endswith(".forward"):
            ways.append(
                f"compile the modules that {subject.compiled} calls, each with"
                " module.compile(), instead of what contains it"
            )
        return "; or ".join(ways)

    def severity(self, subject: Subject) -> Severity:
        if self.status(subject) == "intentional":
            return "low"
        if subject.steps is None:
            return "high"
        if _first_call_only(subject):
            return "low"
        if subject.extra["kind"] == "skipped_frame":
            return "high"
        calls = subject.facts.calls or 1
        if subject.place.owner == "library":
            return "medium" if subject.steps * 2 >= calls else "low"
        return "high" if subject.steps * 2 >= calls else "medium"

    def status(self, subject: Subject) -> Status:
        return "open"

    def evidence(self, subject: Subject) -> Iterable[str]:
        data = subject.data
        if data["gb_id"]:
            yield f"{data['gb_id']} {data['page']}"
        yield f"torch: {data['type']}: {shorten(data['explanation'], 240)}"
        if data["context"]:
            yield f"context: {shorten(data['context'], 200)}"
        library = subject.place.library
        if library is not None:
            yield f"in {library.file}:{library.line} {library.function}: {library.code}"
        inner = subject.first.frames[-1] if subject.first.frames else None
        if inner is not None and inner not in (library, subject.frame):
            yield f"in {inner.file}:{inner.line} {inner.function}: {inner.code}"


def _first_call_only(subject: Subject) -> bool:
    """Whether the first call alone, of three or more, runs through the break."""
    once = subject.steps == 1 and (subject.facts.calls or 0) > 2
    return once and all(event.call == 0 for event in subject.events)


def _replacement(subject: Subject) -> str:
    """How code that is not the user's can be replaced from outside, if it can."""
    assert subject.frame is not None
    owner, _, _ = subject.function.rpartition(".")
    if owner and owner[0].isupper() and "." not in owner:
        return f"override {subject.function} in a subclass, or "
    module = module_of(subject.frame.file)
    if not owner and module:
        return f"assign your own version to {module}.{subject.function}, or "
    return ""


def _skipped_around(subject: Subject) -> str | None:
    """The break that makes Dynamo skip the function around a comprehension.

    A comprehension is part of its function's graph. Dynamo compiles it on its own only
    if the function runs eagerly.
    """
    function = subject.first.function
    if function is None or function.function not in COMPREHENSIONS:
        return None
    above = break_above(subject.first, subject.facts)
    return told_at(above) if above else None


def break_above(event: Event, facts: Facts) -> Frame | None:
    """The graph break without which Dynamo would not compile this function on its own.

    Dynamo goes on after a break with a function of its own making, and compiles what
    the code between calls as it meets it.
    """
    function = event.function
    if function is None:
        return None
    own = (function.file, original_name(function.function))
    above = [(f.file, original_name(f.function)) for f in event.frames]
    above = above[: above.index(own)] if own in above else above
    if entry := event.data.get("entry"):
        above.insert(0, (entry.file, original_name(entry.function)))
    line = resumed_at(function.function)
    depths = {code: depth for depth, code in enumerate(above)}
    nearest: tuple[int, Event] | None = None
    for cut in reversed(facts.events("graph_break")):
        at = {(f.file, original_name(f.function), f.line) for f in cut.frames}
        if line is not None and (*own, line) in at:
            return place_of(cut.frames).frame
        code = cut.function and (
            cut.function.file,
            original_name(cut.function.function),
        )
        depth = depths.get(code, -1) if code else -1
        if depth > (nearest[0] if nearest else -1):
            nearest = depth, cut
    return place_of(nearest[1].frames).frame if nearest else None


def told_at(frame: Frame) -> str:
    """A place within a sentence: file, line and what stands there."""
    return f"{shown_briefly(frame.file)}:{frame.line} (`{expression_of(frame)}`)"


def own_hints(subject: Subject) -> str:
    """Torch's own hints, less those that are true of every break."""
    hints = [h.rstrip(".") for h in subject.data["hints"] if not _BOILERPLATE.search(h)]
    return "; or ".join([hints[0], *map(sentence, hints[1:])]) if hints else ""


def move_out(subject: Subject) -> str:
    what = f"`{subject.expression}`" if subject.expression else "it"
    return (
        f"move {what} outside the compiled function and pass its result in, or guard it"
        " with `if not torch.compiler.is_compiling():`, or put it in a function marked"
        " @torch.compiler.disable so that the break is deliberate"
    )
