"""Graph breaks and skipped frames: groups the events of a break, counts its runs."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

from torchproof.checking.rules import first_calls, python_edits, torch_pages
from torchproof.checking.rules.advice import (
    in_force,
    removed,
    written_marks,
)
from torchproof.checking.rules.interruptions import (
    break_above,
    break_key,
    only_alone,
    separated_by,
)
from torchproof.checking.rules.rule import (
    PROSE,
    EventGroup,
    Facts,
    Rule,
    event_place,
    expression_of,
    fitted,
    grouped,
    sentence,
    shorten,
)
from torchproof.checking.static.line_facts import WrittenMark, facts_at
from torchproof.observe import Gap
from torchproof.records import (
    COMPREHENSIONS,
    SEVERITIES,
    BreakEvent,
    BreakReason,
    ErrorEvent,
    Finding,
    Frame,
    GraphEvent,
    Place,
    Remedy,
    Runs,
    Setting,
    Severity,
    Symptom,
    cells,
    definition,
    is_frame_of,
    is_resumed,
    original_name,
    package_of,
    qualified_name,
    shown_briefly,
    source_line,
    user_frame,
    whose,
)

# Hints that torch gives for every break, or that name no change of the code.
_BOILERPLATE = re.compile(
    r"report an issue|file an issue|graph break is fundamental|may be possible to write"
    r" Dynamo|caused by an earlier graph break|Avoid calling|dont_skip_tracing"
    r"|Dynamo may be able|Your code may result in an error|Dynamo bug|fullgraph="
    r"|logging function|^If ",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"(.+)(?:,| because| when| since|;| \(.*)\s", re.DOTALL)
# Settings with which a number has no value while tracing, as a marked size has none.
CAPTURE_SCALARS = Setting("dynamo.capture_scalar_outputs", True)
CAPTURE_SHAPES = Setting("dynamo.capture_dynamic_output_shape_ops", True)
_CAPTURING = (CAPTURE_SCALARS, CAPTURE_SHAPES)
_CONTAINER = re.compile(
    r"method `\w+` of class `(?:deque|dict|list|set|str|tuple|OrderedDict|defaultdict)`"
    r"|`(?:deque|dict|list|set|str|tuple|OrderedDict|defaultdict)\.\w+`"
)
_TOKENIZER = re.compile(r"/(?:tokeniz\w*|sentencepiece|tiktoken|spacy)\b")
FAILED_ASSERTION = "GB0034"  # of a tensor, or of anything inside a `try`
_LEAST_TITLE = 50  # characters that say what a setting keeps in the graph
_DDP = "/torch/nn/parallel/distributed.py"


def _own(events: list[BreakEvent]) -> list[BreakEvent]:
    """The events of the functions nearest to the break.

    Dynamo reports a break in an inlined function for each function that it compiles on
    the way to it: for the caller, then for the function that is called, alone.
    """
    functions = {event.function for event in events} - {None}
    own = [
        event
        for event in events
        if not any(
            is_frame_of(frame, function)
            for frame in _inlined(event)
            for function in functions - {event.function}
        )
    ]
    return own or events


def _inlined(event: BreakEvent) -> Sequence[Frame]:
    """The frames of a stack below the function that Dynamo compiles."""
    own = [i for i, f in enumerate(event.frames) if is_frame_of(f, event.function)]
    return event.frames[own[-1] + 1 :] if own else event.frames


def _is_intended_by_ddp(event: BreakEvent) -> bool:
    """Whether DDP itself breaks the graph, around the module that it wraps.

    It does so in every program, as torch recommends to compile after DDP.
    """
    stack = (*event.callers, *event.frames)
    files = (frame.file.replace(os.sep, "/") for frame in reversed(stack))
    own = (f for f in files if whose(f) != "standard" and "/torch/_" not in f)
    return next(own, "").endswith(_DDP)


def _functions_with_graphs(facts: Facts) -> set[tuple[str, str]]:
    """The functions of which at least a part is compiled."""
    graphs = facts.of(GraphEvent)
    return {_function(graph.function) for graph in graphs if graph.function}


def _function(function: Frame) -> tuple[str, str]:
    """The function of a code object; also of its resume functions, comprehensions."""
    return function.file, qualified_name(definition(function))


def _skips_function(event: BreakEvent, compiled: set[tuple[str, str]]) -> bool:
    """Whether torch skips the whole function because of a break.

    If it skips a resume function, a comprehension or a recompile, parts of the function
    may still run compiled.
    """
    function = event.function
    if not event.skips or function is None:
        return event.skips
    if function.function in COMPREHENSIONS:
        return False
    return _function(function) not in compiled


def _skips_rest(event: BreakEvent) -> bool:
    """Whether the code after a break runs eagerly, up to the end of the function."""
    resumed = event.function is not None and is_resumed(event.function.function)
    return event.reason.rest_is_eager or (event.skips and resumed)


def _runs(group: list[BreakEvent], facts: Facts) -> tuple[int | None, int | None]:
    """How often a break ran, and in how many calls; None if not counted."""
    while group:
        own = _own(group)
        counted = [runs for e in own if (runs := _executions(e, facts)) is not None]
        if counted:
            calls = facts.calls or 0
            in_calls = sum(runs.calls for runs in counted)
            return sum(runs.count for runs in counted), min(in_calls, calls)
        group = [event for event in group if event not in own]
    return None, None


def _executions(event: BreakEvent, facts: Facts) -> Runs | None:
    """Runs of the skipped frame, of the graph before the break, or of the next one."""
    if event.runs:
        return event.runs
    if event.function is None:
        return None
    name = original_name(event.function.function)
    lines = [f.line for f in event.frames if is_frame_of(f, event.function)]
    resumed = [f"torch_dynamo_resume_in_{name}_at_{line}" for line in lines[-1:]]
    after = [
        graph.runs
        for graph in facts.of(GraphEvent)
        if graph.function
        and graph.function.file == event.function.file
        and graph.function.function in resumed
        and graph.runs
    ]
    if not after:
        return None
    return Runs(sum(r.count for r in after), sum(r.calls for r in after))


@dataclass(frozen=True)
class BreakGroup(EventGroup[BreakEvent | ErrorEvent]):
    """The events of one break, or of an error because breaks are forbidden."""

    _: KW_ONLY
    is_skip: bool = False  # the whole function runs eagerly
    rest_is_eager: bool = False  # the rest of a function does

    @property
    def reason(self) -> BreakReason:
        return self.first.reason

    @property
    def package(self) -> str | None:
        """The library whose line breaks the graph; None if it is the user's."""
        library = self.place.library
        if library is None and self.place.owner == "library":
            library = self.frame
        return package_of(library.file) if library else None


