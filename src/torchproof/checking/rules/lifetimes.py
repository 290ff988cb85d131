"""CG30x: tensors that are used after their memory was reused.

All tensors that one line produced make one finding.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import (
    EventGroup,
    Facts,
    Match,
    Rule,
    event_place,
    grouped,
    plural,
    shorten,
)
from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compilation, under_no_grad
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import words
from torchproof.checking.static.source import Definition, Source, walk
from torchproof.records import (
    DeadTensorEvent,
    Frame,
    Place,
    place_of,
    source_line,
)

_SHOWN = 3  # uses in the evidence
_SCALARS = {"_local_scalar_dense", "item", "tolist", "numpy", "equal", "is_nonzero"}
_INDEX = re.compile(r"(\[[^]]*\])+$")
_GRAPH, _BACKWARD = "a compiled graph", "the backward"


_STEPS = ("backward", "cudagraph_mark_step_begin")
# Methods that return a view of the same memory.
_VIEWS = words(
    "detach view view_as squeeze unsqueeze transpose permute reshape flatten expand"
    " contiguous t unbind chunk"
)
_FRESH = {"shape", "dtype", "device", "ndim"}


def _saved(event: DeadTensorEvent) -> bool:
    """Whether it was saved for the backward, and nothing else uses it."""
    return event.operation == _BACKWARD and event.role == "output"


def _place(event: DeadTensorEvent) -> Place:
    """The line to change: where the tensor is kept, else where it was produced.

    For a backward that comes too late, the line where a step begins before it.
    """
    first = event.overwriter if _saved(event) else event.stored
    if event.raised:
        first = event.reader  # torch's error does not say where it is kept
    place = place_of(first)
    return place if place.frame is not None else event_place(event)


def _raised_reads(facts: Facts) -> list[DeadTensorEvent]:
    """The reads that torch's own errors report."""
    return [event for event in facts.of(DeadTensorEvent) if event.raised]


def _dead_tensors(facts: Facts) -> Sequence[DeadTensorEvent]:
    """What part lifetimes saw, else what torch's own errors report."""
    seen = [event for event in facts.of(DeadTensorEvent) if not event.raised]
    return seen or _raised_reads(facts)


DeadGroup = EventGroup[DeadTensorEvent]


class LifetimeRule(Rule[DeadGroup]):
    """Base class of the rules for tensors that outlive their memory."""

    kind = "cudagraph_lifetime"
    parts = ("lifetimes",)
    reference = torch_pages.CUDAGRAPHS
    placed = True

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[DeadGroup]:
        """One group per producing line and kind of use, in the order of first use."""

        def key(event: DeadTensorEvent) -> object:
            line = event.frames[-1:] or (event.function,)
            return line, event.role, _saved(event)

        for events in grouped(_dead_tensors(facts), key):
            reads = [event for event in events if event.is_read]
            reported = tuple(reads or events)
            calls = {event.call for event in reported if event.call is not None}
            times = sum(event.times for event in reported)
            yield DeadGroup(
                reported,
                _place(reported[0]),
                facts,
                count=times,
                steps=len(calls) or None,
            )

    def word(self, group: DeadGroup) -> str:
        return group.first.role

    def stack(self, group: DeadGroup) -> tuple[Frame, ...]:
        """Where the tensor was produced, and where it is kept."""
        holder_frames = (group.place.frame,) if group.place.frame is not None else ()
        return (*group.first.frames, *holder_frames)

    def words(self, group: DeadGroup) -> dict[str, object]:
        named = next((e.holder for e in group.events if e.holder), "")
        return {
            "holders": _holders(group),
            "is": "is" if group.count == 1 else "are",
            "reader": _where(group.first.reader),
            "overwriter": _where(group.first.overwriter),
            "produced": _produced(group),
            "keeper": f" in `{_INDEX.sub('', named)}`" if named else "",
            "count": plural(group.count or 0, "tensor"),
        }

    def evidence(self, group: DeadGroup) -> Iterable[str]:
        for event in group.events[:_SHOWN]:
            yield "; ".join(
                f"{what} {where}"
                for what, where in (
                    (f"{event.holder or 'one'} was produced at", _made_at(event)),
                    ("stored at", _at(event.stored)),
                    ("overwritten by the step of", _at(event.overwriter)),
                    (f"used by {event.operation} at", _at(event.reader)),
                )
                if where
            )
        if (group.count or 0) > _SHOWN:
            yield f"and {(group.count or 0) - _SHOWN} more"
        if group.first.is_read:
            for read in _raised_reads(group.facts)[:1]:
                yield f"torch raises: {shorten(read.raised, 200)}"


