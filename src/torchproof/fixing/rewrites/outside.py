"""Python at the edge of a compiled function leaves it: torchproof.on_host.

The rest becomes a function of its own, which is compiled whole. The statements run in
the same order as before, so every value is the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from torchproof.checking import Kind, words
from torchproof.fixing.rewrites.conditions import Reader
from torchproof.fixing.rewrites.effects import is_output
from torchproof.fixing.rewrites.names import (
    always_assigned,
    assigned,
    fresh,
    in_order,
    parameters,
    reads,
    values_of,
)
from torchproof.fixing.rewrites.operators import (
    BUILTINS,
    brief,
    called,
    children,
    dotted,
    is_heavy,
    nodes,
)
from torchproof.fixing.rewrites.site import Draft, NoPattern, Refused, Site, Statement
from torchproof.fixing.rewrites.values import TENSOR_METHODS, Values

# What only Python can do: it leaves the graph with the statement at the finding.
_OF_PYTHON = re.compile(
    r"(?<![\w.])(?:time|datetime|random|np|numpy|inspect|os|sys)\.|(?<![\w.])open\("
    r"|\.(?:item|tolist|numpy|backward|zero_grad|step)\(|(?<![\w.])print\("
)
# What makes tensors that Dynamo takes into no graph.
_OTHER_LAYOUTS = re.compile(
    r"\.(?:to_)?sparse\w*\b|\.coalesce\(|nested_tensor|\.to_mkldnn\("
)
# Functions for whose numbers there is a graph each: sizes, ranges, keys.
_FIXED = words(
    "zeros ones empty full rand randn randint arange range linspace eye view reshape"
    " expand repeat repeat_interleave narrow topk split chunk unfold one_hot new_zeros"
    " new_ones new_empty new_full select get getattr pad roll"
)
_OF_TEXT = re.compile(
    r"\.(?:split|lower|upper|strip|casefold|encode|tokenize)\(|tokeni[sz]er\(|\bre\.\w+\("
)
_TO_TENSOR = re.compile(r"\btorch\.\w*tensor\(|tokeni[sz]er")
_LIGHT = words("open print map filter")
_SIZES = words("shape size device dtype ndim dim")
_MODULES = {*sys.stdlib_module_names, "numpy", "np", "torch"}
_LOOPS = (cst.For, cst.While)
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


@dataclass(frozen=True)
class Parts:
    """The statements of a function: in Python, in a graph, and in Python again.

    `last` has those of a second graph, behind what torch cannot trace at all.
    """

    before: list[Statement]
    graph: list[Statement]
    after: list[Statement]
    last: list[Statement]


def split(site: Site) -> Draft:
    """The statement that breaks the graph stays in Python, with what is around it."""
    if site.inner is not None:
        raise NoPattern("the line is not in the function that is compiled")
    return _split(site)


def text(site: Site) -> Draft:
    """What makes numbers of text stays in Python: the graph gets the tensor of them."""
    if not _OF_TEXT.search(site.code(site.statement)):
        raise NoPattern("the line works on no text")
    return _split(site, is_text=True)


def _split(site: Site, *, is_text: bool = False) -> Draft:
    if not site.is_entry:
        raise NoPattern("the line is not in the function that is compiled")
    assert_plain(site, site.function)
    parts = _parts(site, Edge(site), is_text=is_text)
    if is_text and not any(_TO_TENSOR.search(site.code(s)) for s in parts.before):
        raise NoPattern("the text does not become a tensor")
    return drafted(site, parts, _title(site, parts), is_text=is_text)


def drafted(
    site: Site,
    parts: Parts,
    title: str,
    *,
    is_text: bool = False,
    is_state: bool = False,
) -> Draft:
    """The function in Python, and its parts that are compiled as functions."""
    function = site.function
    _assert_whole(site, parts, is_state=is_state)
    names = _Names(site, function)
    host: list[Statement] = list(parts.before)
    functions: list[Statement] = []
    done = list(parts.before)
    for graph, rest in ((parts.graph, parts.after), (parts.last, [])):
        if graph:
            later = [*rest, *(parts.last if graph is parts.graph else [])]
            call, new = names.extracted(graph, done, later, len(functions))
            host.append(call)
            functions.append(new)
        host += rest
        done += [*graph, *rest]
    imports = ["torchproof.on_host"]
    if is_text and (host != (host := [_untraced(each, site) for each in host])):
        imports.append("torch")
    if is_state and any("torch.compiler." in site.code(each) for each in host):
        imports.append("torch")
    text = site.replaced({function: [_on_host(function, host), *functions]}, imports)
    return Draft(title, text)


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


def _title(site: Site, parts: Parts) -> str:
    what = f"`{brief(site.expression or site.statement)}`"
    if parts.last and parts.graph:
        return f"compile what is before and after {what} apart, not {what} (on_host)"
    where = "after the compiled call, with what it needs returned"
    if any(_contains(each, site.statement) for each in parts.before):
        where = "before the compiled call"
        read = set().union(*map(reads, (*parts.graph, *parts.last)))
        if assigned(site.statement) & read:
            where += ", and pass the result in as an argument"
    return f"do {what} outside, {where} (on_host)"


# -- which statements leave ------------------------------------------------------------


class Edge:
    """What a statement of a function does: little, or what has to be compiled."""

    def __init__(self, site: Site) -> None:
        self._site, self._values = site, Values(site)

    def is_light(self, statement: cst.CSTNode) -> bool:
        """Whether it does little on tensors, and runs no module of the program.

        After a backward, a loop over parameters cannot be in the graph of the forward.
        """
        is_update = self._site.finding.code == "GB110"
        forbidden = _DEFINITIONS if is_update else (*_LOOPS, *_DEFINITIONS)
        return all(
            not isinstance(node, forbidden)
            and not is_heavy(node)
            and (not isinstance(node, cst.Call) or self._is_light_call(node))
            for node in nodes(statement)
        )

    def is_of_python(self, statement: cst.CSTNode) -> bool:
        return _OF_PYTHON.search(self._site.code(statement)) is not None

    def _is_light_call(self, call: cst.Call) -> bool:
        name = self._values.dotted(call.func)
        if name.partition(".")[0] in _MODULES or name in BUILTINS | _LIGHT:
            return True
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if is_output(call, self._values):
            return True
        if method in TENSOR_METHODS | _METHODS or "tokeniz" in name:
            return True
        given = {n for each in call.args for n in _given(each.value)}
        return not given - {"self", *_MODULES} and not name.endswith("forward")

    def runs_a_recurrent_layer(self, statement: cst.CSTNode) -> bool:
        """Whether Dynamo leaves out the function because of this statement alone."""
        return self._site.finding.code == "GB108" and self._site.statement is statement


_METHODS = words(
    "numpy requires_grad_ clamp relu sigmoid tanh exp log sqrt square t transpose"
    " unsqueeze expand clone repeat copy astype normal uniform random integers format"
    " encode lower upper strip casefold tokenize findall setdefault"
    " add extend update insert appendleft"
    " join get keys values items append zero_ backward masked_fill masked_select"
)


def _given(node: cst.CSTNode) -> Iterator[str]:
    """The names that an expression passes on, without those it asks for a size."""
    if isinstance(node, cst.Attribute) and node.attr.value in _SIZES:
        return
    if isinstance(node, cst.Call) and brief(node.func) == "len":
        return
    if isinstance(node, cst.Attribute):
        yield from _given(node.value)
    elif isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, cst.Call):
        yield from _given(node.func) if isinstance(node.func, cst.Attribute) else ()
        for each in node.args:
            yield from _given(each.value)
    else:
        for child in children(node):
            yield from _given(child)


def _parts(site: Site, edge: Edge, *, is_text: bool) -> Parts:
    body = body_of(site.function)
    index = next((i for i, s in enumerate(body) if _contains(s, site.statement)), None)
    if index is None:
        raise NoPattern("the line is in the header of the function")
    while is_text and index + 1 < len(body) and edge.is_light(body[index + 1]):
        index += 1  # the graph would get numbers, which are constants of it
    at = body[index]
    apart = edge.runs_a_recurrent_layer(at)
    if not (edge.is_light(at) or apart):
        raise NoPattern("the statement does more than Python does")
    first, rest = body[:index], body[index + 1 :]
    heads, tails = (all(map(edge.is_light, each)) for each in (first, rest))
    if heads and (not tails or _weight(first) < _weight(rest)):
        graph, after = _without_end(rest, edge)
        return compiled([*first, at], graph, after)
    if tails:
        before, graph = _without_start(first, edge)
        return compiled(before, graph, [at, *rest])
    if not apart:
        raise NoPattern("what is before the statement is compiled, and what is after")
    return Parts([], first, [at], rest)


def compiled(
    before: list[Statement], graph: list[Statement], after: list[Statement]
) -> Parts:
    if not _weight(graph):
        raise NoPattern("nothing is left to compile")
    if after:
        return Parts(before, graph, after, [])
    return Parts(before, [], [], graph)


def _contains(statement: cst.CSTNode, inner: cst.CSTNode) -> bool:
    return any(node is inner for node in nodes(statement))


def _weight(block: Sequence[cst.CSTNode]) -> int:
    """How many operations there may be."""
    kinds = cst.Call | cst.BinaryOperation | cst.AugAssign
    return sum(isinstance(node, kinds) for each in block for node in nodes(each))


def _without_start(
    block: list[Statement], edge: Edge
) -> tuple[list[Statement], list[Statement]]:
    """The light statements that it begins with, up to the last of Python's."""
    count = 0
    for number, each in enumerate(block, 1):
        if not edge.is_light(each):
            break
        count = number if edge.is_of_python(each) else count
    return block[:count], block[count:]


