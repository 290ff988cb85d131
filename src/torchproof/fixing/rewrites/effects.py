"""Statements that only have an effect: output, loggers, warnings, checks that raise."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import libcst as cst

from torchproof.checking import Kind, words
from torchproof.fixing.rewrites.names import (
    assigned,
    body,
    fresh,
    parameters,
    renamed,
    uses_of,
)
from torchproof.fixing.rewrites.operators import children, dotted, nodes
from torchproof.fixing.rewrites.site import (
    Changes,
    Draft,
    NoPattern,
    Refused,
    Site,
    Statement,
)
from torchproof.fixing.rewrites.values import Values

_WRITES = words(
    "print pprint.pprint pprint.pp warnings.warn sys.stdout.write sys.stderr.write"
    " sys.stdout.flush tqdm.tqdm.write wandb.log mlflow.log_metric mlflow.log_metrics"
    " open json.dump pickle.dump torch.save numpy.save"
)
_LEVELS = words(
    "debug info warning warn error critical exception log warning_once info_once fatal"
    " add_scalar add_scalars add_histogram log_metric log_metrics"
)
_LOGGER = re.compile(r"(?:\w+\.)*_?(?:log(?:ger|ging)?|writer)", re.IGNORECASE)
_RANK_ZERO = re.compile(r"(?:\w+\.)*rank_zero_(?:print|info|warn|warning|debug)")
# Functions that check their arguments; those of torch are understood by tracing.
_CHECKS = re.compile(r"_?(?:\w+_)?(?:check|assert|validate|verify|ensure)(?:_\w+)?")
# What a tensor or a number is used in.
_OPERATIONS = (
    cst.BinaryOperation,
    cst.Comparison,
    cst.ComparisonTarget,
    cst.Subscript,
    cst.UnaryOperation,
)
# What a function of its own cannot do for the one it was in.
ENDS = (cst.Return, cst.Break, cst.Continue, cst.Yield, cst.Await, cst.Global)


def in_graph(site: Site) -> Draft:
    """Moves statements into a function that compiled code calls when the graph runs."""
    values = Values(site)
    moved = _group(site, values)
    arguments = arguments_of(site, values, moved)
    _assert_no_objects(site, values, moved)
    name = _new_name(site, moved)
    function = new_function(f"@in_graph\ndef {name}", moved, arguments)
    call = cst.parse_statement(f"{name}({', '.join(a.text for a in arguments)})\n")
    top = top_level(site)
    changes: Changes = dict.fromkeys(moved[1:], ())
    changes[moved[0]] = [call]
    text = site.replaced(changes, ["torchproof.in_graph"], before={top: [function]})
    what = "raise" if name.startswith("_check") else "write"
    return Draft(
        f"{what} when the graph runs, with in_graph, which removes the break", text
    )


def skip_while_compiling(site: Site) -> Draft:
    """Puts statements under `if not torch.compiler.is_compiling():`."""
    moved = _group(site, Values(site))
    changes: Changes = dict.fromkeys(moved[1:], ())
    changes[moved[0]] = [unless_compiling(moved)]
    what = "check" if _raises(moved) else "output"
    text = site.replaced(changes, ["torch"])
    return Draft(f"skip the {what} while compiling", text, "unsafe")


def unless_compiling(body: Sequence[Statement]) -> cst.If:
    block = cst.IndentedBlock([body[0].with_changes(leading_lines=()), *body[1:]])
    return cst.If(cst.parse_expression("not torch.compiler.is_compiling()"), block)


# -- which statements ------------------------------------------------------------------


def _group(site: Site, values: Values) -> list[Statement]:
    """The statement at a site, and what only it needs: names assigned for it."""
    block = body(site.parent(site.statement) or site.statement)
    if site.statement not in block:
        raise NoPattern("the statement is one branch of several")
    group: list[Statement] = []
    for statement in block[block.index(site.statement) :]:
        if not _is_effect(statement, values):
            break
        group.append(statement)
        if _has_output(group, values) and not _leaks(site, group):
            return group
    if not group or not _has_output(group, values):
        raise NoPattern("the statement does more than write output or raise")
    raise Refused(f"`{_leaks(site, group)}` is used afterwards")


def _leaks(site: Site, group: Sequence[Statement]) -> str:
    """A name that statements assign and other code uses; empty if there is none."""
    for name in sorted(assigned(group)):
        inside = sum(len(uses_of(each, name)) for each in group)
        is_parameter = name in parameters(site.function)
        if is_parameter or inside != len(uses_of(site.function, name)):
            return name
    return ""


def _is_effect(statement: cst.CSTNode, values: Values) -> bool:
    """Whether a statement does nothing but compute, write output, and raise."""
    for each in nodes(statement):
        if isinstance(each, ENDS):
            return False
        if isinstance(each, cst.AssignTarget) and not isinstance(each.target, cst.Name):
            return False
        if isinstance(each, cst.BaseCompoundStatement) and not isinstance(
            each, cst.If | cst.For | cst.With
        ):
            return False
        if isinstance(each, cst.With) and not all(map(_opens, each.items)):
            return False
        if isinstance(each, cst.AugAssign | cst.AnnAssign | cst.Del | cst.Import):
            return False
    return all(_is_harmless(each, values) for each in _parts(statement))


def _parts(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The calls of a statement, without the exceptions that it makes."""
    if isinstance(node, cst.Raise) and isinstance(node.exc, cst.Call):
        for argument in node.exc.args:
            yield from _parts(argument)
        return
    if isinstance(node, cst.Call):
        yield node
    for child in children(node):
        yield from _parts(child)