class GraphBreak(Rule[BreakGroup]):
    """Base class of the rules for graph breaks; each rule knows one cause.

    `causes` are torch's ids of the breaks that are this rule's, whatever the code is.
    """

    kind = "graph_break"
    reference = torch_pages.BREAKS
    placed = True
    causes: ClassVar[frozenset[str]] = frozenset()
    cause_text = advice_text = ""  # empty: torch's explanation and hint
    also_shown_by = ("CE704",)  # what a break becomes under fullgraph=True
    last_rewrites: ClassVar[tuple[str, ...]] = ("outside.split",)
    easing_settings = (Setting("dynamo.nested_graph_breaks", True),)
    source_text = "`{at.expression}` would cause a graph break in {at.function}"
    group_type = BreakGroup
    unseen = BreakEvent()

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[BreakGroup]:
        """One group per place and cause, in the order of their first event."""
        breaks = [e for e in facts.of(BreakEvent) if not _is_intended_by_ddp(e)]
        compiled = _functions_with_graphs(facts)
        for group in grouped(breaks, break_key):
            skipping = [event for event in group if _skips_function(event, compiled)]
            count, steps = _runs(group, facts)
            leader = _own(skipping)[0] if skipping else group[0]
            events = (leader, *(event for event in group if event is not leader))
            yield BreakGroup(
                events,
                event_place(leader),
                facts,
                count=count,
                steps=steps,
                is_skip=bool(skipping),
                rest_is_eager=any(map(_skips_rest, group)),
            )

    def matches(self, group: BreakGroup) -> bool:
        return group.reason.gb_id in self.causes

    def finding_kind(self, group: BreakGroup) -> str:
        return "skipped_frame" if group.is_skip else "graph_break"

    # -- texts -------------------------------------------------------------------------

    def message(self, group: BreakGroup) -> str:
        where = group.package or ("torch" if group.frame is None else "")
        what = f"`{group.expression}`" + f" (in {where})" * bool(where)
        if not group.expression:
            what = sentence(group.reason.type)
        often = f", {group.often}" if group.often else ""
        if group.is_skip:
            return f"{what} makes Dynamo skip {group.compiled}{often}"
        rest = "; the rest of it runs eagerly" * group.rest_is_eager
        return f"{what} splits the graph of {group.compiled}{often}{rest}"

    def cause(self, group: BreakGroup) -> str:
        return fitted(self._cause, group, PROSE)

    def _cause(self, group: BreakGroup) -> str:
        if outer := _skipped_around(group):
            return (
                f"{outer} makes Dynamo run {group.function} eagerly, and compile this"
                " code on its own"
            )
        why = self.why(_at_library_line(group))
        if library := group.place.library:
            at = cells.place(shown_briefly(library.file), library.line)
            why = f"{at}, which it calls: {why}"
        if not group.is_skip:
            return why
        places = {"loop": "inside a loop", "with": "inside this `with`", "": "here"}
        where = places[_nested_in(group)]
        return (
            f"{why}; Dynamo cannot resume {where}, so the whole function runs eagerly"
        )

    def why(self, group: BreakGroup) -> str:
        """Why Dynamo breaks at this code."""
        if self.cause_text:
            return self.say(self.cause_text, group)
        return brief(group.reason.explanation) or sentence(group.reason.type)

    def source_cause(self, at: BreakGroup) -> str:
        return self.why(at)

    # -- what to do --------------------------------------------------------------------

    def remedy(self, group: BreakGroup) -> Remedy:
        if outer := _skipped_around(group):
            why = f"remove the break at {outer}: this one follows from it"
            return Remedy("none", why=why)
        stack = (*(group.first.above or ()), *group.first.frames)
        compiled = [user_frame(each.frames) for each in group.facts.wrappers]
        places = [frame for frame in compiled if frame is not None]
        if group.package and (edit := first_calls.done_before(stack, places)):
            return edit
        if group.package and _first_call_only(group):
            why = (
                "only the first call breaks: call the model once before you compile it"
            )
            return Remedy("none", why=why)
        found = removed(unbacked_marks(group)) or super().remedy(group)
        room = PROSE - len(found.text) - len(": ")
        if found.kind != "setting" or room < _LEAST_TITLE or not group.expression:
            return found
        kept = fitted(lambda at: f"keep `{at.expression}` in the graph", group, room)
        return replace(found, title=f"{kept}: {found.text}")

    def source_remedy(self, at: BreakGroup, advice: str) -> Remedy:
        return Remedy("none", why=advice) if advice else self.remedy(at)

    def edit(self, group: BreakGroup) -> Remedy | None:
        above = separated_by(group.first, group.facts)
        reasons = [group.first.reason]
        reasons += [above.reason] if isinstance(above, BreakEvent) else []
        said = " ".join(f"{r.type} {r.explanation} {r.context}" for r in reasons)
        return python_edits.edit_at(group.frame, said)

    def setting(self, group: BreakGroup) -> Setting | None:
        """The first setting that keeps the operation in the graph, and is not set."""
        helpful = self.helpful(_at_library_line(group))
        return next((each for each in helpful if not in_force(group, each)), None)

    def helpful(self, group: BreakGroup) -> Iterable[Setting]:
        """The settings that keep this code in the graph, and add no other finding."""
        return ()

    def advice(self, group: BreakGroup) -> str:
        if group.package is None:
            return self.change(group)
        if any(_TOKENIZER.search(frame.file) for frame in group.first.frames):
            return (
                f"tokenize outside, before the compiled call: {group.package} works on"
                " text there; pass the ids in as a tensor"
            )
        if group.is_skip and group.compiled.endswith(".forward"):
            return (
                f"compile the modules that {group.compiled} calls, each with"
                " module.compile(), instead of the module that contains them"
            )
        if can_move_before(group):
            return move_out(group)
        return (
            f"the break is inside {group.package}: leave it unless it is in a hot loop"
        )

    def change(self, group: BreakGroup) -> str:
        """The change of the user's code at the place."""
        if self.advice_text:
            return self.say(self.advice_text, group)
        return hint(group) or move_out(group)

    def said(self, group: BreakGroup) -> str:
        return f"{group.expression} {group.reason.context}"

    def severity(self, group: BreakGroup) -> Severity:
        if self.status(group) == "intentional":
            return "low"
        if group.steps is None:
            return "high"
        if _first_call_only(group):
            return "low"
        if group.is_skip:
            return "high"
        calls = group.facts.calls or 1
        if group.place.owner == "library":
            return "medium" if group.steps * 2 >= calls else "low"
        return "high" if group.steps * 2 >= calls else "medium"

    def page(self, group: BreakGroup) -> str | None:
        return group.reason.page

    def evidence(self, group: BreakGroup) -> Iterable[str]:
        reason = group.reason
        yield f"torch: {reason.type}: {shorten(reason.explanation, 240)}"
        if reason.context:
            yield f"context: {shorten(reason.context, 200)}"
        library = group.place.library
        if library is not None:
            at = cells.place(library.file, library.line)
            yield f"in {at} {library.function}: {library.code}"
        inner = group.first.frames[-1] if group.first.frames else None
        if inner is not None and inner not in (library, group.frame):
            at = cells.place(inner.file, inner.line)
            yield f"in {at} {inner.function}: {inner.code}"

    def symptom(self, group: BreakGroup) -> Symptom | None:
        reason = group.first.reason
        text = shorten(reason.explanation, 240)
        return Symptom(reason.type, text, reason.gb_id) if reason.type else None


