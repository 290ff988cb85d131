"""Edits of Python that Dynamo does not trace into a form with the same meaning.

Each takes a break at a line of the user's and what torch says about it, and returns the
edit, or None where its pattern is not there.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchproof.checking.static import changes
from torchproof.checking.static.changes import code
from torchproof.checking.static.source import Definition, Source, walk
from torchproof.records import Frame, Remedy, whose

# Builtins that use up an iterator, or are one themselves.
_CONSUMING = {
    *("list", "tuple", "dict", "set", "sorted", "sum", "min", "max", "next", "any"),
    *("all", "zip", "map", "filter", "enumerate", "reversed", "iter"),
}
_FILTERS = {"warnings.simplefilter", "warnings.filterwarnings"}
_NESTED = {"torch.nested.nested_tensor", "torch.nested.as_nested_tensor"}
_DRAWS = {"random.randint", "random.randrange"}


@dataclass(frozen=True)
class Site:
    """A statement, and what torch says about the break there."""

    source: Source
    statement: ast.stmt
    said: str
    files: Sequence[str] = ()  # of the user's, around it

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


def edit_at(frame: Frame | None, said: str, files: Iterable[str]) -> Remedy | None:
    """The edit that removes a break at a line of the user's file."""
    if frame is None or whose(frame.file) != "user":
        return None
    source = changes.source_of(frame.file)
    statement = changes.statement_at(source, frame.line) if source else None
    if source is None or statement is None:
        return None
    site = Site(source, statement, said, tuple(files))
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


def _list_where_made(site: Site) -> Remedy | None:
    """An iterator or a view that is made outside of compiled code becomes a list."""
    made = re.search(
        r"not implemented for (\w+)|UserDefinedObjectVariable\((\w+)\)", site.said
    )
    if made is None or not isinstance(site.statement, ast.For):
        return None
    kind = made[1] or made[2]
    found = [
        (source, node)
        for source in filter(None, map(changes.source_of, site.files))
        for node in source.nodes
        if _makes(node, kind) and node not in site.nodes
        if not _is_consumed(node, source)
    ]
    if len(found) != 1:
        return None
    [(source, node)] = found
    assert isinstance(node, ast.expr)
    text = code(source, node)
    title = f"make it a list before the compiled call: `list({text})`"
    own = text[1:-1] if isinstance(node, ast.GeneratorExp) else text
    return changes.edit(title, source, {node: f"list({own})"})


def _makes(node: ast.AST, kind: str) -> bool:
    if kind == "generator":
        return isinstance(node, ast.GeneratorExp)
    if not isinstance(node, ast.Call):
        return False
    if kind.startswith("dict_"):
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return method == kind.removeprefix("dict_") and not node.args
    return isinstance(node.func, ast.Name) and node.func.id == kind


def _is_consumed(node: ast.AST, source: Source) -> bool:
    """Whether the code around an iterator uses it up at once."""
    around = source.parents[node]
    if isinstance(around, ast.Call):
        return source.dotted(around.func) in _CONSUMING
    return isinstance(around, ast.For | ast.comprehension | ast.Starred)


def _sorted_as_tensor(site: Site) -> Remedy | None:
    """Tensors of one element are sorted as one tensor."""
    source = site.source
    calls = site.calls("sorted")
    if "sort with non-constant" not in site.said or len(calls) != 1:
        return None
    call, names = calls[0], {k.arg: k.value for k in calls[0].keywords}
    reverse = names.pop("reverse", None)
    if names or len(call.args) != 1 or source.names.get("torch") != "torch":
        return None
    if not isinstance(reverse, ast.Constant | None):
        return None
    value = call.args[0]
    known = site.assigned(value.id) if isinstance(value, ast.Name) else [value]
    is_list = known and all(isinstance(e, ast.List | ast.ListComp) for e in known)
    text = code(source, value) if is_list else f"[*{code(source, value)}]"
    order = ", descending=True" if reverse and reverse.value else ""
    new = f"list(torch.stack({text}).sort(dim=0, stable=True{order}).values)"
    title = f"sort {source.quote(value)} as one tensor, with torch.sort"
    return changes.edit(title, source, {call: new})