class OutputRead(LifetimeRule):
    """An output of a CUDA graph is read after a later call has overwritten it.

    ## Why
    The outputs of a CUDA graph live in memory that the next step writes to again. While
    torch warms up and records, such a read raises "accessing tensor output of
    CUDAGraphs that has been overwritten". During replays nothing is raised, and the
    read returns the values of another call.

    ## Bad
        outs = [compiled(x) for x in batches]
        torch.stack(outs)

    ## Good
        outs = [compiled(x).clone() for x in batches]

    ## Fix safety
    A clone has the same values and costs one copy of each output that you keep.
    """

    code = "CG301"
    rewrites = ("lifetimes.clone",)
    shown_by = ("CG301", "CG304")
    message_text = "{holders} {is} read{reader}, after the next step reused the memory"
    cause_text = (
        "{produced} is memory of a CUDA graph, and a later step writes there: torch"
        " raises while it records, and reads wrong values once it replays"
    )
    source_text = "{produced} is kept, and later calls would overwrite it"
    advice_text = "keep {copy}, made outside the compiled function"

    def matches(self, group: DeadGroup) -> bool:
        return group.first.is_read and group.first.role == "output"

    def advice(self, group: DeadGroup) -> str:
        if all(event.operation in _SCALARS for event in group.events):
            return "read the number before the next compiled call: .item()"
        if group.first.operation == _GRAPH:
            text = "pass `.clone()` of the output{keeper} to the next compiled call"
            return self.say(text, group)
        copy = self.say("`.clone()` of the output{keeper}", group)
        return self.advice_text.format(copy=copy)

    def read(self, source: Source) -> Iterator[Match]:
        file = compiled.of(source)
        if not file.has_graphs:
            return
        reported: set[ast.AST] = set()
        for node in source.nodes:
            repeats = isinstance(node, ast.For | ast.While) or _is_method(node, file)
            if repeats and _begins_steps(node, file):
                for statement in node.body:  # type: ignore[attr-defined]
                    yield from self._stored_outputs(statement, node, file, reported)
            elif (
                isinstance(node, ast.ListComp)
                and _is_output(node.elt, file)
                and under_no_grad(node, file)
            ):
                yield _kept(node, node.elt, source)

    def _stored_outputs(
        self,
        statement: ast.stmt,
        loop: ast.AST,
        file: Compilation,
        reported: set[ast.AST],
    ) -> Iterator[Match]:
        for node in walk(statement):
            value = _stored(node, loop, file)
            if value is None or node in reported or not _is_output(value, file):
                continue
            reported.add(node)
            assert isinstance(node, ast.expr | ast.stmt)
            yield _kept(node, value, file.source)


def _kept(node: ast.expr | ast.stmt, value: ast.expr, source: Source) -> Match:
    whole, brief = source.text_of(value), source.brief(value, 40)
    copy = f"`{whole}.clone()`" if whole == brief else "its clone()"
    return Match(node, words={"produced": f"`{brief}`", "copy": copy})


def _is_method(node: ast.AST, file: Compilation) -> bool:
    """Whether a node is a method, which repeated calls may use to keep outputs."""
    if not isinstance(node, Definition) or node.name == "__init__":
        return False
    return isinstance(file.source.parents.get(node), ast.ClassDef)