def _without_end(
    block: list[Statement], edge: Edge
) -> tuple[list[Statement], list[Statement]]:
    after, graph = _without_start(block[::-1], edge)
    return graph[::-1], after[::-1]


# -- whether what is left is one graph -------------------------------------------------


def _assert_whole(site: Site, parts: Parts, *, is_state: bool) -> None:
    """Refuses if a graph would still break, or if each call would have its own.

    What a call changes may leave a graph that breaks elsewhere, as it did before.
    """
    if found := _OTHER_LAYOUTS.search(site.code(site.function)):
        raise Refused(f"what `{found[0]}` gives is in no graph")
    reader = Reader(site, Values(site))
    numbers = _numbers(site, parts, is_state=is_state)
    for each in (*parts.graph, *parts.last):
        if not is_state and _OF_PYTHON.search(site.code(each)):
            raise Refused(f"`{brief(each)}` would break the graph as well")
        for node in nodes(each):
            test = getattr(node, "test", None)
            if test is not None and not is_state and reader.looks_tensor(test):
                raise Refused(f"`{brief(test)}` would break the graph as well")
            if fixed := set().union(*map(reads, _fixed(node))) & numbers:
                raise Refused(f"each `{min(fixed)}` would have a graph of its own")


def _numbers(site: Site, parts: Parts, *, is_state: bool) -> set[str]:
    """The names for what Python makes anew in each call; lists go into no graph."""
    values, found = Values(site), set[str]()
    read = set().union(*map(reads, (*parts.graph, *parts.last)))
    for each in (*parts.before, *parts.graph, *parts.after, *parts.last):
        code = site.code(each)
        made = {
            name
            for name in assigned(each) - set(parameters(site.function))
            if not any(
                value is not None
                and (values.is_tensor(value) or values.kind(value) is Kind.ARRAY)
                for value in values_of(site.function, name)
            )
        }
        is_host = each in parts.before or each in parts.after
        if is_host and ".tolist(" in code and made & read:
            raise Refused(f"each `{brief(each)}` would have a graph of its own")
        is_python = is_state or _OF_PYTHON.search(code)
        is_new = is_host and is_python and not _TO_TENSOR.search(code)
        is_made_of = is_host or not reads(each) - BUILTINS - found
        if is_new or (is_made_of and reads(each) & found):
            found |= made
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
        if isinstance(node, cst.Call) and brief(node.func) in ("locals", "vars"):
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