def _at_library_line(group: BreakGroup) -> BreakGroup:
    """The same break at the line of the library, where the user's line calls one."""
    library = group.place.library
    if library is None:
        return group
    return replace(group, place=Place(library, "library", None))


def _nested_in(group: BreakGroup) -> str:
    """The statement around a break that keeps Dynamo from resuming after it."""
    nested = group.reason.nested or ""
    if "loop" in nested:
        return "loop"
    return "with" if "Context" in nested or "with" in nested.lower() else ""


def _around(group: BreakGroup) -> Frame | None:
    """The `with` or the loop of the user's that a break is in, innermost first."""
    kind = _nested_in(group)
    for frame in reversed(group.first.frames) if kind else ():
        facts = facts_at(frame.file, frame.line)
        line = facts.loop_line if kind == "loop" else facts.with_line
        if line is not None and whose(frame.file) == "user":
            code = source_line(frame.file, line).strip()
            return Frame(frame.file, line, frame.function, code)
    return None


def is_of_container(group: BreakGroup) -> bool:
    """Whether torch does not know the method of a container of Python."""
    said = " ".join((group.reason.explanation, *group.reason.hints))
    return _CONTAINER.search(said) is not None


def is_of_size(text: str) -> bool:
    """Whether code asks for a size."""
    return re.search(r"\.shape|\.size\(|\.numel\(|\.dim\(|len\(", text) is not None