def _is_harmless(node: cst.CSTNode, values: Values) -> bool:
    assert isinstance(node, cst.Call)
    return is_output(node, values) or values.effect_of_call(node) is None


def is_output(node: cst.CSTNode, values: Values) -> bool:
    if not isinstance(node, cst.Call):
        return False
    name = values.dotted(node.func)
    receiver, _, method = name.rpartition(".")
    if name in _WRITES or _RANK_ZERO.fullmatch(name):
        return True
    if _is_check(name):
        return isinstance(values.site.parent(node), cst.Expr)
    if method in ("write", "writelines"):
        return _is_file(receiver, node, values)
    return method in _LEVELS and _LOGGER.fullmatch(receiver) is not None


def _opens(item: cst.WithItem) -> bool:
    return isinstance(item.item, cst.Call) and dotted(item.item.func) == "open"


def _is_file(name: str, node: cst.CSTNode, values: Values) -> bool:
    """Whether a `with` around a node opens a file by this name."""
    return any(
        _opens(item) and item.asname is not None and dotted(item.asname.name) == name
        for each in values.site.ancestors(node)
        if isinstance(each, cst.With)
        for item in each.items
    )


def _is_check(name: str) -> bool:
    called = name.rpartition(".")[2]
    return not name.startswith("torch.") and _CHECKS.fullmatch(called) is not None


def _has_output(group: Sequence[Statement], values: Values) -> bool:
    return _raises(group) or any(
        is_output(each, values) for statement in group for each in nodes(statement)
    )


def _raises(group: Sequence[Statement]) -> bool:
    return any(
        isinstance(each, cst.Raise | cst.Assert)
        or (isinstance(each, cst.Call) and _is_check(dotted(each.func) or ""))
        for statement in group
        for each in nodes(statement)
    )


# -- the new function ------------------------------------------------------------------