def _begins_steps(loop: ast.AST, file: Compilation) -> bool:
    """Whether each iteration starts a new step: no backward is pending."""
    inside = loop.body[0] if isinstance(loop, Definition) else loop
    if under_no_grad(inside, file):
        return True
    for node in walk(loop):
        attribute = node.func if isinstance(node, ast.Call) else None
        if isinstance(attribute, ast.Attribute) and attribute.attr in _STEPS:
            return True
        if isinstance(node, ast.With) and under_no_grad(node.body[0], file):
            return True
    return False


def _stored(node: ast.AST, loop: ast.AST, file: Compilation) -> ast.expr | None:
    """The value that a node stores beyond one iteration of the loop."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        stores = node.func.attr in ("append", "appendleft", "add", "put") and node.args
        return node.args[0] if stores and _outlives(node.func.value, loop) else None
    if not isinstance(node, ast.Assign):
        return None
    for target in node.targets:
        if isinstance(target, ast.Attribute):
            return node.value
        if isinstance(target, ast.Subscript) and _outlives(target.value, loop):
            # out[i] = y copies into a tensor; a dict or a list keeps y itself.
            container = file.bindings.meaning(target.value)
            plain = isinstance(container, ast.Dict | ast.List | ast.ListComp)
            return node.value if plain else None
        turns = isinstance(loop, ast.For | ast.While)
        if turns and isinstance(target, ast.Name) and _feeds_back(node, target):
            return node.value
    return None


def _feeds_back(node: ast.Assign, target: ast.Name) -> bool:
    """Whether an assignment is `state = step(state)`."""
    if not isinstance(node.value, ast.Call):
        return False
    return any(isinstance(a, ast.Name) and a.id == target.id for a in node.value.args)


def _outlives(node: ast.expr, loop: ast.AST) -> bool:
    """Whether a container is created outside the loop."""
    if not isinstance(node, ast.Name):
        return True
    return not any(
        isinstance(each, ast.Name)
        and each.id == node.id
        and isinstance(each.ctx, ast.Store)
        for each in walk(loop)
    )


def _is_output(value: ast.expr, file: Compilation) -> bool:
    """Whether a value is an output of a CUDA graph, or a view of one."""
    at: ast.AST | None = value
    for _ in range(6):
        if isinstance(at, ast.Call):
            site = file.of(at.func)
            if site is not None:
                return site.has_graphs
            view = isinstance(at.func, ast.Attribute) and at.func.attr in _VIEWS
            at = at.func.value if view else None  # type: ignore[attr-defined]
        elif isinstance(at, ast.Name):
            at = file.bindings.meaning(at)
        elif isinstance(at, ast.Subscript | ast.Attribute):
            at = None if getattr(at, "attr", "") in _FRESH else at.value
        else:
            return False
    return False


class GradientKept(LifetimeRule):
    """`.grad` is memory of a CUDA graph, and the next step overwrites it.

    ## Why
    If `.grad` is None, autograd stores the tensor that the compiled backward returns
    instead of copying it. The next step writes to that memory again, so gradients that
    you accumulate or read later are wrong.

    ## Bad
        for batch in batches:
            compiled(batch).backward()          # .grad is never reset

    ## Good
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            compiled(batch).backward()

    ## Fix safety
    Setting gradients to None before each step changes nothing if each step uses its own
    gradients. To accumulate over steps, give each `.grad` its own memory first:
    p.grad = torch.zeros_like(p).
    """

    code = "CG302"
    message_text = "{holders} {is} used after the step{overwriter} reused the memory"
    cause_text = (
        "autograd took the compiled backward's own buffer as .grad, which was None; the"
        " next step writes there again while .grad still holds it"
    )
    advice_text = (
        "call optimizer.zero_grad(set_to_none=True) after each optimizer.step(), before"
        " the next forward"
    )

    def matches(self, group: DeadGroup) -> bool:
        return group.first.is_read and group.first.role == "gradient"


class BackwardTooLate(LifetimeRule):
    """A backward runs after the memory of its saved tensors was reused.

    ## Why
    A forward in a CUDA graph saves its activations in the graph's memory. A step begins
    at cudagraph_mark_step_begin(), or at another forward after some backward has run.
    It reuses that memory, although this backward has not run yet.

    ## Bad
        loss = compiled(x)
        torch.compiler.cudagraph_mark_step_begin()
        loss.backward()

    ## Good
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x).backward()

    ## Fix safety
    The same calls in another order give the same values. Running the forward again
    right before its backward costs a forward, and draws other random numbers.
    """

    code = "CG303"
    message_text = (
        "the backward{reader} reads {count} whose memory the step{overwriter} reused"
    )
    cause_text = (
        "what {produced} saved for its backward is memory of a CUDA graph, and the step"
        " that begins between the two gives it away"
    )
    advice_text = (
        "run backward() before the next step begins; a clone of the loss does not help"
    )

    def matches(self, group: DeadGroup) -> bool:
        return _saved(group.first)


class OutputHeld(LifetimeRule):
    """An output of a CUDA graph is kept after its memory was reused, but not read.

    ## Why
    Nothing is wrong yet. A later read raises an error or returns the values of another
    call.

    ## Bad
        self.last_scores = compiled(x)          # and nothing reads it again

    ## Good
        self.last_scores = compiled(x).clone()  # or do not keep it

    ## Fix safety
    A clone has the same values and costs one copy of each output that you keep.
    """

    code = "CG304"
    rewrites = ("lifetimes.clone",)
    run_severity = "low"
    message_text = (
        "{holders} {is} kept, not read, after the step{overwriter} reused the memory"
    )
    cause_text = (
        "the memory belongs to a CUDA graph, and a later step writes to it again"
    )
    source_severity = "low"
    nodes = (ast.Assign,)
    shown_by = ("CG301", "CG302", "CG303", "CG304")
    calls = 2
    source_text = (
        "`{at.expression}` would keep an output of {at.function} after the call"
    )

    def matches(self, group: DeadGroup) -> bool:
        return not group.first.is_read

    def advice(self, group: DeadGroup) -> str:
        if group.first.role == "gradient":
            return "call optimizer.zero_grad(set_to_none=True) once they are used"
        return self.say(
            "keep `.clone()` of the output{keeper}, if it will be read", group
        )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Assign)
        if at.function.node.name != "forward" or not at.kind(node.value).is_tensor:
            return
        if _is_copied(node.value):
            return
        for target in node.targets:
            if name := at.source.own(target):
                yield Match(
                    node,
                    advice=f"return it, and keep a copy outside: self.{name}.clone()",
                )


def _is_copied(value: ast.expr) -> bool:
    """Whether a value is copied out of the graph's memory; clone() inside is not."""
    called = value.func if isinstance(value, ast.Call) else None
    copies = ("cpu", "item", "tolist")
    return isinstance(called, ast.Attribute) and called.attr in copies