def _first_call_only(group: BreakGroup) -> bool:
    """Whether only the first call, of three or more, runs through the break."""
    once = group.steps == 1 and (group.facts.calls or 0) > 2
    return once and all(event.call == 0 for event in group.events)


def _skipped_around(group: BreakGroup) -> str | None:
    """The break that makes Dynamo compile a comprehension or generator alone."""
    if not only_alone(group.first):
        return None
    above = break_above(group.first, group.facts)
    return place_in_text(above) if above else None


def place_in_text(frame: Frame) -> str:
    """A place for use in a sentence: file, line and the expression there."""
    at = cells.place(shown_briefly(frame.file), frame.line)
    return f"{at} (`{expression_of(frame)}`)"


def brief(text: str, limit: int = 110) -> str:
    """The first sentence of torch's, for use inside another one, without a long end."""
    first = re.split(r"\.\s+(?=[A-Z])", text.strip(), maxsplit=1)[0].rstrip(".")
    while len(first) > limit and (cut := _CLAUSE.match(first)):
        first = cut[1]
    return first if first.startswith("Dynamo") else sentence(first)


def hint(group: BreakGroup) -> str:
    """Torch's first hint for this break alone; empty if it has none."""
    own = (brief(h) for h in group.reason.hints if not _BOILERPLATE.search(h))
    return next((each for each in own if len(each) <= PROSE), "")


# -- moving code out of the graph ------------------------------------------------------


def can_move_before(group: BreakGroup) -> bool:
    """Whether the caller of the compiled function can evaluate the code.

    It has the arguments, and should not call the layers of a module.
    """
    layers = re.search(r"\bself\.\w+\(", group.expression)
    return not layers and is_in_entry(group) and group.line.from_arguments


