"""The ways in which a program can be made smaller, one small step each.

Comes in: a parsed module. Goes out: edits, those that take most away first. An edit is
told the nodes of a copy in the order of `ast.walk`, and changes them in place. Whether
what is left still fails is asked elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from torchproof.repro.programs.scopes import parameters, spelled

Nodes = list[ast.AST]
Edit = Callable[[Nodes], None]
Pass = Callable[[ast.Module], list[Edit]]

_BLOCKS = ("body", "orelse", "finalbody", "handlers")
_ENTRIES = {"make", "before_call", "run"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _weight(node: ast.AST) -> int:
    return sum(1 for _ in ast.walk(node))


def _ordered(found: list[tuple[int, Edit]]) -> list[Edit]:
    """What takes most away comes first."""
    return [edit for _, edit in sorted(found, key=lambda pair: -pair[0])]


# -- bodies ----------------------------------------------------------------------------


def hollow(tree: ast.Module) -> list[Edit]:
    """Functions that give back what they are given."""
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, _Function) and node.name not in _ENTRIES:
            body = _trivial(node)
            if ast.unparse(ast.Module(node.body, [])) != body:
                found.append((_weight(node), _with_body(number, body)))
    return _ordered(found)


def _trivial(node: _Function) -> str:
    if node.name == "__init__":
        return "super().__init__()"
    given = [a.arg for a in parameters(node) if a.arg not in {"self", "cls"}]
    return f"return {given[0]}" if given else "pass"


def _with_body(number: int, body: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        nodes[number].body = ast.parse(body).body  # type: ignore[attr-defined]

    return edit


def chunks(tree: ast.Module) -> list[Edit]:
    """Runs of statements, halves of a block first, then ever shorter ones."""
    found = []
    for number, field, block in _blocks(tree):
        size = len(block)
        while size > 1:
            for start in range(0, len(block), size):
                weight = sum(map(_weight, block[start : start + size]))
                found.append((weight, _without(number, field, start, start + size)))
            size //= 2
    return _ordered(found)


def single(tree: ast.Module) -> list[Edit]:
    """One statement, the last ones first: what comes before feeds what comes after."""
    found: list[Edit] = []
    for number, field, block in _blocks(tree):
        found += [
            _without(number, field, start, start + 1)
            for start, node in enumerate(block)
            if not isinstance(node, ast.Pass)
        ]
    return found[::-1]


def _blocks(tree: ast.Module) -> Iterator[tuple[int, str, list[ast.stmt]]]:
    for number, node in enumerate(ast.walk(tree)):
        for field in _BLOCKS:
            block = getattr(node, field, None)
            if isinstance(block, list) and block:
                yield number, field, block


def _without(number: int, field: str, start: int, end: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        block = getattr(node, field)
        del block[start:end]
        if not block and field == "body" and not isinstance(node, ast.Module):
            block.append(ast.Pass())
        if isinstance(node, ast.Try) and not node.handlers and not node.finalbody:
            node.finalbody = [ast.Pass()]

    return edit


def bypass(tree: ast.Module) -> list[Edit]:
    """`y = f(x)` gone, and `x` wherever `y` was read."""
    found = []
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
                        edit = _bypassing(number, place, target.id, source)
                        found.append((_weight(node), edit))
    return _ordered(found)


def _bypassing(number: int, place: int, name: str, source: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        owner = nodes[number]
        del owner.body[place]  # type: ignore[attr-defined]
        for node in ast.walk(owner):
            if isinstance(node, ast.Name) and node.id == name:
                node.id = source
        if not owner.body:  # type: ignore[attr-defined]
            owner.body = [ast.Pass()]  # type: ignore[attr-defined]

    return edit


def unwrapped(tree: ast.Module) -> list[Edit]:
    """What is inside an if, for, with or try, without it."""
    found = []
    for number, field, block in _blocks(tree):
        for place, node in enumerate(block):
            if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
                for inner in ("body", "orelse", "finalbody"):
                    if getattr(node, inner, None):
                        edit = _opening(number, field, place, inner)
                        found.append((_weight(node), edit))
    return _ordered(found)


def _opening(number: int, field: str, place: int, inner: str) -> Edit:
    def edit(nodes: Nodes) -> None:
        block = getattr(nodes[number], field)
        node = block[place]
        block[place : place + 1] = getattr(node, inner)
        if isinstance(node, ast.For):  # as in its first turn
            for left in ast.walk(nodes[number]):
                if isinstance(left, ast.Break | ast.Continue):
                    left.__class__ = ast.Pass  # type: ignore[assignment]

    return edit


# -- expressions -----------------------------------------------------------------------


def expressions(tree: ast.Module) -> list[Edit]:
    """One of its operands in place of an expression."""
    found = []
    order = {id(node): number for number, node in enumerate(ast.walk(tree))}
    for parent in ast.walk(tree):
        for field, place, node in _expressions(parent):
            for other in _simpler(node):
                saved = _weight(node) - _weight(other)
                if saved > 0 or isinstance(other, ast.Call | ast.Constant):
                    edit = _putting(order[id(parent)], field, place, other)
                    found.append((saved, edit))
    return _ordered(found)


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


def _putting(number: int, field: str, place: int | None, other: ast.expr) -> Edit:
    def edit(nodes: Nodes) -> None:
        if place is None:
            setattr(nodes[number], field, other)
        else:
            getattr(nodes[number], field)[place] = other

    return edit


def items(tree: ast.Module) -> list[Edit]:
    """Arguments, keywords, elements, decorators and bases, one less."""
    found: list[tuple[int, Edit]] = []
    for number, node in enumerate(ast.walk(tree)):
        for field in ("args", "keywords", "elts", "decorator_list", "items", "targets"):
            listed = getattr(node, field, None)
            if not isinstance(listed, list):
                continue
            if field in {"items", "targets"} and len(listed) < 2:
                continue
            found += [
                (sum(map(_weight, listed[start:end])), _less(number, field, start, end))
                for start, end in _spans(len(listed))
            ]
        if isinstance(node, ast.Dict):
            found += [
                (_weight(node) * (end - start), _less_keys(number, start, end))
                for start, end in _spans(len(node.keys))
            ]
    return _ordered(found)


def _spans(length: int) -> Iterator[tuple[int, int]]:
    """Halves, then ever shorter runs, the last one first."""
    size = length
    while size:
        for start in reversed(range(0, length, size)):
            yield start, min(start + size, length)
        size //= 2


def _less(number: int, field: str, start: int, end: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        del getattr(nodes[number], field)[start:end]

    return edit


def _less_keys(number: int, start: int, end: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, ast.Dict)
        del node.keys[start:end], node.values[start:end]

    return edit


# -- signatures and sizes --------------------------------------------------------------


def signatures(tree: ast.Module) -> list[Edit]:
    """A parameter that its function does not read, and what is handed over for it."""
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if not isinstance(node, _Function) or node.name in {"before_call", "run"}:
            continue
        used = {name for statement in node.body for name in spelled(statement)}
        for place, argument in enumerate(node.args.args):
            if argument.arg not in used | {"self", "cls"}:
                found.append(_fewer(number, place, called=True))
                found.append(_fewer(number, place, called=False))
        for place, argument in enumerate(node.args.kwonlyargs):
            if argument.arg not in used:
                found.append(_fewer_keywords(number, place))
    return found


def _fewer(number: int, place: int, *, called: bool) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, _Function)
        given = node.args
        left = len(given.args) - len(given.defaults)
        if place >= left:
            del given.defaults[place - left]
        argument = given.args.pop(place)
        method = bool(given.args) and given.args[0].arg == "self"
        if called:
            _hand_over_less(nodes[0], node.name, argument.arg, place - method)

    return edit


def _hand_over_less(tree: ast.AST, name: str, keyword: str, place: int) -> None:
    """Calls that spell the function; for `forward` and what make returns, the calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called == name and len(node.args) > place:
                del node.args[place]
            node.keywords = [k for k in node.keywords if k.arg != keyword]
        if isinstance(node, ast.List | ast.ListComp):
            inner = node.elts if isinstance(node, ast.List) else [node.elt]
            for call in inner:
                if isinstance(call, ast.Tuple) and len(call.elts) > place:
                    del call.elts[place]


def _fewer_keywords(number: int, place: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        node = nodes[number]
        assert isinstance(node, _Function)
        name = node.args.kwonlyargs.pop(place).arg
        del node.args.kw_defaults[place]
        for call in ast.walk(nodes[0]):
            if isinstance(call, ast.Call):
                call.keywords = [k for k in call.keywords if k.arg != name]

    return edit


def sizes(tree: ast.Module) -> list[Edit]:
    """Smaller integers: everywhere the same one at once, then one at a time."""
    numbers = [
        (number, node.value)
        for number, node in enumerate(ast.walk(tree))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 2
    ]
    found: list[Edit] = []
    for value in sorted({value for _, value in numbers}, reverse=True):
        where = [number for number, other in numbers if other == value]
        smaller = dict.fromkeys(
            s for s in (2, 3, value // 4, value // 2) if 1 < s < value
        )
        found += [_sized(where, other) for other in smaller]
        if len(where) > 1:
            found += [_sized([one], 2) for one in where]
    return found


def _sized(where: list[int], value: int) -> Edit:
    def edit(nodes: Nodes) -> None:
        for number in where:
            nodes[number].value = value  # type: ignore[attr-defined]

    return edit