def _holders(group: DeadGroup) -> str:
    """The first holder, and how many more there are."""
    count = group.count or 0
    name = next((e.holder for e in group.events if e.holder), None)
    if name is None:
        what = "gradient" if group.first.role == "gradient" else "output"
        return plural(count, what)
    return f"`{name}`" + (f" and {count - 1} more" if count > 1 else "")


def _produced(group: DeadGroup) -> str:
    """The expression that produced it."""
    frame = place_of(group.first.frames).frame
    if frame is None:
        function = group.first.function
        return f"what {function.function} returns" if function else "it"
    return f"`{shorten(frame.expression)}` at line {frame.line}"


def _where(frames: Iterable[Frame]) -> str:
    """` at model.py:12`; empty without a place."""
    at = _at(frames, short=True)
    return f" at {at}" if at else ""


def _at(frames: Iterable[Frame], *, short: bool = False) -> str:
    """`model.py:12`, followed by the source line unless `short`."""
    frame = place_of(tuple(frames)).frame
    if frame is None:
        return ""
    where = f"{frame.file.rpartition('/')[2] if short else frame.file}:{frame.line}"
    code = source_line(frame.file, frame.line).strip()
    return where if short or not code else f"{where}: {shorten(code)}"


def _made_at(event: DeadTensorEvent) -> str:
    function = event.function
    inside = f"{function.file}:{function.line}: {function.function}" if function else ""
    return _at(event.frames) or inside or "-"