def is_in_entry(group: BreakGroup) -> bool:
    """Whether the code is in the function that the program calls, compiled.

    What a function inside gets as an argument may be computed by the one that calls it.
    """
    frame = group.frame
    if frame is None or group.place.owner != "user":
        return False
    if not group.facts.wrappers:  # source that has not run
        return group.line.is_entry
    return any(is_frame_of(frame, code) for code in group.facts.entries)


def move_out(group: BreakGroup) -> str:
    """How to take the code out of the graph, if nothing better is known."""
    line, what = group.line, f"`{group.expression}`" if group.expression else "it"
    code = group.frame.code if group.frame else ""
    if can_move_before(group):
        whole = line.is_unused and code.startswith(group.expression)
        if whole or " = " in group.expression:
            return f"do {what} outside, before the compiled call"
        return f"compute {what} outside, before the compiled call, and pass it in"
    if line.is_unused:
        return (
            f"put {what} under `if not torch.compiler.is_compiling():`, if compiled"
            " calls may go without it"
        )
    if group.is_skip and (around := _around(group)):
        at = cells.place(shown_briefly(around.file), around.line)
        return (
            f"move {what} out of the {_nested_in(group)} at {at}, so that the graph"
            " breaks only there"
        )
    if not _is_expression(group.expression):
        what = f"line {group.frame.line}" if group.frame else "it"
    return (
        f"put {what} in a function marked @torch.compiler.disable: the break stays, as"
        " an intended one"
    )


def _is_expression(code: str) -> bool:
    """Whether code is a call or a name, and no part of a larger expression."""
    try:
        node = ast.parse(code, mode="eval").body
    except SyntaxError:
        return False
    return isinstance(node, ast.Call | ast.Name | ast.Attribute)


def unbacked_marks(group: EventGroup[BreakEvent | ErrorEvent]) -> list[WrittenMark]:
    """The user's own marks of sizes, if the code needs a size behind one.

    A marked size has no value while tracing. So has a number that a setting captures.
    """
    reason = group.first.reason
    said = group.first.message if isinstance(group.first, ErrorEvent) else ""
    message = f"{reason.type} {reason.explanation} {reason.context} {said}"
    if not re.search(r"\bu\d+\b", message) and not (
        "ata-dependent" in message and is_of_size(group.expression)
    ):
        return []
    if any(in_force(group, each) for each in _CAPTURING):
        return []  # the number may be a captured one
    return [mark for mark in written_marks(group) if mark.how == "mark_unbacked"]


# -- measured costs --------------------------------------------------------------------


def with_costs(findings: Sequence[Finding], gaps: Iterable[Gap]) -> list[Finding]:
    """The findings, the graph breaks with the microseconds measured at their lines.

    A skipped frame gets no cost: the time at its line includes the frame's own work.
    """
    costs: dict[tuple[str, int], float] = {}
    counted_at: dict[tuple[str, int], int] = {}
    for gap in gaps:
        costs[os.path.abspath(gap.file), gap.line] = gap.us
        for file, line in gap.together_with:
            counted_at[os.path.abspath(file), line] = gap.line
    priced = []
    for finding in findings:
        priced.append(_priced(finding, costs, counted_at))
        if priced[-1].cost_us is not None and finding.file and finding.line:
            # The cost of a line is counted once, even if the line has several breaks.
            place = (os.path.abspath(finding.file), finding.line)
            if costs.pop(place, None) is not None:
                counted_at[place] = finding.line
    return priced


def _priced(
    finding: Finding,
    costs: Mapping[tuple[str, int], float],
    counted_at: Mapping[tuple[str, int], int],
) -> Finding:
    if finding.kind != "graph_break" or finding.file is None or finding.line is None:
        return finding
    place = (os.path.abspath(finding.file), finding.line)
    if finding.cost_us is None and place in costs:
        return replace(finding, cost_us=costs[place])
    if place in counted_at and place not in costs:
        note = f"its time is part of what the break at line {counted_at[place]} costs"
        return replace(finding, evidence=(*finding.evidence, note))
    return finding


def by_cost(finding: Finding) -> tuple[object, ...]:
    """Open ones first, then by severity, then by what they cost."""
    cost = -1.0 if finding.cost_us is None else finding.cost_us
    return finding.status != "open", SEVERITIES.index(finding.severity), -cost
