"""Splits a compiled function: Python before the graph, the graph, Python after it.

The function keeps its name and runs on the host, `torchproof.on_host`; a new function
next to it has the statements that are compiled. A function that an earlier edit has
split is put together again first, so that all edits share one pair of functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from torchproof.checking import words
from torchproof.fixing.rewrites import names
from torchproof.fixing.rewrites.effects import is_output
from torchproof.fixing.rewrites.operators import brief, dotted, nodes
from torchproof.fixing.rewrites.site import Changes, Draft, Refused, Site, Statement
from torchproof.fixing.rewrites.values import Values

_DECORATOR = "on_host"
# Methods of optimizers, schedulers, scalers, lists and tensors that Python runs anyway.
_HOST_METHODS = words(
    "append extend insert pop clear update setdefault add discard remove step zero_grad"
    " backward get_last_lr get_lr scale unscale_ item tolist numpy detach cpu clip_grad"
    " clip_grad_norm_ clip_grad_value_ parameters named_parameters perf_counter time"
)
HEAVY = words(
    "matmul mm bmm addmm baddbmm einsum linear conv1d conv2d conv3d softmax log_softmax"
    " scaled_dot_product_attention cross_entropy embedding layer_norm batch_norm svd"
)


@dataclass(frozen=True)
class Parts:
    """The statements of a function, in the order in which they run."""

    host: cst.FunctionDef
    graph: cst.FunctionDef | None  # what an earlier edit made of `inside`
    before: tuple[Statement, ...]
    inside: tuple[Statement, ...]
    after: tuple[Statement, ...]

    @property
    def body(self) -> tuple[Statement, ...]:
        return (*self.before, *self.inside, *self.after)


def after_graph(site: Site) -> Draft:
    """Runs a statement and all that follow it when the graph has run."""
    parts = parts_at(site)
    index = _index(site, parts.inside)
    moved = parts.inside[index:]
    assert_cheap(site, moved)
    split = replace(parts, inside=parts.inside[:index], after=(*moved, *parts.after))
    return split_draft(site, "run the rest after the graph, in Python", split)


def before_graph(site: Site) -> Draft:
    """Runs the statements up to and with one before the graph."""
    parts = parts_at(site)
    index = _index(site, parts.inside) + 1
    moved = parts.inside[:index]
    assert_cheap(site, moved)
    split = replace(parts, before=(*parts.before, *moved), inside=parts.inside[index:])
    return split_draft(site, "run it before the graph, in Python", split)


def _index(site: Site, statements: Sequence[Statement]) -> int:
    """Which of the statements contains the site."""
    around = {site.statement, *site.ancestors(site.statement)}
    for index, statement in enumerate(statements):
        if statement in around:
            return index
    raise Refused("the statement is not in the compiled function")


# -- the function as it is -------------------------------------------------------------


def parts_at(site: Site) -> Parts:
    """The function at a site; refused if it cannot be split."""
    function = site.function
    if not site.outermost:
        raise Refused(
            f"`{function.name.value}` is called by compiled code: only a function that"
            " is compiled itself can run its Python part outside the graph"
        )
    _assert_plain(function)
    parts = _split_before(site, function)
    if parts is None:
        body = tuple(names.body(function))
        first = 1 if function.get_docstring() is not None else 0
        parts = Parts(function, None, body[:first], body[first:], ())
    return parts


def _assert_plain(function: cst.FunctionDef) -> None:
    name = function.name.value
    if function.asynchronous is not None or any(
        isinstance(node, (cst.Yield, cst.Await)) for node in nodes(function)
    ):
        raise Refused(f"`{name}` is a generator or a coroutine")
    for each in function.decorators:
        if dotted(each.decorator) in ("staticmethod", "classmethod", "property"):
            raise Refused(f"`{name}` is a {dotted(each.decorator)}")
    if isinstance(function.body, cst.SimpleStatementSuite):
        raise Refused(f"`{name}` is one line")


def _split_before(site: Site, function: cst.FunctionDef) -> Parts | None:
    """The parts of a function that is split already; None if it is not."""
    others = [n for n in site.block(function) if isinstance(n, cst.FunctionDef)]
    for host in others:
        graph = next((g for g in others if g.name.value == _graph_name(host)), None)
        if graph is None or function not in (host, graph) or not _is_host(host):
            continue
        body = list(names.body(host))
        [at] = [i for i, each in enumerate(body) if _calls(each, graph.name.value)]
        inside = list(names.body(graph))
        if not _is_return(body[at]) and _is_return(inside[-1]):
            inside.pop()  # the names for the rest
        return Parts(
            host, graph, tuple(body[:at]), tuple(inside), tuple(body[at + 1 :])
        )
    return None


def _graph_name(function: cst.FunctionDef) -> str:
    return _name_in_graph(function.name.value)


def _name_in_graph(name: str) -> str:
    return f"_{name.strip('_')}_in_graph"


def original_names(text: str) -> dict[str, str]:
    """The functions that edits of a file made, and those whose statements they have."""
    hosts = re.findall(rf"@{_DECORATOR}\s+def (\w+)\(", text)
    return {_name_in_graph(name): name for name in hosts}


def _is_host(function: cst.FunctionDef) -> bool:
    return any(dotted(each.decorator) == _DECORATOR for each in function.decorators)


def _is_return(statement: Statement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[-1], cst.Return
    )


def _calls(statement: Statement, name: str) -> bool:
    return any(
        isinstance(node, cst.Call)
        and (dotted(node.func) or "").rpartition(".")[2] == name
        for node in nodes(statement)
    )


# -- what may leave the graph ----------------------------------------------------------


def assert_cheap(site: Site, moved: Iterable[Statement]) -> None:
    """Refuses to move work out of the graph that the graph is there for."""
    values = Values(site)
    at_site = set(nodes(site.expression)) if site.expression is not None else set()
    for statement in moved:
        for node in nodes(statement):
            if isinstance(node, cst.BinaryOperation) and isinstance(
                node.operator, cst.MatrixMultiply
            ):
                raise Refused(f"`{brief(node)}` would leave the graph too")
            if isinstance(node, cst.Call) and node not in at_site:
                _assert_cheap_call(node, values)


def _assert_cheap_call(call: cst.Call, values: Values) -> None:
    name = (values.dotted(call.func) or "").rpartition(".")[2]
    if isinstance(call.func, cst.Attribute):
        name = call.func.attr.value
    if name in _HOST_METHODS or is_output(call, values):
        return
    if name in HEAVY or not values.is_pure_call(call):
        raise Refused(f"`{brief(call)}` would leave the graph too")


# -- the two functions -----------------------------------------------------------------


def split_draft(
    site: Site, title: str, parts: Parts, imports: Sequence[str] = ()
) -> Draft:
    """The file with the function split."""
    was = site.file.positions
    first = 1 if parts.host.get_docstring() is not None else 0
    outside = [
        was[each] for each in (*parts.before[first:], *parts.after) if each in was
    ]
    lines = [0, *(line for r in outside for line in (r.start.line, r.end.line))]
    moved = min(lines[1:], default=0), max(lines)
    return Draft(title, _rendered(site, parts, imports), moved=moved)


def _rendered(site: Site, parts: Parts, imports: Sequence[str]) -> str:
    assert_splits(parts)
    host, graph = parts.host, _graph_function(site, parts)
    call = _call(site, parts, graph)
    decorators = host.decorators
    if not _is_host(host):
        decorators = (*decorators, cst.Decorator(cst.Name(_DECORATOR)))
    body = host.body.with_changes(body=[*parts.before, call, *parts.after])
    new_host = host.with_changes(decorators=decorators, body=body)
    # The statements stay where they are, so that the edit is easy to read.
    is_first = len(parts.before) > 1 or not parts.after
    pair: list[Statement] = [new_host, graph] if is_first else [graph, new_host]
    lines = 2 if isinstance(site.parent(host), cst.Module) else 1
    apart = [cst.EmptyLine(indent=False)] * lines
    pair[0] = pair[0].with_changes(leading_lines=())
    pair[1] = pair[1].with_changes(leading_lines=apart)
    changes: Changes = {host: pair}
    if parts.graph is not None:
        changes[parts.graph] = ()
    return site.replaced(changes, [*imports, "torchproof.on_host"])


def assert_splits(parts: Parts) -> None:
    """Refuses parts that are not the same program."""
    name = parts.host.name.value
    if all(_is_trivial(each) for each in parts.inside):
        raise Refused(f"nothing of `{name}` would be left for the graph")
    if parts.after and any(_returns(each) for each in parts.inside):
        raise Refused(f"`{name}` may return before this line")
    inside = (node for each in parts.inside for node in nodes(each))
    if any(isinstance(node, (cst.Global, cst.Nonlocal)) for node in inside):
        raise Refused(f"`{name}` assigns names of another scope")


def _is_trivial(statement: Statement) -> bool:
    """Whether a statement computes nothing: it returns names."""
    return not any(
        isinstance(node, (cst.Call, cst.BinaryOperation, cst.Comparison, cst.Subscript))
        for node in nodes(statement)
    )


def _returns(node: cst.CSTNode) -> bool:
    if isinstance(node, (cst.FunctionDef, cst.Lambda)):
        return False
    return isinstance(node, cst.Return) or any(map(_returns, node.children))


def _graph_function(site: Site, parts: Parts) -> cst.FunctionDef:
    host = parts.host
    given = _given(site, parts)
    known = names.parameters(host)
    owner = object_name(site, host)
    own = [cst.Param(cst.Name(owner))] if owner else []
    params = [
        cst.Param(cst.Name(name), known[name].annotation if name in known else None)
        for name in given
    ]
    body = [*parts.inside]
    if needed := _needed(parts):
        line = cst.parse_statement(f"return {', '.join(needed)}\n")
        body.append(line)
    body[0] = _without_blank_lines(body[0])
    taken = {each.value for each in nodes(site.module) if isinstance(each, cst.Name)}
    name = _graph_name(host)
    if parts.graph is None and name in taken:
        raise Refused(f"there is a `{name}` already")
    return cst.FunctionDef(
        cst.Name(name),
        cst.Parameters([*own, *params]),
        cst.IndentedBlock(body),
    )


def _without_blank_lines(statement: Statement) -> Statement:
    lines = getattr(statement, "leading_lines", ())
    return statement.with_changes(
        leading_lines=[each for each in lines if each.comment is not None]
    )


def _call(site: Site, parts: Parts, graph: cst.FunctionDef) -> Statement:
    owner = object_name(site, parts.host)
    name = f"{owner}.{graph.name.value}" if owner else graph.name.value
    text = f"{name}({', '.join(_given(site, parts))})"
    if not parts.after:
        text = f"return {text}"
    elif needed := _needed(parts):
        text = f"{', '.join(needed)} = {text}"
    line = cst.parse_statement(f"{text}\n")
    assert isinstance(line, cst.SimpleStatementLine)
    return line


def object_name(site: Site, function: cst.FunctionDef) -> str:
    """The name of the object, if the function is a method."""
    around = site.parent(site.parent(function) or function)
    if not isinstance(around, cst.ClassDef):
        return ""
    params = (*function.params.posonly_params, *function.params.params)
    if not params:
        raise Refused(f"`{function.name.value}` has no parameter for its object")
    return params[0].name.value


def _given(site: Site, parts: Parts) -> list[str]:
    """The names that the graph's part gets, in the order of their definitions."""
    read = set().union(*map(names.reads, parts.inside))
    read |= {
        name
        for name in _needed(parts)
        if not any(_assigns(each, name) for each in parts.inside)
    }
    own = object_name(site, parts.host)
    found = [*parameters_of(parts.host), *_assigned(parts.before)]
    return [name for name in dict.fromkeys(found) if name in read and name != own]