class Argument:
    """A value that the moved statements read: a local name, or an attribute of one."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name


def arguments_of(
    site: Site, values: Values, moved: Sequence[Statement]
) -> list[Argument]:
    """What a function with these statements gets from the function they are in."""
    bound = assigned(moved)
    read = [each for statement in moved for each in _reads(statement)]
    texts: list[str] = []
    for each, value in _passed(site, values, moved):
        root = _root(each)
        if root in ("self", "cls") and isinstance(value, cst.Name):
            raise Refused(f"`{site.code(each)}` needs the object `{root}`")
        texts.append(site.code(value))
    # Of `x` and `x.size` the function gets `x`: it may be None where `x.size` is not
    # read.
    texts = [t for t in texts if not any(t.startswith(f"{o}.") for o in texts)]
    found: dict[str, Argument] = {}
    for text in dict.fromkeys(texts):
        name = text.rpartition(".")[2]
        taken = bound | {_root(each) for each in read} - {text}
        while name in taken | {a.name for a in found.values()}:
            name += "_"
        found[text] = Argument(text, name)
    return list(found.values())


def _passed(
    site: Site, values: Values, moved: Sequence[Statement]
) -> Iterator[tuple[cst.Name | cst.Attribute, cst.Name | cst.Attribute]]:
    """What the statements read of the function they are in, and the part to pass."""
    own = _locals(site) - assigned(moved)
    for statement in moved:
        for each in _reads(statement):
            if _root(each) in own:
                yield each, _value_read(each, values)


def _assert_no_objects(site: Site, values: Values, moved: Sequence[Statement]) -> None:
    """A call in the graph takes tensors and plain values, but no module.

    A parameter that only its caller knows may be one, unless it is used as a value.
    """
    parameters = (p for p in nodes(site.function.params) if isinstance(p, cst.Param))
    unknown = {p.name.value for p in parameters if p.default is None}
    passed = list(_passed(site, values, moved))
    used = {
        site.code(value)
        for each, value in passed
        if each is not value or isinstance(site.parent(each), _OPERATIONS)
    }
    for each, value in passed:
        kind, text = values.kind(value), site.code(value)
        is_open = kind is Kind.UNKNOWN and text in unknown - used
        if is_open or kind in (Kind.LAYER, Kind.RECURRENT, Kind.MODULES):
            raise Refused(f"`{site.code(each)}` may be an object, as a module is")


def _reads(node: cst.CSTNode) -> Iterator[cst.Name | cst.Attribute]:
    """Names and dotted names, each as long as it is written."""
    if isinstance(node, cst.Attribute) and _root(node):
        yield node
        return
    if isinstance(node, cst.Name):
        yield node
        return
    for child in children(node):
        is_attribute = isinstance(node, cst.Attribute) and child is node.attr
        is_keyword = isinstance(node, cst.Arg) and child is node.keyword
        if not is_attribute and not is_keyword:
            yield from _reads(child)


def _root(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _value_read(
    node: cst.Name | cst.Attribute, values: Values
) -> cst.Name | cst.Attribute:
    """The part of a dotted name that is passed: the tensor of `x.shape`."""
    parts: list[cst.Name | cst.Attribute] = [node]
    while isinstance(last := parts[-1], cst.Attribute):
        assert isinstance(last.value, cst.Name | cst.Attribute)
        parts.append(last.value)
    for outer, inner in reversed(list(itertools.pairwise(parts))):
        assert isinstance(outer, cst.Attribute)
        if values.is_tensor(inner) or outer.attr.value in _OF_TENSORS:
            return inner
    call = values.site.parent(node)
    if not isinstance(call, cst.Call) or call.func is not node or len(parts) == 1:
        return node
    if is_output(call, values):
        raise Refused(f"`{values.site.code(node)}` is a method of a local object")
    return parts[1]


_OF_TENSORS = words("shape dtype device ndim")


def _locals(site: Site) -> set[str]:
    """The names that belong to the functions around the site."""
    found: set[str] = set()
    for each in (site.function, *site.ancestors(site.function)):
        if isinstance(each, cst.FunctionDef):
            found |= assigned(each.body)
            found |= {
                p.name.value for p in nodes(each.params) if isinstance(p, cst.Param)
            }
    return found


def top_level(site: Site) -> Statement:
    """The statement of the module that contains the site."""
    top: cst.CSTNode = site.function
    for each in site.ancestors(site.function):
        if isinstance(each, cst.BaseStatement):
            top = each
    assert isinstance(top, cst.BaseStatement)
    return top


def _new_name(site: Site, moved: Sequence[Statement]) -> str:
    function = site.function.name.value.strip("_")
    wanted = f"{'_check' if _raises(moved) else '_write'}_in_{function}"
    return fresh(site.module, wanted)


def new_function(
    header: str,
    moved: Sequence[Statement],
    arguments: Sequence[Argument],
    returned: Sequence[str] = (),
) -> Statement:
    """A function of the module, whose header is `def name`, with the statements."""
    new_names = {a.text: a.name for a in arguments if a.text != a.name}
    lines = [renamed(each, new_names) for each in moved]
    lines[0] = lines[0].with_changes(leading_lines=())
    if returned:
        lines.append(cst.parse_statement(f"return {', '.join(returned)}\n"))
    header = f"{header}({', '.join(a.name for a in arguments)}):\n"
    function = cst.parse_statement(f"{header}    pass\n")
    assert isinstance(function, cst.FunctionDef)
    return function.with_changes(
        body=cst.IndentedBlock(lines), leading_lines=[cst.EmptyLine(indent=False)] * 2
    )
