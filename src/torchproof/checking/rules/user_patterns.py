"""Patterns of users' programs that recompile, each with the form that does not.

A pattern is a function of `PATTERNS`: it looks at the events of a recompile and at the
source around its call, and returns what it has found, or None. The rules for recompiles
ask `found` for the first one that applies.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torchproof.checking.rules.number_edits import selecting
from torchproof.checking.rules.recompile_groups import RecompileGroup
from torchproof.checking.rules.rule import AnyGroup
from torchproof.checking.static import bindings, changes, compiled
from torchproof.checking.static.source import Definition, Source, walk
from torchproof.records import (
    Call,
    CompileEvent,
    GraphEvent,
    GuardEvent,
    Remedy,
    Size,
    varying,
    whose,
)

_ADDING = {"append", "extend", "insert"}
_DECODE = (
    "compile the decode step alone, with a static cache (preallocated buffers), and run"
    " the prompt through the uncompiled model"
)
_GENERATE = (
    "compile the decode step alone: leave forward uncompiled, and generate("
    'cache_implementation="static") compiles it on a GPU'
)
_LAST_BATCH = (
    "pass drop_last=True to the DataLoader if only its last batch is smaller, or pad it"
)


@dataclass(frozen=True)
class Found:
    """A pattern in a program: its name, and the form that needs fewer graphs.

    `remedy` goes before what the rule knows, `advice` replaces the rule's own words.
    """

    name: str
    remedy: Remedy | None = None
    advice: str = ""


Pattern = Callable[[RecompileGroup], Found | None]


def found(group: RecompileGroup) -> Found | None:
    """The first pattern that a recompile is part of."""
    if group.cut is not None:
        return None
    return next((each for p in PATTERNS if (each := p(group)) is not None), None)


# -- prefill and decode ----------------------------------------------------------------


def prefill_and_decode(group: RecompileGroup) -> Found | None:
    """A prompt of several tokens, then one token a call: two graphs of one function."""
    call, events = group.first.entry_call, _compiling(group)
    calls = [event.entry_call for event in events if event.entry_call]
    if call is None or (size := _token(call, calls)) is None:
        return None
    decoding = (e for e in events if e.entry_call and _length(e.entry_call, size) == 1)
    if next(decoding).call != group.first.call:
        return None  # one decode step differs from another
    name = "prefill and decode share one compiled function"
    if not call.by_user:
        if not _has_cache(group, size):
            return None
        in_library = whose(call.file) == "library"
        return Found(name, advice=_GENERATE if in_library else _DECODE)
    source, token = changes.source_of(call.file), call.argument(size.path)
    decode, prompt = _node(source, call), _node(source, calls[0])
    if source is None or decode is None or token is None:
        return None
    if not _feeds_itself(source, decode, set(re.findall(r"\w+", token.words))):
        return None
    if prompt is None or calls[0].file != call.file:
        return Found(name, advice=_DECODE)
    eager = _uncompiled(group, source, prompt)
    if eager is None or (prompt is decode and "(" in token.words):
        return Found(name, advice=_DECODE)  # a call may have an effect
    new: dict[changes.Node, str] = {prompt.func: eager}
    if prompt is decode:
        test = f"{token.words}.shape[{size.dim}] == 1"
        new[prompt.func] = (
            f"({changes.code(source, prompt.func)} if {test} else {eager})"
        )
    title = f"compile the decode step alone: `{eager}` itself takes the prompt"
    return Found(name, changes.edit(title, source, new), _DECODE)


def _compiling(group: RecompileGroup) -> list[CompileEvent]:
    """What compiled the function that the call of a group enters, in order."""
    call = group.first.entry_call
    events = group.facts.of(GraphEvent, GuardEvent)
    calls = [(event, event.entry_call) for event in events]
    return [e for e, each in calls if each and call and each.entry == call.entry]


def _token(call: Call, calls: Sequence[Call]) -> Size | None:
    """The dimension that is longer at first, and 1 in a call."""
    sizes = (size for size in varying(calls) if _length(call, size) == 1)
    return next((size for size in sizes if size.seen[0] > 1), None)


def _length(call: Call, size: Size) -> int | None:
    shape = call.sizes.get(size.path)
    return None if shape is None else shape[size.dim]


def _has_cache(group: RecompileGroup, size: Size) -> bool:
    """Whether another size changes while there is one token a call."""
    return any(
        event.guard is not None
        and event.guard.cause == "size"
        and event.function == group.first.function
        and event.entry_call is not None
        and _length(event.entry_call, size) == 1
        for event in group.facts.of(GuardEvent)
    )


def _node(source: Source | None, call: Call) -> ast.Call | None:
    """The expression of a recorded call: no other one ends where it does."""
    if source is None or call.span is None:
        return None
    _, line, _, column = call.span
    calls = source.of(ast.Call)
    ends = (n for n in calls if (n.end_lineno, n.end_col_offset) == (line, column))
    return next(ends, None)


def _feeds_itself(source: Source, call: ast.Call, names: set[str]) -> bool:
    """Whether a loop computes one of the names from the result of a call in it."""
    loop = _loop(source, call)
    return loop is not None and bool(_reached(loop, call) & names)


def _loop(source: Source, node: ast.AST) -> ast.For | ast.While | None:
    """The innermost loop around a node, in the same function."""
    for each in source.above(node):
        if isinstance(each, ast.For | ast.While | Definition):
            return None if isinstance(each, Definition) else each
    return None


def _reached(scope: ast.AST, start: ast.AST) -> set[str]:
    """The names in a scope whose values are computed from a node."""
    reached: set[str] = set()
    statements = [n for n in walk(scope) if isinstance(n, ast.stmt)]
    while True:
        size = len(reached)
        for each in statements:
            below = walk(each)
            if start in below or _names(each) & reached:
                reached |= set(_assigned(each))
        if len(reached) == size:
            return reached


def _assigned(node: ast.stmt) -> Iterator[str]:
    """The names that a simple statement binds, or adds something to."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr in _ADDING:
            targets = [called.value]
    for target in targets:
        listed = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        yield from (n.id for t in listed for n in walk(t) if isinstance(n, ast.Name))


