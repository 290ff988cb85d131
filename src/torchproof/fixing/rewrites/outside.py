"""Python at the edge of a compiled function leaves it: torchproof.on_host.

The rest becomes a function of its own, which is compiled whole. The statements run in
the same order as before, so every value is the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from torchproof.checking import Kind
from torchproof.fixing.rewrites.names import (
    always_assigned,
    assigned,
    body,
    fresh,
    in_order,
    only,
    parameters,
    reads,
    values_of,
)
from torchproof.fixing.rewrites.operators import brief, dotted, nodes
from torchproof.fixing.rewrites.pieces import TO_TENSOR, Piece, Place, Sorter, weight
from torchproof.fixing.rewrites.site import Draft, NoPattern, Refused, Site, Statement
from torchproof.fixing.rewrites.values import Values

# What makes tensors that Dynamo takes into no graph.
_OTHER_LAYOUTS = re.compile(
    r"\.(?:to_)?sparse\w*\b|\.coalesce\(|nested_tensor|\.to_mkldnn\("
)
_OF_TEXT = re.compile(
    r"\.(?:split|lower|upper|strip|casefold|encode|tokenize)\(|tokeni[sz]er\(|\bre\.\w+\("
)
_OF_NAMES = ("locals", "vars", "eval", "exec")  # any name may be read
_DEFINITIONS = (cst.FunctionDef, cst.ClassDef)
_OWNERS = (cst.ClassDef, cst.FunctionDef, cst.If, cst.Try, cst.With)
FORBIDDEN = (
    cst.Global,
    cst.Nonlocal,
    cst.Del,
    cst.Yield,
    cst.Await,
    cst.Import,
    cst.ImportFrom,
)


def split(site: Site) -> Draft:
    """What breaks the graph stays in Python, and the rest is compiled in parts."""
    if site.inner is not None:
        raise NoPattern("the line is not in the function that is compiled")
    return _split(site, Sorter(site))


def text(site: Site) -> Draft:
    """What makes numbers of text stays in Python: the graph gets the tensor of them."""
    if not _OF_TEXT.search(site.code(site.statement)):
        raise NoPattern("the line works on no text")
    return _split(site, Sorter(site, is_text=True))


def _split(site: Site, sorter: Sorter) -> Draft:
    if not site.is_entry:
        raise NoPattern("the line is not in the function that is compiled")
    assert_plain(site, site.function)
    pieces = sorter.block(body_of(site.function), is_top=True)
    if sorter.is_text:
        first = itertools.takewhile(lambda each: each.place is Place.HOST, pieces)
        if not any(TO_TENSOR.search(site.code(each.statement)) for each in first):
            raise NoPattern("the text does not become a tensor")
    return drafted(sorter, pieces)


def drafted(sorter: Sorter, pieces: list[Piece], title: str = "") -> Draft:
    """The function in Python, and its parts that are compiled as functions."""
    site, function = sorter.site, sorter.site.function
    if found := _OTHER_LAYOUTS.search(site.code(function)):
        raise Refused(f"what `{found[0]}` gives is in no graph")
    _choose(pieces)
    made = _Functions(site, function)
    host = made.body(pieces)
    if sorter.is_text:
        if len(made.new) > 1:
            raise NoPattern("the text is used in several places")
        host = [_untraced(each, site) for each in host]
    imports = ["torchproof.on_host"]
    if any("torch.compiler." in site.code(each) for each in host):
        imports.append("torch")
    text = site.replaced({function: [_on_host(function, host), *made.new]}, imports)
    return Draft(title or _title(site, pieces, made), text)


def _untraced(statement: Statement, site: Site) -> Statement:
    """What works on the text is not compiled on its own, for each text again."""
    for node in nodes(statement):
        name = dotted(node.func) if isinstance(node, cst.Call) else None
        if name and (
            "tokeniz" in name or name.endswith(f".{site.inner}") or name == site.inner
        ):
            assert isinstance(node, cst.Call)
            new = cst.parse_expression(f"torch.compiler.disable({name})")
            changed = statement.deep_replace(node.func, new)
            assert isinstance(changed, Statement)
            return changed
    return statement


def _title(site: Site, pieces: Sequence[Piece], made: _Functions) -> str:
    what = f"`{brief(site.expression or site.statement)}`"
    at = next(i for i, each in enumerate(pieces) if _is_at(each, site))
    if any(each.place is not Place.HOST for each in _every([pieces[at]])):
        return (
            f"run the block around {what} outside, and compile what is in it (on_host)"
        )
    if len(made.new) > 1:
        return f"compile what is before and after {what} apart, not {what} (on_host)"
    where = "after the compiled call, with what it needs returned"
    if not any(each.place is not Place.HOST for each in pieces[:at]):
        where = "before the compiled call"
        read = set().union(*map(reads, made.new))
        if assigned(pieces[at].statement) & read:
            where += ", and pass the result in as an argument"
    return f"do {what} outside, {where} (on_host)"


def _is_at(piece: Piece, site: Site) -> bool:
    """Whether a piece has the statement at the site, or a part of it."""
    statement = piece.statement
    is_new = statement not in site.file.positions
    is_there = is_new or any(node is site.statement for node in nodes(statement))
    return is_there and piece.place is Place.HOST


# -- the functions ---------------------------------------------------------------------


def assert_plain(
    site: Site,
    function: cst.FunctionDef,
    forbidden: tuple[type[cst.CSTNode], ...] = FORBIDDEN,
) -> None:
    """Refuses what is no plain function, or what a part of it cannot do."""
    if function.asynchronous is not None or not isinstance(
        function.body, cst.IndentedBlock
    ):
        raise NoPattern("the function has no block of statements")
    for each in function.decorators:
        if "compile" not in site.code(each.decorator):
            raise Refused(f"`{brief(each.decorator)}` would be around the graph")
    for node in nodes(function.body):
        if isinstance(node, forbidden):
            raise NoPattern(f"`{brief(node)}` is for the whole function")
        if isinstance(node, cst.Call) and brief(node.func) in _OF_NAMES:
            raise NoPattern(f"`{brief(node)}` is for the whole function")


def body_of(function: cst.FunctionDef) -> list[Statement]:
    """The statements of a function below its docstring."""
    assert isinstance(function.body, cst.IndentedBlock)
    found = list(function.body.body)
    return found[1:] if function.get_docstring() is not None else found


def _on_host(function: cst.FunctionDef, body: Sequence[Statement]) -> cst.FunctionDef:
    assert isinstance(function.body, cst.IndentedBlock)
    documented = function.get_docstring() is not None
    first = list(function.body.body)[:1] if documented else []
    if not documented:
        body = [body[0].with_changes(leading_lines=()), *body[1:]]
    return function.with_changes(
        body=function.body.with_changes(body=[*first, *body]),
        decorators=[*function.decorators, cst.Decorator(cst.Name("on_host"))],
        leading_lines=(),
    )


@dataclass(frozen=True)
class _Around:
    """What is known of the names where a statement runs."""

    certain: frozenset[str]  # they have values
    maybe: frozenset[str]  # a statement before assigns them, also of an earlier round
    later: frozenset[str]  # they are read afterwards
    in_loop: bool = False


class _Functions:
    """Makes functions of parts of a function, with the names they need."""

    def __init__(self, site: Site, function: cst.FunctionDef) -> None:
        self._site, self._function = site, function
        self._parameters = parameters(function)
        star, double = function.params.star_arg, function.params.star_kwarg
        every = [*self._parameters.values(), star, double]
        self._known = [p.name.value for p in every if isinstance(p, cst.Param)]
        around = [n for n in site.ancestors(function) if isinstance(n, _OWNERS)]
        scopes = (n for n in around if isinstance(n, _DEFINITIONS))
        self._self, self._of_class, self._is_alone = None, "", not around
        self.new: list[cst.FunctionDef] = []
        if isinstance(owner := next(scopes, None), cst.ClassDef):
            first = [*function.params.posonly_params, *function.params.params][:1]
            if [each.name.value for each in first] != ["self"]:
                raise NoPattern("the function of a class has no `self`")
            self._self, self._of_class = "self", f"_of_{owner.name.value}"

    def body(self, pieces: Sequence[Piece]) -> list[Statement]:
        """The statements of the function, which call the new functions."""
        known = frozenset(self._known)
        found = self._block(pieces, _Around(known, known, frozenset()), is_top=True)
        if not self.new:
            raise NoPattern("nothing is left to compile")
        return found

    def _block(
        self, pieces: Sequence[Piece], around: _Around, *, is_top: bool = False
    ) -> list[Statement]:
        found: list[Statement] = []
        groups = _groups(pieces)
        lines = [[piece.statement for piece in group] for group in groups]
        for index, (group, block) in enumerate(zip(groups, lines, strict=True)):
            following = [s for each in lines[index + 1 :] for s in each]
            again = (
                [s for each in lines[:index] for s in each] if around.in_loop else []
            )
            later = around.later | _inputs(following) | _inputs(again)
            here = replace(around, later=later)
            if any(piece.place is Place.GRAPH for piece in group):
                is_last = is_top and index + 1 == len(groups)
                found.append(self._extracted(block, here, is_last=is_last))
            else:
                found.append(self._opened(group[0], here))
            around = replace(
                around,
                certain=around.certain | _certain(block),
                maybe=around.maybe | assigned(block),
            )
        return found

    def _opened(self, piece: Piece, around: _Around) -> Statement:
        statement = piece.statement
        if not piece.inner:
            return statement
        bound = assigned(_header(statement))
        is_loop = isinstance(statement, (cst.For, cst.While))
        test = reads(statement.test) if isinstance(statement, cst.While) else set()
        inside = _Around(
            around.certain | bound,
            around.maybe | (assigned(statement) if is_loop else bound),
            around.later | test,
            around.in_loop or is_loop,
        )
        blocks = [self._block(each, inside) for each in piece.inner]
        suite: cst.BaseSuite = getattr(statement, "body")  # noqa: B009
        changes: dict[str, object] = {"body": _suite(suite, blocks[0])}
        other = getattr(statement, "orelse", None)
        if isinstance(other, cst.If):
            changes["orelse"] = blocks[1][0]
        elif other is not None:
            block = _suite(other.body, blocks[1])
            changes["orelse"] = other.with_changes(body=block)
        return statement.with_changes(**changes)

    def _extracted(
        self, graph: list[Statement], around: _Around, *, is_last: bool
    ) -> Statement:
        """The statement that calls a new function of statements."""
        ends = is_last or isinstance(only(graph[-1]), cst.Return)
        results = [] if ends else self._results(graph, around)
        names = self._arguments(graph, around, results)
        wanted = f"_{self._function.name.value.strip('_')}_in_graph{self._of_class}"
        wanted += f"_{len(self.new) + 1}" * bool(self.new)
        taken = [each.name.value for each in self.new]
        name = fresh(self._site.module, wanted, taken)
        owner = [self._self] if self._self else []
        start = f"{', '.join(results)} = " if results else ""
        start = "return " if ends else start
        target = f"{self._self}.{name}" if self._self else name
        call = cst.parse_statement(f"{start}{target}({', '.join(names)})\n")
        body = [graph[0].with_changes(leading_lines=()), *graph[1:]]
        if results:
            body.append(cst.parse_statement(f"return {', '.join(results)}\n"))
        new = cst.FunctionDef(
            name=cst.Name(name),
            params=cst.Parameters([self._parameter(n) for n in [*owner, *names]]),
            body=cst.IndentedBlock(body),
            returns=self._function.returns if ends else None,
            leading_lines=[cst.EmptyLine(indent=False)] * (2 if self._is_alone else 1),
        )
        self.new.append(new)
        return call

    def _parameter(self, name: str) -> cst.Param:
        known = self._parameters.get(name)
        annotation = known.annotation if known is not None else None
        return cst.Param(cst.Name(name), annotation)

    def _results(self, graph: Sequence[Statement], around: _Around) -> list[str]:
        """The names that the part assigns, and that are read after it."""
        own = (each for each in graph if not isinstance(each, _DEFINITIONS))
        if any(isinstance(n, cst.Return) for each in own for n in nodes(each)):
            raise NoPattern("the function returns in several places")
        made = {each.name.value for each in graph if isinstance(each, _DEFINITIONS)}
        if made & around.later:
            raise Refused(f"`{min(made & around.later)}` is made in each call")
        later = set(around.later)
        if around.in_loop:
            later |= _inputs(graph)
        found = in_order(graph, assigned(graph) & later)
        self._assert_values(found)
        for name in found:
            if name not in around.certain | _certain(graph):
                raise Refused(f"`{name}` may not be assigned")
        return found

    def _arguments(
        self, graph: Sequence[Statement], around: _Around, extra: list[str]
    ) -> list[str]:
        """The names that the part reads, and those it may leave as they are."""
        read = _inputs(graph) | ({*extra} - _certain(graph))
        read &= around.maybe - {self._self}
        self._assert_values(read)
        for value in (v for n in sorted(read) for v in values_of(self._function, n)):
            if value is not None and Values(self._site).kind(value) is Kind.TENSORS:
                raise Refused(f"`{brief(value)}` may have another length in each call")
        if unsure := read - around.certain:
            raise Refused(f"`{min(unsure)}` may not be assigned")
        return [
            *(n for n in self._known if n in read),
            *in_order(graph, read - {*self._known}),
        ]

    def _assert_values(self, names: Iterable[str]) -> None:
        """Refuses functions, classes and generators, which are others in each call."""
        for node in nodes(self._function.body):
            if isinstance(node, _DEFINITIONS) and node.name.value in names:
                raise Refused(f"`{node.name.value}` is made in each call")
        for value in (v for n in sorted(names) for v in values_of(self._function, n)):
            inside = nodes(value) if value is not None else ()
            is_function = any(isinstance(each, cst.Lambda) for each in inside)
            if value is not None and (
                is_function or isinstance(value, cst.GeneratorExp)
            ):
                raise Refused(f"`{brief(value)}` is made in each call")


def _certain(block: Iterable[Statement]) -> set[str]:
    """The names that statements assign whatever happens."""
    found = set(always_assigned(block))
    for each in block:
        # A manager of another kind may end the block early, without an exception.
        if isinstance(each, cst.With) and all(
            brief(item.item).startswith("torch.") for item in each.items
        ):
            found |= _certain(body(each))
    return found


def _inputs(block: Iterable[Statement]) -> set[str]:
    """The names that statements read before they assign them."""
    found, known = set[str](), set[str]()
    for each in block:
        found |= _inputs_of(each) - known
        known |= _certain([each])
    return found


def _inputs_of(statement: Statement) -> set[str]:
    if not isinstance(statement, (cst.For, cst.If, cst.While, cst.With)):
        return reads(statement)
    other = getattr(statement, "orelse", None)
    header = reads(_header(statement))
    inner = _inputs(body(statement)) - assigned(_header(statement))
    last = (
        [] if other is None else [other] if isinstance(other, cst.If) else body(other)
    )
    return header | inner | _inputs(last)


def _header(block: Statement) -> Statement:
    """A block without its statements."""
    empty = block.with_changes(body=cst.IndentedBlock([]))
    return empty.with_changes(orelse=None) if hasattr(empty, "orelse") else empty


def _suite(old: cst.BaseSuite, block: Sequence[Statement]) -> cst.BaseSuite:
    if isinstance(old, cst.IndentedBlock):
        return old.with_changes(body=block)
    return cst.IndentedBlock(block)


# -- which pieces are compiled ---------------------------------------------------------


def _groups(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in order: those of a graph together, each of Python alone."""
    found: list[list[Piece]] = []
    for group in _runs(pieces):
        is_graph = any(each.place is Place.GRAPH for each in group)
        found += [group] if is_graph else [[each] for each in group]
    return found


def _runs(pieces: Sequence[Piece]) -> list[list[Piece]]:
    grouped = itertools.groupby(pieces, lambda each: each.place is Place.HOST)
    return [list(run) for _, run in grouped]


def _every(pieces: Iterable[Piece]) -> Iterator[Piece]:
    for each in pieces:
        yield each
        for inner in each.inner:
            yield from _every(inner)


def _choose(pieces: list[Piece]) -> None:
    """Where no work is enough for a graph of its own, takes the most of each block."""
    every = list(_every(pieces))
    if any(each.place is Place.GRAPH for each in every):
        return
    for block in [pieces, *(inner for each in every for inner in each.inner)]:
        runs = [run for run in _runs(block) if run[0].place is not Place.HOST]
        sizes = [weight([each.statement for each in run]) for run in runs]
        if max(sizes, default=0) > 1:
            first = runs[sizes.index(max(sizes))][0]
            at = next(i for i, each in enumerate(block) if each is first)
            block[at] = replace(first, place=Place.GRAPH)
