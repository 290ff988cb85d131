"""What rewrites ask about source: full names, kinds of values, effects, and uses."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import libcst as cst

from torchproof.checking import Flow, Kind, Program, Source, Unreadable, words
from torchproof.fixing.rewrites.site import File, Refused, Site

Span = tuple[int, int, int, int]  # line, column, last line, last column; in characters

# Builtins that only compute a value from their arguments.
_PURE = words(
    "abs bool float int len max min round str repr sum tuple list sorted isinstance"
    " issubclass hasattr getattr type range divmod pow format any all zip enumerate"
    " set dict id callable"
)
_PURE_MODULES = ("math.", "operator.", "numpy.", "np.")
# Functions of torch that draw random numbers, change state or wait.
_IMPURE_TORCH = (
    "rand", "bernoulli", "multinomial", "normal", "poisson", "dropout", "manual_seed",
    "seed", "set_", "save", "load", "use_", "compile",
)  # fmt: skip
_IMPURE_METHODS = words(
    "backward register_hook retain_grad share_memory_ tofile data_ptr multinomial"
    " bernoulli append extend insert pop popitem remove clear update setdefault add"
    " discard write send"
)


class Values:
    """The kinds of the values in one function, by the source."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._kinds = _kinds_at(site.file, site.line)

    def kind(self, node: cst.CSTNode) -> Kind:
        at = self.site.range_of(node)
        span = (at.start.line, at.start.column, at.end.line, at.end.column)
        return self._kinds.get(span, Kind.UNKNOWN)

    def is_tensor(self, node: cst.CSTNode) -> bool:
        return self.kind(node).is_tensor

    def dotted(self, node: cst.CSTNode | None) -> str:
        """`torch.nn.functional.relu` for `F.relu`; empty if it is no dotted name."""
        return dotted(node, _source(self.site.file).names)

    def is_pure(self, node: cst.CSTNode) -> bool:
        """Whether an expression has no effect besides its value.

        Attributes count as pure, and so do calls of tensor methods that do not end in
        an underscore; calls of functions that are not known do not.
        """
        for each in walk(node):
            if isinstance(each, (cst.Await, cst.Yield, cst.NamedExpr, cst.Lambda)):
                return False
            if isinstance(each, cst.Call) and not self.is_pure_call(each):
                return False
        return True

    def is_pure_call(self, call: cst.Call) -> bool:
        name = self.dotted(call.func)
        last = name.rpartition(".")[2]
        if name in _PURE or name.startswith(_PURE_MODULES):
            return "random" not in name
        if name.startswith("torch."):
            return not last.endswith("_") and not last.startswith(_IMPURE_TORCH)
        if not isinstance(call.func, cst.Attribute):
            return False
        method, receiver = call.func.attr.value, self.kind(call.func.value)
        if method.endswith("_") or method in _IMPURE_METHODS:
            return False
        if method in ("format", "join", "keys", "values", "items", "get"):
            return True
        return receiver.is_tensor or (
            receiver is Kind.UNKNOWN and method in TENSOR_METHODS
        )


@functools.lru_cache(maxsize=4)
def _source(file: File) -> Source:
    try:
        return Source.parse(Path(file.path), file.text)
    except Unreadable as error:
        raise Refused(str(error)) from None


@functools.lru_cache(maxsize=4)
def _program(file: File) -> Program:
    return Program([_source(file)])


@functools.lru_cache(maxsize=16)
def _kinds_at(file: File, line: int) -> Mapping[Span, Kind]:
    """The kinds of the expressions in the functions around a line.

    An inner function is read again on its own: around it, its parameters are unknown.
    """
    source = _source(file)
    around = [
        f
        for f in source.functions.values()
        if f.node.lineno <= line <= (f.node.end_lineno or f.node.lineno)
    ]
    found: dict[Span, Kind] = {}
    for function in sorted(around, key=lambda f: f.node.lineno):
        flow = Flow(function, _program(file), arguments={}, look=lambda *_: None)
        flow.run()
        for node, kind in flow.values.kinds.items():
            if kind is not Kind.UNKNOWN and hasattr(node, "lineno"):
                found.setdefault(_span(node, source), kind)
    return found


def _span(node: object, source: Source) -> Span:
    first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    lines = source.lines
    return (
        first,
        len(lines[first - 1].encode()[:start].decode(errors="replace")),
        last,
        len(lines[last - 1].encode()[:end].decode(errors="replace")),
    )


TENSOR_METHODS = words(
    "any all max min amax amin sum mean item tolist isnan isinf isfinite abs norm"
    " eq ne lt le gt ge numel size dim float double int long bool cpu detach nonzero"
    " unique argmax argmin std var view reshape flatten squeeze unsqueeze"
    " logical_not is_floating_point is_complex to"
)


def dotted(node: cst.CSTNode | None, names: Mapping[str, str]) -> str:
    words: list[str] = []
    while isinstance(node, cst.Attribute):
        words.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return ""
    words.append(names.get(node.value, node.value))
    return ".".join(reversed(words))


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Every node inside a node and itself, in the order of the source."""
    yield node
    for child in _children(node):
        yield from walk(child)


@functools.lru_cache(maxsize=1 << 17)
def _children(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """libcst visits a node anew each time that it is asked for them."""
    return node.children


def names_read(nodes: cst.CSTNode | Iterable[cst.CSTNode]) -> set[str]:
    """The names that occur in code, except as attributes and keywords."""
    nodes = [nodes] if isinstance(nodes, cst.CSTNode) else nodes
    return {each.value for node in nodes for each in _names(node)}


def _names(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    for child in _children(node):
        is_attribute = isinstance(node, cst.Attribute) and child is node.attr
        is_keyword = isinstance(node, cst.Arg) and child is node.keyword
        if not is_attribute and not is_keyword:
            yield from _names(child)


def uses(node: cst.CSTNode, name: str) -> list[cst.Name]:
    """Every occurrence of a name inside a node, in order."""
    return [each for each in _names(node) if each.value == name]


def assigned_name(
    statement: cst.CSTNode,
) -> tuple[str, cst.BaseExpression] | tuple[str, None]:
    """The name and the value of `name = value`; an empty name for anything else."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return "", None
    [assignment] = statement.body
    if not isinstance(assignment, cst.Assign) or len(assignment.targets) != 1:
        return "", None
    target = assignment.targets[0].target
    if not isinstance(target, cst.Name):
        return "", None
    return target.value, assignment.value


_BINDING = (
    cst.AssignTarget,
    cst.AnnAssign,
    cst.AugAssign,
    cst.NamedExpr,
    cst.For,
    cst.CompFor,
    cst.Del,
)


def names_bound(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """The names that code assigns, deletes, imports or defines."""
    bound: set[str] = set()
    for node in nodes:
        for each in walk(node):
            if isinstance(each, _BINDING):
                bound |= names_read(getattr(each, "target", each))
            elif isinstance(each, cst.FunctionDef | cst.ClassDef):
                bound.add(each.name.value)
            elif isinstance(each, cst.AsName | cst.ImportAlias):
                bound |= names_read(each)
    return bound
