"""Edits of Python that Dynamo does not trace into a form with the same meaning.

Each takes a break at a line of the user's and what torch says about it, and returns the
edit, or None where its pattern is not there.
"""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass, replace

from torchproof.checking.static import changes
from torchproof.checking.static.changes import code
from torchproof.checking.static.source import Definition, Source, walk
from torchproof.records import Frame, Remedy, whose

_FILTERS = {"warnings.simplefilter", "warnings.filterwarnings"}
_NESTED = {"torch.nested.nested_tensor", "torch.nested.as_nested_tensor"}


@dataclass(frozen=True)
class Site:
    """A statement, and what torch says about the break there."""

    source: Source
    statement: ast.stmt
    said: str

    @property
    def function(self) -> Definition | None:
        for node in self.source.above(self.statement):
            if isinstance(node, Definition):
                return node
        return None

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Those of the function around the statement."""
        return tuple(walk(self.function)) if self.function else ()

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of these functions in the statement."""
        calls = [n for n in walk(self.statement) if isinstance(n, ast.Call)]
        return [n for n in calls if self.source.dotted(n.func) in names]

    def assigned(self, name: str) -> list[ast.expr]:
        """What the function assigns to a local variable."""
        return [
            node.value
            for node in self.nodes
            if isinstance(node, ast.Assign)
            if any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
        ]


def edit_at(frame: Frame | None, said: str) -> Remedy | None:
    """The edit that removes a break at a line of the user's file."""
    if frame is None or whose(frame.file) != "user":
        return None
    source = changes.source_of(frame.file)
    statement = changes.statement_at(source, frame.line) if source else None
    if source is None or statement is None:
        return None
    site = Site(source, statement, said)
    return next(filter(None, (each(site) for each in _EDITS)), None)


def _filter_as_argument(site: Site) -> Remedy | None:
    """`catch_warnings(action="ignore")` sets the filter that its block set first."""
    block, source = site.source.parents[site.statement], site.source
    if not isinstance(block, ast.With) or block.body[0] is not site.statement:
        return None
    calls = site.calls(*_FILTERS) if isinstance(site.statement, ast.Expr) else []
    enter = block.items[0].context_expr
    if not calls or len(block.items) > 1 or not isinstance(enter, ast.Call):
        return None
    if source.text_of(enter).rpartition(".")[2] != "catch_warnings()":
        return None
    names = ("action", "category", "lineno", "append")
    call = calls[0]
    if len(call.args) > 1 and source.dotted(call.func) == "warnings.filterwarnings":
        return None  # its second argument is a pattern of messages
    given = {k.arg: k.value for k in call.keywords}
    given |= dict(zip(names, call.args, strict=False))
    if not given.keys() <= {*names}:
        return None
    text = ", ".join(f"{name}={code(source, value)}" for name, value in given.items())
    title = f"pass the filter to `catch_warnings({text})`, which is traced"
    rest = "" if len(block.body) > 1 else "pass"
    entered = f"{code(source, enter.func)}({text})"
    new: dict[changes.Node, str] = {enter: entered, site.statement: rest}
    return changes.edit(title, source, new)