def _names(*nodes: ast.AST) -> set[str]:
    """The names that expressions, or a simple statement, read or bind."""
    return {n.id for each in nodes for n in walk(each) if isinstance(n, ast.Name)}


def _passed(call: ast.Call) -> set[str]:
    return _names(*call.args, *(keyword.value for keyword in call.keywords))


def _uncompiled(group: RecompileGroup, source: Source, call: ast.Call) -> str | None:
    """The uncompiled model as the place of a call can name it."""
    file, name = compiled.of(source), source.dotted(call.func)
    site = file.of(call.func)
    subject = site.subject if site else None
    own = source.dotted(subject)
    if site is not None and own is not None and own != name:
        assert isinstance(subject, ast.expr)
        if file.bindings.scope(site.node) in source.above(call):
            return changes.code(source, subject)
    used = [wrapper for wrapper in group.facts.wrappers if wrapper.calls]
    plain = used and all(w.what == "module" and not w.in_place for w in used)
    return f"{changes.code(source, call.func)}._orig_mod" if plain and name else None


def is_prefill(group: AnyGroup) -> bool:
    """Whether an eager call of a compiled model only starts what decoding goes on with.

    Either its line chooses between the two, or a loop passes the compiled one what
    was computed from the result, and then its own results.
    """
    frame = group.frame
    source = changes.source_of(frame.file) if frame else None
    if frame is None or source is None:
        return False
    events = group.facts.of(GraphEvent, GuardEvent)
    calls = [event.entry_call for event in events]
    own = [c for c in calls if c is not None and c.file == frame.file]
    if any(call.line == frame.line for call in own):
        return True
    here = [n for n in source.of(ast.Call) if n.lineno == frame.line]
    nodes = [node for call in own if (node := _node(source, call)) is not None]
    scope_of = bindings.of(source).scope
    return any(
        scope_of(eager) is scope_of(node)
        and _loop(source, eager) is not _loop(source, node)
        and _feeds_itself(source, node, _passed(node))
        and _reached(scope_of(eager), eager) & _passed(node)
        for eager in here
        for node in nodes
    )


# -- a position as an index ------------------------------------------------------------


def position_as_index(group: RecompileGroup) -> Found | None:
    """`cache[:, position]`: Dynamo makes an int between slices a constant."""
    frame, guard = group.frame, group.first.guard
    if frame is None or guard is None or group.place.owner != "user":
        return None
    is_int = (guard.expected or "").lstrip("-").isdigit()
    if not is_int or group.compile_arguments.get("dynamic") == "False":
        return None
    edit = selecting(guard.source, group.first.frames, frame)
    name = "an int as an index between slices stays a constant"
    return Found(name, edit) if edit else None


# -- batches of a loader ---------------------------------------------------------------


def ragged_batches(group: RecompileGroup) -> Found | None:
    """Batches of a DataLoader with other sizes: each padded to its own longest."""
    call, guard = group.first.entry_call, group.guard
    if call is None or guard.cause not in ("size", "size_one") or not call.by_user:
        return None
    source = changes.source_of(call.file)
    node = _node(source, call)
    if source is None or node is None:
        return None
    loader = _loader(source, node, guard.source)
    if loader is None:
        return None
    name = f"the DataLoader at line {loader.lineno} gives batches of other sizes"
    if guard.dim == 0:
        is_one = guard.cause == "size_one"
        return Found(name, advice="" if is_one else _LAST_BATCH)
    given = next((k.value for k in loader.keywords if k.arg == "collate_fn"), None)
    collate = source.quote(given) if isinstance(given, ast.Name) else "collate_fn"
    advice = f"pad in {collate} to a multiple of 64, and mask what it adds"
    return Found(name, advice=advice)


def _loader(source: Source, call: ast.Call, argument: str) -> ast.Call | None:
    """The DataLoader from which a loop around a call takes an argument."""
    root = re.split(r"\W", argument)[0]
    for loop in source.above(call):
        if not isinstance(loop, ast.For):
            continue
        if root not in _names(loop.target) | _reached(loop, loop.target):
            continue
        made = bindings.of(source).origin(loop.iter)
        while isinstance(made, ast.Call):
            if (source.dotted(made.func) or "").endswith("DataLoader"):
                return made
            made = made.args[0] if made.args else None  # as of enumerate and tqdm
            made = bindings.of(source).origin(made)
    return None


PATTERNS: tuple[Pattern, ...] = (prefill_and_decode, position_as_index, ragged_batches)
