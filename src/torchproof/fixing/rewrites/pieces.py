"""Which statements of a function stay in Python, and which may be in a graph.

A statement that does both becomes two: what Python needs is computed before it, or what
a graph can compute. The statements run in the same order as before.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from torchproof.checking import Kind, words
from torchproof.fixing.rewrites.conditions import Reader
from torchproof.fixing.rewrites.effects import is_output
from torchproof.fixing.rewrites.names import (
    assigned,
    body,
    fresh,
    only,
    parameters,
    reads,
    values_of,
)
from torchproof.fixing.rewrites.operators import (
    BUILTINS,
    PURE_METHODS,
    brief,
    called,
    children,
    dotted,
    is_heavy,
    nodes,
    replaced_in,
)
from torchproof.fixing.rewrites.scalars import Scalars
from torchproof.fixing.rewrites.site import NoPattern, Refused, Site, Statement
from torchproof.fixing.rewrites.values import Values

# What only Python can do: it leaves the graph.
_OF_PYTHON = re.compile(
    r"(?<![\w.])(?:time|datetime|random|np|numpy|inspect|os|sys|re|copy)\."
    r"|(?<![\w.])(?:open|eval|exec|print)\("
    r"|\.(?:item|tolist|numpy|backward|zero_grad|nonzero|unique|masked_select)\("
    r"|\.step\(\)"
)
TO_TENSOR = re.compile(r"\btorch\.\w*tensor\(|tokeni[sz]er")
# Functions for whose numbers there is a graph each: sizes, ranges, keys.
_FIXED = words(
    "zeros ones empty full rand randn randint arange range linspace eye view reshape"
    " expand repeat repeat_interleave narrow topk split chunk unfold one_hot new_zeros"
    " new_ones new_empty new_full select get getattr pad roll"
)
_METHODS = PURE_METHODS | words(
    "dim numel size numpy requires_grad_ copy astype normal uniform random integers"
    " encode lower upper strip casefold tokenize findall setdefault append zero_"
    " backward add extend update insert appendleft"
)
_LIGHT = words("open print map filter")
_GROWS = words("append extend insert add update appendleft setdefault pop remove clear")
_SIZES = words("shape size device dtype ndim dim")
_NUMBERS = words("item tolist int float bool str len")
_MODULES = {*sys.stdlib_module_names, "numpy", "np", "torch"}
_LOOPS = (cst.For, cst.While)
_DEFINITIONS = (cst.FunctionDef, cst.ClassDef)
_OPENED = (cst.For, cst.While, cst.If, cst.With)
# What gives another value after a call that changes something.
_EVALUATED = (
    cst.Attribute,
    cst.BinaryOperation,
    cst.Call,
    cst.Comparison,
    cst.Subscript,
    cst.UnaryOperation,
)
# What may not be evaluated, or more than once.
_SOMETIMES = (cst.Lambda, cst.CompFor, cst.IfExp, cst.BooleanOperation, *_DEFINITIONS)


class Place(enum.Enum):
    HOST = enum.auto()
    GRAPH = enum.auto()
    EITHER = enum.auto()  # too little for a graph of its own


@dataclass(frozen=True)
class Piece:
    """A statement with the place where it runs; of a block, the pieces in it."""

    statement: Statement
    place: Place
    inner: tuple[list[Piece], ...] = ()  # of an `if`, also those of its `else`


def weight(block: Sequence[cst.CSTNode]) -> int:
    """How many operations there may be."""
    kinds = cst.Call | cst.BinaryOperation | cst.AugAssign
    return sum(isinstance(node, kinds) for each in block for node in nodes(each))


@dataclass
class Sorter:
    """Sorts the statements of the function at a site."""

    site: Site
    is_text: bool = False
    is_state: bool = False  # what is in Python changes with each call
    numbers: set[str] = field(default_factory=set)  # names for what Python makes
    lists: set[str] = field(default_factory=set)  # of numbers: they go into no graph
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._values, self._scalars = Values(self.site), Scalars(self.site)
        self._reader = Reader(self.site, self._values)
        self._underlined = self.site.expression

    def block(
        self, statements: Sequence[Statement], *, is_top: bool = False
    ) -> list[Piece]:
        found: list[Piece] = []
        for index, each in enumerate(statements):
            if isinstance(each, cst.SimpleStatementLine):
                own = assigned(statements[:index])
                found += self._simple(each, own, is_top=is_top, before=found)
            elif self._is_closed(each) or (
                is_top and not any(map(self._is_host, statements[index:]))
            ):
                found.append(self.in_graph(each))
            elif isinstance(each, _OPENED):
                found += self._opened(each)
            else:
                raise NoPattern(f"`{brief(each)}` cannot be in parts")
        return found

    # -- blocks ------------------------------------------------------------------------

    def _is_closed(self, block: Statement) -> bool:
        """Whether a block can be in a graph as a whole."""
        leaves = (cst.Break, cst.Continue)
        inside = list(nodes(block))
        in_loops = {
            n for each in inside if isinstance(each, _LOOPS) for n in nodes(each)
        }
        is_definition = isinstance(block, _DEFINITIONS)
        return not self._is_host(block) and not any(
            (isinstance(n, cst.Return) and not is_definition)
            or (isinstance(n, leaves) and n not in in_loops)
            for n in inside
        )

    def _opened(self, block: Statement) -> list[Piece]:
        """A block whose header is in Python, and part of its statements in a graph."""
        first: list[Piece] = []
        header = block.with_changes(body=cst.IndentedBlock([]))
        if hasattr(header, "orelse"):
            header = header.with_changes(orelse=None)
        if isinstance(block, cst.If) and self._is_work_for_condition(block.test):
            made, name = self._named(block.test, "condition")
            first.append(Piece(made, Place.GRAPH))
            block = block.with_changes(test=name)
        elif not all(map(self.is_light, children(header))):
            raise NoPattern("the header of a block does more than Python does")
        if isinstance(block, cst.For) and self._counts(block.iter):
            self.numbers |= assigned(header)
        inner = [self.block(body(block))]
        other = getattr(block, "orelse", None)
        if isinstance(other, cst.If):
            inner.append(self._opened(other))
            if len(inner[1]) != 1:
                raise NoPattern("an `elif` does more than Python does")
        elif other is not None:
            inner.append(self.block(body(other)))
        return [*first, Piece(block, Place.HOST, tuple(inner))]

    def _is_work_for_condition(self, test: cst.BaseExpression) -> bool:
        """Whether a graph computes a condition: a tensor that takes some work."""
        return (
            not self.is_light(test)
            and isinstance(test, (cst.Comparison, cst.Call))
            and not _OF_PYTHON.search(self.site.code(test))
            and not reads(test) & self.numbers
            and self._reader.looks_tensor(test)
        )

    def _counts(self, iterated: cst.BaseExpression) -> bool:
        name = called(iterated)[0] if isinstance(iterated, cst.Call) else ""
        return name in ("range", "enumerate") or bool(reads(iterated) & self.numbers)

    # -- statements --------------------------------------------------------------------

    def _simple(
        self,
        line: Statement,
        own: set[str],
        *,
        is_top: bool,
        before: Sequence[Piece],
    ) -> list[Piece]:
        grown = self._grown(line)
        stays = (
            self._is_host(line)
            or (grown is not None and grown not in own)
            or isinstance(only(line), (cst.Break, cst.Continue))
            or (not is_top and self._is_plain(line))
            or (self.is_text and self._follows_host(before) and self.is_light(line))
        )
        if not stays:
            return [self.in_graph(line)]
        if self.is_light(line) or self._runs_a_recurrent_layer(line):
            return [self.on_host(line)]
        ways = (self._with_operands_before, self._with_values_before)
        for parted in ways if only(line) is not None else ():
            pieces = parted(line)
            if len(pieces) > 1:
                return pieces
        raise NoPattern("the statement does more than Python does")

    def _follows_host(self, before: Sequence[Piece]) -> bool:
        """Of text, the graph would get numbers, which are constants of it."""
        return bool(before) and before[-1].place is Place.HOST

    def _grown(self, line: Statement) -> str | None:
        """The list that a statement changes: another length is another graph."""
        match only(line):
            case cst.Expr(cst.Call(cst.Attribute(value, cst.Name(method)))) if (
                method in _GROWS
            ):
                return dotted(value)
        return None

    def _is_plain(self, line: Statement) -> bool:
        match only(line):
            case cst.Assign(value=value) | cst.AugAssign(value=value):
                return self._scalars.is_plain(value)
        return False

    def _runs_a_recurrent_layer(self, line: Statement) -> bool:
        """Whether Dynamo leaves out the function because of this statement alone."""
        return self.site.finding.code == "GB108" and self.site.statement is line

    def on_host(self, line: Statement) -> Piece:
        code, made = self.site.code(line), self._made(line)
        if ".tolist(" in code:
            self.lists |= made
        is_python = self.is_state or _OF_PYTHON.search(code)
        is_new = is_python and not TO_TENSOR.search(code)
        if is_new or reads(line) & self.numbers:
            self.numbers |= made
        return Piece(line, Place.HOST)

    def in_graph(self, line: Statement) -> Piece:
        if found := reads(line) & self.lists:
            raise Refused(f"each `{min(found)}` would have a graph of its own")
        for node in nodes(line) if self.is_state else ():
            if fixed := set().union(*map(reads, _fixed(node))) & self.numbers:
                raise Refused(f"each `{min(fixed)}` would have a graph of its own")
        read = reads(line) - BUILTINS
        if read and read <= self.numbers:
            self.numbers |= self._made(line)
        return Piece(line, Place.EITHER if self.is_light(line) else Place.GRAPH)

    def _made(self, line: Statement) -> set[str]:
        """The names that a statement assigns, without tensors."""
        values, function = self._values, self.site.function
        return {
            name
            for name in assigned(line) - set(parameters(function))
            if not any(
                value is not None
                and (values.is_tensor(value) or values.kind(value) is Kind.ARRAY)
                for value in values_of(function, name)
            )
        }

    # -- a statement in two ------------------------------------------------------------

    def _with_operands_before(self, line: Statement) -> list[Piece]:
        """The work of a graph, by a name; the statement does the rest in Python."""

        def is_work(node: cst.BaseExpression) -> bool:
            return not self._is_of_python(node) and not self.is_light(node)

        if not any(
            self._is_of_python(each)
            for each in nodes(line)
            if isinstance(each, cst.BaseExpression)
        ):
            return []
        lines, rest = self._parted(line, is_work)
        if not lines or not self.is_light(rest):
            return []
        return [*map(self.in_graph, lines), self.on_host(rest)]

    def _with_values_before(self, line: Statement) -> list[Piece]:
        """What Python needs, by a name; the statement is the work of a graph."""

        def is_value(node: cst.BaseExpression) -> bool:
            return self._is_of_python(node) and self.is_light(node)

        lines, rest = self._parted(line, is_value)
        if not lines:
            return []
        of_python = self._is_of_python(rest)
        last = self._with_operands_before(rest) if of_python else [self.in_graph(rest)]
        return [*map(self.on_host, lines), *last] if last else []

    def _parted(
        self, line: Statement, takes: Callable[[cst.BaseExpression], bool]
    ) -> tuple[list[Statement], Statement]:
        """Assignments of the expressions to take, and the statement with their names.

        What is evaluated before them must not change anything.
        """
        lines: list[Statement] = []
        names: dict[cst.CSTNode, cst.BaseExpression] = {}
        for node, is_first in _evaluated(line, takes, self._values.is_pure):
            if not is_first:
                return [], line
            made, name = self._named(node, "value")
            lines.append(made)
            names[node] = name
        return lines, replaced_in(line, names)

    def _named(
        self, node: cst.BaseExpression, wanted: str
    ) -> tuple[Statement, cst.Name]:
        name = fresh(self.site.module, wanted, self.taken)
        self.taken.add(name)
        line = cst.parse_statement(f"{name} = 0\n")
        assert isinstance(line, cst.SimpleStatementLine)
        [assignment] = line.body
        line = line.with_changes(body=[assignment.with_changes(value=node)])
        return line, cst.Name(name)

    # -- what is asked of code ---------------------------------------------------------

    def _is_host(self, statement: cst.CSTNode) -> bool:
        """Whether a graph would end in a statement, or each call have its own."""
        return any(node is self.site.statement for node in nodes(statement)) or (
            self._is_of_python(statement)
        )

    def _is_of_python(self, root: cst.CSTNode) -> bool:
        if _OF_PYTHON.search(self.site.code(root)):
            return True
        for node in nodes(root):
            test = getattr(node, "test", None)
            if test is not None and self._reader.looks_tensor(test):
                return True
            if node is self._underlined or self._is_read(node):
                return True
            if set().union(*map(reads, _fixed(node))) & self.numbers:
                return True
        return False

    def _is_read(self, node: cst.CSTNode) -> bool:
        """Whether Python needs the value of a tensor for an expression."""
        if isinstance(node, cst.Call):
            name = self._values.dotted(node.func)
            is_cast = name in ("int", "float", "bool") or name.startswith("math.")
            given = (each.value for each in node.args)
            return is_cast and any(map(self._reader.looks_tensor, given))
        if not isinstance(node, cst.Subscript):
            return False
        is_target = isinstance(self.site.parent(node), cst.AssignTarget)
        container = self._values.kind(node.value)
        indexes = [e.slice.value for e in node.slice if isinstance(e.slice, cst.Index)]
        kinds = [self._values.kind(each) for each in indexes]
        if container in (Kind.MODULES, Kind.PYTHON):
            return any(kind.is_tensor for kind in kinds)
        is_mask = Kind.MASK in kinds or any(
            isinstance(e, cst.Comparison) for e in indexes
        )
        return is_mask and not is_target

    def is_light(self, statement: cst.CSTNode) -> bool:
        """Whether it does little on tensors, and runs no module of the program.

        After a backward, a loop over parameters cannot be in the graph of the forward.
        """
        is_update = self.site.finding.code == "GB110"
        forbidden = _DEFINITIONS if is_update else (*_LOOPS, *_DEFINITIONS)
        return all(
            not isinstance(node, forbidden)
            and not is_heavy(node)
            and (not isinstance(node, cst.Call) or self._is_light_call(node))
            for node in nodes(statement)
        )

    def _is_light_call(self, call: cst.Call) -> bool:
        name = self._values.dotted(call.func)
        if name.partition(".")[0] in _MODULES or name in BUILTINS | _LIGHT:
            return True
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if is_output(call, self._values):
            return True
        if method in _METHODS or "tokeniz" in name:
            return True
        given = {n for each in call.args for n in self._given(each.value)}
        return not given - {"self", *_MODULES} and not name.endswith("forward")

    def _given(self, node: cst.CSTNode) -> Iterator[str]:
        """The names that an expression passes on, without those of plain numbers."""
        kind = self._values.kind(node)
        if (
            kind.is_plain
            or kind is Kind.NUMBER
            or isinstance(node, cst.FormattedString)
        ):
            return
        if isinstance(node, cst.Attribute) and node.attr.value in _SIZES:
            return
        if isinstance(node, cst.Call) and called(node)[0] in _NUMBERS:
            return
        if isinstance(node, cst.Attribute):
            yield from self._given(node.value)
        elif isinstance(node, cst.Name):
            yield node.value
        elif isinstance(node, cst.Call):
            is_method = isinstance(node.func, cst.Attribute)
            yield from self._given(node.func) if is_method else ()
            for each in node.args:
                yield from self._given(each.value)
        else:
            for child in children(node):
                yield from self._given(child)


def may_skip(node: cst.CSTNode) -> bool:
    """Whether parts of code may not be evaluated, or more than once."""
    is_chain = isinstance(node, cst.Comparison) and len(node.comparisons) > 1
    return is_chain or isinstance(node, _SOMETIMES)


def _evaluated(
    root: cst.CSTNode,
    takes: Callable[[cst.BaseExpression], bool],
    is_pure: Callable[[cst.CSTNode], bool],
) -> list[tuple[cst.BaseExpression, bool]]:
    """The outermost expressions to take, each with whether it can come first."""
    found: list[tuple[cst.BaseExpression, bool]] = []
    earlier: list[cst.CSTNode] = []

    def visit(node: cst.CSTNode, *, is_certain: bool) -> None:
        if isinstance(node, cst.BaseExpression) and takes(node):
            is_first = not earlier or all(map(is_pure, (node, *earlier)))
            found.append((node, is_certain and is_first))
            return
        inner = list(children(node))
        if isinstance(node, cst.BaseComp):  # evaluates only this before it begins
            visit(node.for_in.iter, is_certain=is_certain)
            inner, is_certain = [n for n in inner if n is not node.for_in], False
        elif isinstance(node, cst.Assert):  # evaluates the message only to raise it
            visit(node.test, is_certain=is_certain)
            inner, is_certain = [node.msg] if node.msg is not None else [], False
        elif isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign)):
            inner = [node.value] if node.value is not None else []
            if isinstance(node, cst.AugAssign) and not isinstance(
                node.target, cst.Name
            ):
                earlier.append(node.target)  # it is read first
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            inner = [node.func.value, *node.args]  # a method is what it is
        for child in inner:
            visit(child, is_certain=is_certain and not may_skip(node))
        if isinstance(node, _EVALUATED):
            earlier.append(node)

    visit(root, is_certain=True)
    return found


def _fixed(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """What in an expression Dynamo guards by its value: indexes, sizes, conditions."""
    if isinstance(node, cst.Subscript):
        return node.slice
    if isinstance(node, cst.Call):
        return node.args if called(node)[0] in _FIXED else ()
    if isinstance(node, (cst.For, cst.CompFor)):
        return [node.iter]
    return [node.test] if isinstance(node, (cst.If, cst.While, cst.IfExp)) else ()