def _marked_input_returned(site: Site) -> Remedy | None:
    """An autograd.Function returns the input that it has changed, by its own name."""
    if "mark_dirty input not returned" not in site.said:
        return None
    source = site.source
    functions = [site.function] if site.function else []
    for call in (n for n in walk(site.statement) if isinstance(n, ast.Call)):
        owner = source.classes.get((source.dotted(call.func) or "").partition(".")[0])
        if owner and "forward" in owner.methods:
            functions.append(owner.methods["forward"].node)
    for function in functions:
        marked = {
            argument.id
            for node in walk(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if node.func.attr == "mark_dirty"
            for argument in node.args
            if isinstance(argument, ast.Name)
        }
        inside = replace(site, statement=function.body[-1])
        for node in (n for n in walk(function) if isinstance(n, ast.Return)):
            changed = _changed_in_place(node.value, inside)
            if node.value is not None and changed in marked:
                own = f"{code(source, node.value)}\n{' ' * node.col_offset}"
                own = "" if isinstance(node.value, ast.Name) else own
                title = f"return `{changed}` itself, which ctx.mark_dirty names"
                return changes.edit(title, source, {node: f"{own}return {changed}"})
    return None


def _changed_in_place(value: ast.expr | None, site: Site) -> str | None:
    """`x` for `x.add_(y)`, and for a variable that has only this value."""
    if isinstance(value, ast.Name):
        values = site.assigned(value.id)
        value = values[0] if len(values) == 1 else None
    called = value.func if isinstance(value, ast.Call) else None
    owner = called.value if isinstance(called, ast.Attribute) else None
    if not isinstance(called, ast.Attribute) or not isinstance(owner, ast.Name):
        return None
    return owner.id if re.fullmatch(r"[a-z]\w*[a-z0-9]_", called.attr) else None


def _class_in_module(site: Site) -> Remedy | None:
    """A class that needs nothing of the function is defined once, above it."""
    node, source, function = site.statement, site.source, site.function
    if not isinstance(node, ast.ClassDef) or function is None or node.decorator_list:
        return None
    outside = [*(n for n in source.above(node) if isinstance(n, Definition))]
    local = {name for each in outside for name in _bound(each, without=node)}
    taken = _bound(source.tree, without=node) | set(dir(builtins))
    # Attributes of a class would be kept from one call to the next.
    plain = all(
        isinstance(each, Definition | ast.Pass | ast.Expr)
        or isinstance(getattr(each, "value", None), ast.Constant)
        or (isinstance(each, ast.AnnAssign) and each.value is None)
        for each in node.body
    )
    if not plain or _read(node) & local or node.name in taken:
        return None
    top = [n for n in (node, *source.above(node)) if isinstance(n, ast.stmt)][-1]
    title = f"define the class `{node.name}` once, outside of `{function.name}`"
    return changes.moved_above(title, source, node, top)


def _bound(node: ast.AST, without: ast.AST) -> set[str]:
    """The names that a function or module binds itself."""
    names: set[str] = set()
    pending = [node]
    while pending:
        for each in ast.iter_child_nodes(pending.pop()):
            if each is without:
                continue
            if isinstance(each, Definition | ast.ClassDef):
                names.add(each.name)
                continue
            if isinstance(each, ast.alias):
                names.add((each.asname or each.name).partition(".")[0])
            elif isinstance(each, ast.arg):
                names.add(each.arg)
            elif isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
                names.add(each.id)
            pending.append(each)
    return names


def _read(node: ast.AST) -> set[str]:
    """The names that a class reads from around it, as far as its functions show."""
    names = {
        each.id
        for each in walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    functions = [each for each in walk(node) if isinstance(each, Definition)]
    own = [_bound(each, without=node) for each in functions]
    return {n for n in names if not own or not all(n in each for each in own)}


def _jagged(site: Site) -> Remedy | None:
    """A nested tensor in the layout that Dynamo traces."""
    source = site.source
    found = [
        node
        for node in site.nodes
        if isinstance(node, ast.Call) and source.dotted(node.func) in _NESTED
        if "nested" in site.said.lower()
        if not any(k.arg in ("layout", None) for k in node.keywords)
    ]
    if len(found) != 1 or source.names.get("torch") != "torch":
        return None
    [call] = found
    given = changes.arguments(source, call)
    new = f"{code(source, call.func)}({given}, layout=torch.jagged)"
    title = "make the nested tensor, and so results, with layout=torch.jagged"
    return changes.edit(title, source, {call: new}, tier="unsafe")


_EDITS = (
    _filter_as_argument,
    _marked_input_returned,
    _class_in_module,
    _jagged,
)