class _Names:
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
        if isinstance(owner := next(scopes, None), cst.ClassDef):
            first = [*function.params.posonly_params, *function.params.params][:1]
            if [each.name.value for each in first] != ["self"]:
                raise NoPattern("the function of a class has no `self`")
            self._self, self._of_class = "self", f"_of_{owner.name.value}"

    def extracted(
        self,
        graph: Sequence[Statement],
        before: Sequence[Statement],
        after: Sequence[Statement],
        number: int,
    ) -> tuple[Statement, cst.FunctionDef]:
        """The statement that calls the new function, and the function."""
        results = self._results(graph, before, after)
        names = self._arguments(graph, before, results)
        wanted = f"_{self._function.name.value.strip('_')}_in_graph{self._of_class}"
        name = fresh(self._site.module, wanted + f"_{number + 1}" * bool(number))
        owner = [self._self] if self._self else []
        start = f"{', '.join(results)} = " if results else ""
        start = "return " if not after else start
        target = f"{self._self}.{name}" if self._self else name
        call = cst.parse_statement(f"{start}{target}({', '.join(names)})\n")
        body = [graph[0].with_changes(leading_lines=()), *graph[1:]]
        if results:
            body.append(cst.parse_statement(f"return {', '.join(results)}\n"))
        new = cst.FunctionDef(
            name=cst.Name(name),
            params=cst.Parameters([self._parameter(n) for n in [*owner, *names]]),
            body=cst.IndentedBlock(body),
            returns=None if after else self._function.returns,
            leading_lines=[cst.EmptyLine(indent=False)] * (2 if self._is_alone else 1),
        )
        return call, new

    def _parameter(self, name: str) -> cst.Param:
        known = self._parameters.get(name)
        annotation = known.annotation if known is not None else None
        return cst.Param(cst.Name(name), annotation)

    def _results(
        self,
        graph: Sequence[Statement],
        before: Sequence[Statement],
        after: Sequence[Statement],
    ) -> list[str]:
        """The names that the part assigns, and that are read after it."""
        if not after:
            return []
        if any(isinstance(n, cst.Return) for each in graph for n in nodes(each)):
            raise NoPattern("the function returns in several places")
        later = set().union(*map(reads, after))
        found = in_order(graph, assigned(graph) & later)
        certain = {*self._known, *always_assigned(before), *always_assigned(graph)}
        self._assert_values([*before, *graph], found)
        for name in found:
            if name not in certain:
                raise Refused(f"`{name}` may not be assigned")
        return found

    def _arguments(
        self, graph: Sequence[Statement], before: Sequence[Statement], extra: list[str]
    ) -> list[str]:
        """The names that the part reads, and those it may leave as they are."""
        local = {*self._known, *assigned(before)}
        own = always_assigned(graph)
        read = set().union(*map(reads, graph)) | ({*extra} - own)
        certain = {*self._known, *always_assigned(before)}
        needed = [
            n
            for n in [*self._known, *in_order(before, assigned(before))]
            if n in read & local
        ]
        needed = [n for n in dict.fromkeys(needed) if n != self._self]
        self._assert_values(before, needed)
        for value in (v for name in needed for v in values_of(self._function, name)):
            if value is not None and Values(self._site).kind(value) is Kind.TENSORS:
                raise Refused(f"`{brief(value)}` may have another length in each call")
        for name in needed:
            if name not in certain and name not in own:
                raise Refused(f"`{name}` may not be assigned")
        return [name for name in needed if name in certain]

    def _assert_values(self, block: Sequence[Statement], names: list[str]) -> None:
        """Refuses functions and classes, which are others in each call."""
        for each in block:
            for node in nodes(each):
                if isinstance(node, _DEFINITIONS) and node.name.value in names:
                    raise Refused(f"`{node.name.value}` is made in each call")