def _needed(parts: Parts) -> list[str]:
    """The names that the graph's part assigns and the rest reads."""
    if not parts.after:
        return []
    read = set().union(*map(names.reads, parts.after))
    found = [name for name in _assigned(parts.inside) if name in read]
    known = {*parameters_of(parts.host), *_assigned(parts.before)}
    for name in found:
        certain = any(_assigns(each, name) for each in parts.inside)
        if not certain and name not in known:
            raise Refused(f"`{name}` may not be assigned before this line")
    return found


def parameters_of(function: cst.FunctionDef) -> list[str]:
    every = function.params
    found = list(names.parameters(function))
    stars = (every.star_arg, every.star_kwarg)
    return found + [each.name.value for each in stars if isinstance(each, cst.Param)]


def _assigned(statements: Iterable[Statement]) -> list[str]:
    """The names that statements assign, in the order of the source."""
    statements = list(statements)
    stored = names.assigned(statements)
    return [name for name in dict.fromkeys(_words(statements)) if name in stored]


def _words(statements: Iterable[Statement]) -> Iterator[str]:
    for statement in statements:
        for node in nodes(statement):
            if isinstance(node, cst.Name):
                yield node.value


def _assigns(statement: cst.CSTNode, name: str) -> bool:
    """Whether a statement assigns a name whatever happens."""
    if isinstance(statement, cst.SimpleStatementLine):
        return name in names.assigned(statement)
    if isinstance(statement, cst.With):
        return any(_assigns(each, name) for each in names.body(statement))
    if isinstance(statement, cst.If) and statement.orelse is not None:
        arms = names.body(statement), names.body(statement.orelse)
        if isinstance(statement.orelse, cst.If):  # an `elif`
            arms = arms[0], [statement.orelse]
        return all(any(_assigns(each, name) for each in arm) for arm in arms)
    return False
