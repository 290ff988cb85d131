"""A call that needs values of tensors runs on the host: torchproof.host_call.

Compiled code has to know the shapes of the results. They are found by running the
target: each size has to equal a size of something around the call, in every call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from torchproof.fixing.observed_calls import ObservedCall, Value
from torchproof.fixing.rewrites.effects import (
    ENDS,
    arguments_of,
    new_function,
    top_level,
)
from torchproof.fixing.rewrites.formatting import WIDTH, laid_out
from torchproof.fixing.rewrites.names import (
    always_assigned,
    assigned,
    body,
    following,
    fresh,
    is_needed_after,
    only,
    parameters,
    uses_of,
)
from torchproof.fixing.rewrites.operators import brief, dotted, is_heavy, nodes
from torchproof.fixing.rewrites.site import (
    Changes,
    Draft,
    NoPattern,
    Refused,
    Site,
    Statement,
    parsed,
)
from torchproof.fixing.rewrites.values import Values

_PROBE = "__import__('torchproof.fixing.call_probe', fromlist=['_']).probed"
_CONVERSIONS = ("torch.tensor", "torch.as_tensor", "torch.from_numpy")
_NO_LITERALS = (-1,)  # a size that was the same in all calls may be another later


def call(site: Site) -> Draft:
    """`helper(x)` becomes `host_call(helper, x, like=...)`."""
    found = _call(site)
    _assert_possible(site, found)
    text = _on_host(site, found)
    return Draft(f"call `{brief(found.func)}` on the host, with host_call", text)


def statement(site: Site) -> Draft:
    """A statement that cannot be in a graph becomes a function, called on the host.

    It would run outside a graph anyway, between two of them.
    """
    moved = _moved(site)
    ending = _ending(moved)
    results = [] if ending is not None else _results(site, moved)
    arguments = arguments_of(site, Values(site), [moved])
    what = results[0] if results else site.function.name.value
    name = fresh(site.module, f"_{what.strip('_').lower()}_on_host")
    function = new_function(f"def {name}", [moved], arguments, results)
    texts = ", ".join(each.text for each in arguments)
    start = f"{', '.join(results)} =" if results else "return"
    line = cst.parse_statement(f"{start} {name}({texts})\n")
    text = site.replaced({moved: [line]}, before={top_level(site): [function]})
    inside = _at_call(site, text, name)
    new = _on_host(inside, _call(inside), differentiable=True)
    kind = "block" if isinstance(moved, cst.With) else "statement"
    return Draft(f"run the {kind} on the host, with host_call", new)


def _on_host(site: Site, found: cst.Call, *, differentiable: bool = False) -> str:
    """The text of the file with a call on the host."""
    more = ", differentiable=True" if differentiable else ""
    probe = cst.parse_expression(f"{_PROBE}({site.code(found.func)}, locals(){more})")
    observed = site.probe(site.replaced({found.func: probe}))
    _assert_alike(observed, brief(found.func))
    if differentiable:
        observed = [replace(each, integers=_NO_LITERALS) for each in observed]
    changes: Changes = {found: _host_call(site, found, observed)}
    if any(each.kind == "array" for each in observed[0].results):
        changes |= _conversions(site, found)
    return site.replaced(changes, ["torch", "torchproof.host_call"])


# -- which statement -------------------------------------------------------------------


def _moved(site: Site) -> Statement:
    """The innermost `with` that the finding is about, or the assignment at the line."""
    line = site.statement
    if site.finding.code == "GB111":
        around = [line, *site.ancestors(line)]
        found = next((each for each in around if isinstance(each, cst.With)), None)
        if found is None:
            raise Refused("no `with` is around the line")
        line = found
    elif site.inner is not None:
        raise NoPattern("the finding is in a function that the line calls")
    ending = _ending(line)
    if any(isinstance(each, _ENDS) and each is not ending for each in nodes(line)):
        raise NoPattern("the statement does more than compute values")
    heavy = (brief(each) for each in nodes(line) if is_heavy(each))
    if (work := next(heavy, None)) is not None:
        raise Refused(f"`{work}` would leave the graph")
    return line


def _ending(moved: Statement) -> cst.Return | None:
    """The `return` with a value that a statement is, or that a block ends with."""
    last = body(moved)[-1] if isinstance(moved, cst.With) else moved
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    has_value = isinstance(small, cst.Return) and small.value is not None
    return small if has_value else None  # type: ignore[return-value]


_ENDS = (*ENDS, cst.Nonlocal, cst.Del, cst.FunctionDef)


def _results(site: Site, moved: Statement) -> list[str]:
    """The names that the statement assigns, and that are read after it."""
    certain = always_assigned(body(moved) if isinstance(moved, cst.With) else [moved])
    needed = sorted(n for n in assigned(moved) if is_needed_after(site, moved, n))
    if not needed:
        raise NoPattern("the statement assigns nothing that is used after it")
    for name in needed:
        if name not in certain:
            raise Refused(f"`{name}` may not be assigned by the statement")
    return needed


def _at_call(site: Site, text: str, name: str) -> Site:
    """The site in the new text, at the call of the new function."""
    pattern = re.compile(rf"(=|return) {re.escape(name)}\(")
    lines = text.splitlines()
    line = next(i for i, each in enumerate(lines, 1) if pattern.search(each))
    return replace(
        site, file=parsed(site.file.path, text), line=line, columns=None, inner=name
    )


# -- which call ------------------------------------------------------------------------


def _call(site: Site) -> cst.Call:
    """The call at the line that led to the finding."""
    if site.inner == site.function.name.value:  # where an earlier graph ended
        raise NoPattern("the function calls itself")
    calls = [
        (node, r)
        for node, r in site.file.positions.items()
        if isinstance(node, cst.Call) and r.start.line == site.line
    ]
    inner = (site.inner or "").rpartition(".")[2]
    by_name = [(n, r) for n, r in calls if _last_name(n) == inner]
    if site.columns is not None and not by_name:
        start, end = site.columns
        by_name = [
            (n, r)
            for n, r in calls
            if r.start.column == start
            and (r.end.column == end or r.end.line > r.start.line)
        ]
    if len(by_name or calls) != 1:
        raise NoPattern("no single call of a function led to it")
    return (by_name or calls)[0][0]


def _last_name(node: cst.Call) -> str:
    return (dotted(node.func) or "").rpartition(".")[2]


def _assert_possible(site: Site, found: cst.Call) -> None:
    values, name = Values(site), dotted(found.func)
    if name is None:
        raise Refused(f"`{brief(found.func)}` is not the name of a function")
    root = name.partition(".")[0]
    if root in _locals(site) - {"self", "cls"}:
        raise Refused(f"`{root}` is a local variable: what it calls is not known")
    if values.dotted(found.func).startswith("torch."):
        raise Refused(f"`{brief(found)}` is an operation of torch")
    if any(each.keyword and each.keyword.value == "like" for each in found.args):
        raise Refused(f"`{name}` takes an argument `like`")
    for each in _definitions(site, name.rpartition(".")[2]):
        for node in nodes(each):
            if isinstance(node, (cst.Global, cst.Nonlocal)):
                raise Refused(f"`{name}` assigns variables of another function")
            if isinstance(node, (cst.Yield, cst.Await)):
                raise Refused(f"`{name}` is a generator or a coroutine")


def _locals(site: Site) -> set[str]:
    """The variables of the functions around the site."""
    around = [site.function, *site.ancestors(site.function)]
    functions = [each for each in around if isinstance(each, cst.FunctionDef)]
    return {
        name for each in functions for name in (*parameters(each), *assigned(each.body))
    }


def _definitions(site: Site, name: str) -> list[cst.FunctionDef]:
    return [
        node
        for node in site.file.positions
        if isinstance(node, cst.FunctionDef) and node.name.value == name
    ]


def _assert_alike(observed: Sequence[ObservedCall], name: str) -> None:
    """Refuses what differs from call to call, or cannot be a result of an operator."""
    if not observed:
        raise Refused(f"`{name}` does not run in eager mode here")
    if problem := next((o.problem for o in observed if o.problem), None):
        raise Refused(f"`{name}` cannot run on the host: {problem}")
    for each in observed:
        for result in each.results:
            if result.kind not in ("tensor", "array"):
                kind = result.dtype or "int"
                raise Refused(f"`{name}` returns a value of type {kind}, not tensors")
    forms = {
        (o.several, *((r.kind, r.dtype, len(r.numbers)) for r in o.results))
        for o in observed
    }
    if len(forms) > 1:
        raise Refused(f"`{name}` returns other types or dimensions in some calls")
    arguments = {n: v for n, v in observed[0].scope.items() if not n.startswith(".")}
    takes_tensors = any(each.kind == "tensor" for each in arguments.values())
    if takes_tensors and len({each.given for each in observed}) < 2:
        raise Refused(f"`{name}` always gets the same values: other shapes may follow")


# -- the shapes of the results ---------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """Something around the call that has sizes, by its name in `scope`."""

    name: str
    texts: tuple[str, ...]  # of each size
    tensor: str = ""  # the text of the tensor, if it is one
    rank: int = 0  # arguments first, then what may be None, then local variables


def _sources(site: Site, found: cst.Call, scope: Mapping[str, Value]) -> list[_Source]:
    values = Values(site)
    own = parameters(site.function)
    expressions: dict[str, cst.BaseExpression] = {}
    for index, each in enumerate(found.args):
        if each.star:
            break
        expressions[each.keyword.value if each.keyword else str(index)] = each.value
    for name, param in own.items():
        expressions.setdefault(f".{name}", param.name)
    sources = []
    for name, node in expressions.items():
        value = scope.get(name)
        if value is None or not values.is_pure(node):
            continue
        default = own[root].default if (root := site.code(node)) in own else None
        optional = default is not None and site.code(default) == "None"
        rank = 2 if name.startswith(".") else int(optional)
        sources.append(_source(name, node, value, site, rank=rank))
    return sorted(sources, key=lambda each: each.rank)


def _source(
    name: str, node: cst.BaseExpression, value: Value, site: Site, *, rank: int
) -> _Source:
    text, count = site.code(node), len(value.numbers)
    if value.kind == "tensor":
        texts = tuple(f"{text}.shape[{i}]" for i in range(count))
        return _Source(name, texts, text, rank)
    if value.kind == "integers" and isinstance(node, (cst.Tuple, cst.List)):
        plain = [each for each in node.elements if isinstance(each, cst.Element)]
        if len(plain) == count:
            return _Source(name, tuple(site.code(e.value) for e in plain), rank=rank)
    if value.kind == "integers":
        return _Source(name, tuple(f"{text}[{i}]" for i in range(count)), rank=rank)
    return _Source(name, (text,) * count, rank=rank)


def _templates(
    site: Site, found: cst.Call, observed: Sequence[ObservedCall]
) -> list[str]:
    """An expression for each result that makes a tensor of its shape and type."""
    sources = [
        each
        for each in _sources(site, found, observed[0].scope)
        if all(_fits(each, o.scope) for o in observed)
    ]
    return [
        _template(sources, observed, index, brief(found.func))
        for index in range(len(observed[0].results))
    ]


def _fits(source: _Source, scope: Mapping[str, Value]) -> bool:
    value = scope.get(source.name)
    return value is not None and len(value.numbers) == len(source.texts)


def _template(
    sources: Sequence[_Source], observed: Sequence[ObservedCall], index: int, name: str
) -> str:
    results = [each.results[index] for each in observed]
    first = results[0]
    sizes = []
    for position in range(len(first.numbers)):
        text = _size(sources, observed, index, position)
        if text is None:
            raise Refused(
                f"size {position} of what `{name}` returns is not known before it runs"
            )
        sizes.append(text)
    shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    for source in sources if first.kind == "tensor" else ():
        values = [each.scope[source.name] for each in observed]
        pairs = list(zip(values, results, strict=True))
        if source.tensor and all(value.device == r.device for value, r in pairs):
            # A float follows its argument, as in a model that is converted.
            follows = "float" in first.dtype and all(
                v.dtype == r.dtype for v, r in pairs
            )
            dtype = "" if follows else f", dtype={first.dtype}"
            if list(source.texts) == sizes:
                return f"torch.empty_like({source.tensor}{dtype})"
            return f"{source.tensor}.new_empty({shape}{dtype})"
    if any(each.device != "cpu" for each in results):
        raise Refused(f"the device of what `{name}` returns is not known")
    return f"torch.empty({shape}, dtype={first.dtype})"


def _size(
    sources: Sequence[_Source],
    observed: Sequence[ObservedCall],
    index: int,
    position: int,
) -> str | None:
    """The best expression for one size of one result; None if none fits."""
    shapes = [each.results[index].numbers for each in observed]
    numbers = [shape[position] for shape in shapes]
    literals = observed[0].integers
    constant = str(numbers[0]) if len(set(numbers)) == 1 else None
    is_literal = constant is not None and numbers[0] in literals
    fitting: list[tuple[int, str]] = []
    if constant is not None and literals != _NO_LITERALS:
        fitting.append((1 if is_literal else 4, constant))
    for source in sources:
        for place, text in enumerate(source.texts):
            sizes = [each.scope[source.name].numbers[place] for each in observed]
            if sizes == numbers:
                # Results mostly have the last sizes of what they are computed from.
                aligned = len(source.texts) - place == len(shapes[0]) - position
                fitting.append(((0 if aligned else 2) + (source.rank == 2), text))
    return min(fitting, key=lambda each: each[0], default=(0, None))[1]


# -- the new code ----------------------------------------------------------------------


def _host_call(
    site: Site, found: cst.Call, observed: Sequence[ObservedCall]
) -> cst.BaseExpression:
    templates = _templates(site, found, observed)
    like = templates[0]
    if observed[0].several:
        indent = len(site.indent(site.statement)) + 4
        parts = templates if templates[1:] else [f"{like},"]
        like = laid_out("(", parts, WIDTH - indent - len("like="))
    arguments = [site.code(found.func), *(_argument(site, a) for a in found.args)]
    column = site.range_of(found).start.column
    text = laid_out("host_call(", [*arguments, f"like={like}"], WIDTH - column)
    return cst.parse_expression(text)


def _argument(site: Site, argument: cst.Arg) -> str:
    keyword = f"{argument.keyword.value}=" if argument.keyword else ""
    return f"{argument.star}{keyword}{site.code(argument.value)}"


def _conversions(site: Site, found: cst.Call) -> Changes:
    """Arrays that become tensors anyway: what converts them gets a tensor now."""
    values = Values(site)
    for node in _converted(site, found):
        for above in site.ancestors(node):
            is_conversion = isinstance(above, cst.Call) and (
                values.dotted(above.func) in _CONVERSIONS
            )
            if is_conversion and above.args[0].value is node:  # type: ignore[attr-defined]
                assert isinstance(above, cst.Call)
                return {above.func: cst.parse_expression("torch.as_tensor")}
            if isinstance(above, cst.BaseStatement):
                break
    raise Refused(f"`{brief(found)}` is an array that is used as an array")


def _converted(site: Site, found: cst.Call) -> Iterator[cst.CSTNode]:
    """The call, or the only use of the name that its result gets."""
    yield found
    line, small = site.statement, only(site.statement)
    if not isinstance(small, cst.Assign) or small.value is not found:
        return
    name, later = dotted(small.targets[0].target), following(site, line)
    if name is None or len(small.targets) != 1 or not later:
        return
    uses = [use for use in uses_of(later[0], name) if not _is_target(site, use)]
    again = name in assigned(later[0]) or not is_needed_after(site, later[0], name)
    if len(uses) == 1 and again:
        yield uses[0]


def _is_target(site: Site, node: cst.CSTNode) -> bool:
    return isinstance(site.parent(node), cst.AssignTarget)