def _evaluated_once(site: Site) -> Remedy | None:
    """Source that a module keeps becomes a function when the module is made."""
    source, calls = site.source, site.calls("eval")
    if "`eval` with argument types ['str'" not in site.said or len(calls) != 1:
        return None
    call = calls[0]
    name = source.own(call.args[0]) if len(call.args) == 3 else None
    scope, values = call.args[1:] if name else (None, None)
    if name is None or scope is None or not isinstance(values, ast.Dict):
        return None
    keys = [each.value for each in values.keys if isinstance(each, ast.Constant)]
    names = [each for each in keys if isinstance(each, str) and each.isidentifier()]
    local = _bound(site.function, without=call) if site.function else set()
    stored = [
        (node, source.parents[node])
        for node in source.of(ast.Attribute)
        if node.attr == name and not isinstance(node.ctx, ast.Load)
    ]
    if len(stored) != 1 or len(names) != len(values.keys) or _read(scope) & local:
        return None
    [(target, assignment)] = stored
    if source.own(target) is None or not isinstance(assignment, ast.Assign):
        return None
    given = ", ".join(code(source, each) for each in values.values)
    made = f"self._{name}_function"
    line = f'{made} = eval(f"lambda {", ".join(names)}: ({{self.{name}}})", '
    own = code(source, assignment)
    indent = "\n" + " " * assignment.col_offset
    new: dict[changes.Node, str] = {
        assignment: f"{own}{indent}{line}{code(source, scope)})",
        call: f"{made}({given})",
    }
    title = f"make a function of `self.{name}` once, outside of the compiled code"
    return changes.edit(title, source, new)


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
    title = "make the nested tensor with layout=torch.jagged, which stays in the graph"
    return changes.edit(title, source, {call: new})


def _drawn_slice(site: Site) -> Remedy | None:
    """A slice that begins at a drawn number becomes an index of the same length."""
    if "UnspecializedPythonVariable" not in site.said:
        return None
    source = site.source
    subscripts = [n for n in walk(site.statement) if isinstance(n, ast.Subscript)]
    for node in subscripts if source.names.get("torch") == "torch" else ():
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        drawn = [_drawn(part, site) for part in parts]
        owner = code(source, node.value)
        plain = source.dotted(node.value) and isinstance(node.ctx, ast.Load)
        if (
            not plain
            or not any(drawn)
            or not all(isinstance(p, ast.Slice) for p in parts)
        ):
            continue
        whole = [p for p, pair in zip(parts, drawn, strict=True) if not pair]
        if any(code(source, each).strip(": ") for each in whole):
            continue
        text = owner
        for dim, pair in enumerate(drawn):
            if pair:
                index = f"torch.arange({pair[1]}, device={owner}.device) + {pair[0]}"
                text += f".index_select({dim}, {index})"
        title = f"select {source.quote(node)} with index_select, from the drawn tensor"
        return changes.edit(title, source, {node: text})
    return None


def _drawn(part: ast.expr, site: Site) -> tuple[str, str] | None:
    """The name and the length of `[top : top + size]`, where `top` is drawn."""
    upper = part.upper if isinstance(part, ast.Slice) and not part.step else None
    lower = part.lower if isinstance(part, ast.Slice) else None
    if not isinstance(lower, ast.Name) or not isinstance(upper, ast.BinOp):
        return None
    sides = [upper.left, upper.right]
    lengths = [e for e in sides if ast.dump(e) != ast.dump(lower)]
    values = site.assigned(lower.id)
    is_draw = values and all(
        isinstance(v, ast.Call) and site.source.dotted(v.func) in _DRAWS for v in values
    )
    if not is_draw or len(lengths) != 1 or not isinstance(upper.op, ast.Add):
        return None
    return lower.id, code(site.source, lengths[0])


def _deep_copied(site: Site) -> Remedy | None:
    """`copy.deepcopy` of a tensor, which has no history: of another one, it fails."""
    source, calls = site.source, site.calls("copy.deepcopy")
    if "TensorVariable" not in site.said or len(calls) != 1 or calls[0].keywords:
        return None
    value = calls[0].args[0] if len(calls[0].args) == 1 else None
    if not isinstance(value, ast.Name | ast.Attribute):
        return None
    new = f"{code(source, value)}.detach().clone()"
    return changes.edit(f"copy the tensor: `{new}`", source, {calls[0]: new})


_EDITS = (
    _filter_as_argument,
    _marked_input_returned,
    _class_in_module,
    _list_where_made,
    _sorted_as_tensor,
    _evaluated_once,
    _jagged,
    _drawn_slice,
    _deep_copied,
)
