"""Edits that make a program smaller, one small step each.

Each pass takes a parsed module and returns edits, those that remove most first. An edit
takes the nodes of a copy in the order of `ast.walk` and changes them in place.
`program_reducer` decides whether the edited program still fails.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from torchproof.packs.repro.programs.scopes import parameters

Nodes = list[ast.AST]
Edit = Callable[[Nodes], None]
Pass = Callable[[ast.Module], list[Edit]]

_BLOCKS = ("body", "orelse", "finalbody", "handlers")
_ENTRIES = {"make", "before_call", "run"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _weight(node: ast.AST) -> int:
    return sum(1 for _ in ast.walk(node))


def _largest_first(weighted: list[tuple[int, Edit]]) -> list[Edit]:
    return [edit for _, edit in sorted(weighted, key=lambda pair: -pair[0])]


# -- calls -----------------------------------------------------------------------------


def fewer_calls(tree: ast.Module) -> list[Edit]:
    """Keeps one, two or half of the elements of a list in `make`."""
    edits: list[Edit] = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.FunctionDef) and node.name == "make":
            for place, inner in enumerate(ast.walk(node)):
                if isinstance(inner, ast.List) and len(inner.elts) > 1:
                    counts = dict.fromkeys((1, 2, len(inner.elts) // 2))
                    edits += [_keep_first(number, place, n) for n in counts]
                elif isinstance(inner, ast.ListComp):
                    edits.append(_keep_first(number, place, 1))
    return edits


def _keep_first(number: int, place: int, count: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = list(ast.walk(nodes[number]))[place]
        if isinstance(node, ast.List):
            del node.elts[count:]
        elif isinstance(node, ast.ListComp):
            elements, context = [node.elt], ast.Load()
            node.__class__ = ast.List  # type: ignore[assignment]
            node.__dict__.clear()
            node.__dict__.update(elts=elements, ctx=context)

    return edit


def stand_in_attributes(tree: ast.Module) -> list[Edit]:
    """Removes the attributes of stand-in objects: all, halves, single ones."""
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    edits: list[tuple[int, Edit]] = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in classes:
            edits += [
                (end - start, _remove_items(number, "keywords", start, end))
                for start, end in _spans(len(node.keywords))
            ]
    return _largest_first(edits)


# -- bodies ----------------------------------------------------------------------------


def trivial_bodies(tree: ast.Module) -> list[Edit]:
    """Replaces the body of a function by returning its first argument."""
    edits = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, _Function) and node.name not in _ENTRIES:
            body = _trivial(node)
            if ast.unparse(ast.Module(node.body, [])) != body:
                edits.append((_weight(node), _set_body(number, body)))
    return _largest_first(edits)


def _trivial(node: _Function) -> str:
    if node.name == "__init__":
        return "super().__init__()"
    names = [a.arg for a in parameters(node) if a.arg not in {"self", "cls"}]
    return f"return {names[0]}" if names else "pass"


def _set_body(number: int, body: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        nodes[number].body = ast.parse(body).body  # type: ignore[attr-defined]

    return edit


def statement_runs(tree: ast.Module) -> list[Edit]:
    """Removes runs of statements: halves of a block first, then shorter ones."""
    edits = []
    for number, field, block in _blocks(tree):
        size = len(block)
        while size > 1:
            for start in range(0, len(block), size):
                weight = sum(map(_weight, block[start : start + size]))
                edits.append(
                    (weight, _remove_statements(number, field, start, start + size))
                )
            size //= 2
    return _largest_first(edits)


def single_statements(tree: ast.Module) -> list[Edit]:
    """Removes one statement, last ones first: fewer others depend on them."""
    edits: list[Edit] = []
    for number, field, block in _blocks(tree):
        edits += [
            _remove_statements(number, field, start, start + 1)
            for start, node in enumerate(block)
            if not isinstance(node, ast.Pass)
        ]
    return edits[::-1]


def _blocks(tree: ast.Module) -> Iterator[tuple[int, str, list[ast.stmt]]]:
    for number, node in enumerate(ast.walk(tree)):
        for field in _BLOCKS:
            block = getattr(node, field, None)
            if isinstance(block, list) and block:
                yield number, field, block


def _remove_statements(number: int, field: str, start: int, end: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        block = getattr(node, field)
        del block[start:end]
        if not block and field == "body" and not isinstance(node, ast.Module):
            block.append(ast.Pass())
        if isinstance(node, ast.Try) and not node.handlers and not node.finalbody:
            node.finalbody = [ast.Pass()]

    return edit


def bypassed_assignments(tree: ast.Module) -> list[Edit]:
    """Removes `y = f(x)` and reads `x` instead of `y`."""
    edits = []
    for number, field, block in _blocks(tree):
        for place, node in enumerate(block):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            target = node.targets[0]
            names = [n for n in ast.walk(node.value) if isinstance(n, ast.Name)]
            sources = dict.fromkeys(
                n.id for n in names if n.id not in {"self", "torch"}
            )
            if isinstance(target, ast.Name) and field == "body":
                for source in list(sources)[:2]:
                    if source != target.id:
                        edit = _bypass(number, place, target.id, source)
                        edits.append((_weight(node), edit))
    return _largest_first(edits)


def _bypass(number: int, place: int, name: str, source: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        owner = nodes[number]
        del owner.body[place]  # type: ignore[attr-defined]
        for node in ast.walk(owner):
            if isinstance(node, ast.Name) and node.id == name:
                node.id = source
        if not owner.body:  # type: ignore[attr-defined]
            owner.body = [ast.Pass()]  # type: ignore[attr-defined]

    return edit


def unwrapped_blocks(tree: ast.Module) -> list[Edit]:
    """Replaces an if, for, while, with or try by its body."""
    edits = []
    for number, field, block in _blocks(tree):
        for place, node in enumerate(block):
            if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
                for inner in ("body", "orelse", "finalbody"):
                    if getattr(node, inner, None):
                        edit = _unwrap(number, field, place, inner)
                        edits.append((_weight(node), edit))
    return _largest_first(edits)


def _unwrap(number: int, field: str, place: int, inner: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        block = getattr(nodes[number], field)
        node = block[place]
        block[place : place + 1] = getattr(node, inner)
        if isinstance(node, ast.For):  # its body now runs once
            for inner_node in ast.walk(nodes[number]):
                if isinstance(inner_node, ast.Break | ast.Continue):
                    inner_node.__class__ = ast.Pass  # type: ignore[assignment]

    return edit


# -- expressions -----------------------------------------------------------------------


def simpler_expressions(tree: ast.Module) -> list[Edit]:
    """Replaces an expression by one of its operands."""
    edits = []
    order = {id(node): number for number, node in enumerate(ast.walk(tree))}
    for parent in ast.walk(tree):
        for field, place, node in _expressions(parent):
            for other in _simpler(node):
                saved = _weight(node) - _weight(other)
                if saved > 0 or isinstance(other, ast.Call | ast.Constant):
                    edit = _replace_expression(order[id(parent)], field, place, other)
                    edits.append((saved, edit))
    return _largest_first(edits)


def _expressions(parent: ast.AST) -> Iterator[tuple[str, int | None, ast.expr]]:
    for field, value in ast.iter_fields(parent):
        if field in {"func", "decorator_list", "targets", "target", "format_spec"}:
            continue
        if isinstance(value, ast.expr):
            yield field, None, value
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, ast.expr):
                    yield field, place, item


def _simpler(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        yield from _simpler_call(node)
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Compare):
        yield node.left
    elif isinstance(node, ast.Subscript | ast.Starred):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield ast.Constant("")
    elif isinstance(node, ast.ListComp | ast.GeneratorExp):
        yield ast.List([node.elt], ast.Load())
    elif isinstance(node, ast.Tuple | ast.List) and len(node.elts) == 1:
        yield node.elts[0]


def _simpler_call(node: ast.Call) -> Iterator[ast.expr]:
    called = ast.unparse(node.func)
    name = called.rpartition(".")[2]
    if name[:1].isupper() and name != "Identity":
        yield ast.parse("torch.nn.Identity()", mode="eval").body
    yield from node.args[:3]
    if isinstance(node.func, ast.Attribute):
        base = node.func.value
        if ast.unparse(base).partition(".")[0] not in {"torch", "self", "nn", "F"}:
            yield base


def _replace_expression(
    number: int, field: str, place: int | None, other: ast.expr
) -> Edit:
    def edit(nodes: Nodes) -> None:
        if place is None:
            setattr(nodes[number], field, other)
        else:
            getattr(nodes[number], field)[place] = other

    return edit


def fewer_items(tree: ast.Module) -> list[Edit]:
    """Removes arguments, keywords, elements and decorators."""
    edits: list[tuple[int, Edit]] = []
    for number, node in enumerate(ast.walk(tree)):
        for field in ("args", "keywords", "elts", "decorator_list", "items", "targets"):
            listed = getattr(node, field, None)
            if not isinstance(listed, list):
                continue
            if field in {"items", "targets"} and len(listed) < 2:
                continue
            edits += [
                (
                    sum(map(_weight, listed[start:end])),
                    _remove_items(number, field, start, end),
                )
                for start, end in _spans(len(listed))
            ]
        if isinstance(node, ast.Dict):
            edits += [
                (_weight(node) * (end - start), _remove_keys(number, start, end))
                for start, end in _spans(len(node.keys))
            ]
    return _largest_first(edits)


def _spans(length: int) -> Iterator[tuple[int, int]]:
    """Yields the whole range, then halves, then shorter runs, the last one first."""
    size = length
    while size:
        for start in reversed(range(0, length, size)):
            yield start, min(start + size, length)
        size //= 2


def _remove_items(number: int, field: str, start: int, end: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        del getattr(nodes[number], field)[start:end]

    return edit


def _remove_keys(number: int, start: int, end: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, ast.Dict)
        del node.keys[start:end], node.values[start:end]

    return edit
