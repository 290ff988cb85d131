"""Names in functions: which are read, assigned, and still needed after a statement."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import libcst as cst

from torchproof.checking import words
from torchproof.fixing.rewrites.operators import children, dotted, nodes, replaced_in
from torchproof.fixing.rewrites.site import Site

_STORING = (
    cst.AssignTarget,
    cst.AnnAssign,
    cst.AugAssign,
    cst.For,
    cst.CompFor,
    cst.NamedExpr,
)
Block = Sequence[cst.BaseStatement]
N = TypeVar("N", bound=cst.CSTNode)


def reads(root: cst.CSTNode) -> set[str]:
    """The names that code reads, and those it assigns by `x += 1`.

    Attributes, keywords and the names of parameters are not names.
    """
    return {node.value for node in _read(root)}


def _read(root: cst.CSTNode) -> list[cst.Name]:
    stores = _stores(root, without=(cst.AugAssign,))
    return [node for node in _names(root) if node not in stores]


def uses_of(root: cst.CSTNode, name: str) -> list[cst.Name]:
    """Where code uses a variable."""
    return [node for node in _names(root) if node.value == name]


def assigned(root: cst.CSTNode | Iterable[cst.CSTNode]) -> set[str]:
    """The names that code assigns, in whatever form, except for comprehensions."""
    roots = [root] if isinstance(root, cst.CSTNode) else root
    inner = (cst.CompFor,)
    return {name.value for each in roots for name in _stores(each, without=inner)}


def always_assigned(block: Iterable[cst.CSTNode]) -> set[str]:
    """The names that statements assign whatever happens; `:=` may not be reached."""
    lines = (each for each in block if isinstance(each, cst.SimpleStatementLine))
    inner = (cst.CompFor, cst.NamedExpr)
    return {name.value for each in lines for name in _stores(each, without=inner)}


def in_order(block: Sequence[cst.CSTNode], names: Iterable[str]) -> list[str]:
    """The names in the order in which code uses them."""
    wanted = set(names)
    every = (n.value for each in block for n in nodes(each) if isinstance(n, cst.Name))
    return [name for name in dict.fromkeys(every) if name in wanted]


def _names(root: cst.CSTNode) -> Iterator[cst.Name]:
    """The names that stand for variables."""
    if isinstance(root, cst.Name):
        yield root
    elif isinstance(root, (cst.Attribute, cst.Arg)):
        yield from _names(root.value)
    elif isinstance(root, (cst.Annotation, cst.Param)):
        default = getattr(root, "default", None)
        if default is not None:
            yield from _names(default)
    elif isinstance(root, (cst.Import, cst.ImportFrom)) or _declares(root):
        return
    elif isinstance(root, (cst.FunctionDef, cst.ClassDef)):
        for child in children(root):
            if child is not root.name:
                yield from _names(child)
    else:
        for child in children(root):
            yield from _names(child)


def _declares(node: cst.CSTNode) -> bool:
    """Whether a node is `name: type`, which gives the name no value."""
    return isinstance(node, cst.AnnAssign) and node.value is None


def _stores(
    root: cst.CSTNode, without: tuple[type[cst.CSTNode], ...] = ()
) -> set[cst.Name]:
    stores: set[cst.Name] = set()
    for node in nodes(root):
        if _declares(node):
            continue
        if isinstance(node, _STORING) and not isinstance(node, without):
            stores |= _targets(node.target)
        elif isinstance(node, cst.AsName):
            stores |= _targets(node.name)
        elif isinstance(node, cst.ImportAlias):
            name: cst.CSTNode = node.name  # of `import a.b`, `a`
            while isinstance(name, cst.Attribute):
                name = name.value
            stores |= _targets(name) if node.asname is None else set()
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node is not root:
            stores.add(node.name)
    return stores


def _targets(target: cst.CSTNode) -> set[cst.Name]:
    if isinstance(target, cst.Name):
        return {target}
    if isinstance(target, (cst.Tuple, cst.List)):
        return {name for each in target.elements for name in _targets(each.value)}
    return set()


def body(block: cst.CSTNode) -> list[cst.BaseStatement]:
    """The statements of a function, an `if`, an `else` or a block."""
    suite = getattr(block, "body", block)
    suite = suite if isinstance(suite, cst.BaseSuite) else block
    found = list(getattr(suite, "body", ()))
    if found and isinstance(suite, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(body=found)]
    return found


def ends_with(block: Sequence[cst.CSTNode], kind: type[cst.CSTNode]) -> bool:
    """Whether the last statement of a block is simple, and of this kind."""
    last = block[-1] if block else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], kind)


def following(site: Site, statement: cst.BaseStatement) -> list[cst.BaseStatement]:
    """The statements after a statement in its block."""
    block = body(site.parent(statement) or statement)
    if statement not in block:  # an `elif`
        return []
    return block[block.index(statement) + 1 :]


def later(site: Site, statement: cst.BaseStatement) -> list[cst.BaseSmallStatement]:
    """Everything in the function that may run after a statement, or again."""
    loop = site.around(statement, cst.For) or site.around(statement, cst.While)
    again = set(nodes(loop)) if loop is not None else set()
    own = set(nodes(statement))
    end = site.range_of(statement).end.line
    return [
        node
        for node in nodes(site.function.body)
        if isinstance(node, cst.BaseSmallStatement)
        and node not in own
        and (site.range_of(node).start.line > end or node in again)
    ]


def is_needed_after(site: Site, statement: cst.BaseStatement, name: str) -> bool:
    """Whether the value a name has after a statement may be read later."""
    function = site.function
    if _is_shared(function, name):
        return True
    loop = site.around(statement, cst.For) or site.around(statement, cst.While)
    start = site.range_of(statement).end.line
    inside = set(nodes(statement))
    for node in _read(function.body):
        if node.value != name or node in inside:
            continue
        line = site.range_of(node).start.line
        in_loop = loop is not None and node in set(nodes(loop))
        if (line > start or in_loop) and not _is_overwritten(site, node, statement):
            return True
    return False


def is_input(lines: Iterable[cst.CSTNode], name: str) -> bool:
    """Whether statements read a name before they assign it."""
    first = (each for each in lines if name in reads(each) | assigned(each))
    return any(name in reads(each) for each in itertools.islice(first, 1))


def _is_shared(function: cst.FunctionDef, name: str) -> bool:
    """Whether other functions can read the name: global, nonlocal or a closure."""
    for node in nodes(function.body):
        if isinstance(node, (cst.Global, cst.Nonlocal)):
            if any(each.name.value == name for each in node.names):
                return True
        elif isinstance(node, (cst.FunctionDef, cst.Lambda)) and name in reads(node):
            return True
    return False


def _is_overwritten(site: Site, read: cst.Name, since: cst.BaseStatement) -> bool:
    """Whether the name is always assigned between a statement and a read."""
    around = set(site.ancestors(since))
    inner: cst.CSTNode = read
    for above in site.ancestors(read):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.BaseSuite):
            before = body(above)[: _index(body(above), inner)]
            if above in around:
                before = before[_index(before, since) + 1 :]
            if read.value in always_assigned(before):
                return True
            if above in around:
                return False
        inner = above
    return False


def _index(block: Block, node: cst.CSTNode) -> int:
    inside = (i for i, each in enumerate(block) if node in set(nodes(each)))
    return next(inside, len(block) - 1)


def changed_in_place(statements: Iterable[cst.CSTNode]) -> set[str]:
    """The names of tensors that code writes into, as far as they have names."""
    found: set[str | None] = set()
    for statement in statements:
        for node in nodes(statement):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                method = node.func.attr.value
                if method.endswith("_") and not method.endswith("__"):
                    found.add(start_of(node.func.value))
            elif isinstance(node, cst.AugAssign | cst.AssignTarget):
                rebinds = isinstance(node, cst.AssignTarget)
                if not rebinds or isinstance(node.target, cst.Subscript):
                    found.add(start_of(node.target))
    return {name for name in found if name is not None}


def may_share(function: cst.FunctionDef, one: str, other: str) -> bool:
    """Whether two names may stand for the same memory."""
    return bool(origins(function, one) & origins(function, other))


def origins(function: cst.FunctionDef, name: str) -> set[str]:
    """The names whose memory a name may show: itself, and what it is a view of."""
    return _origins(function, name, set())


_VIEWS = words(
    "view view_as reshape reshape_as transpose permute expand expand_as broadcast_to"
    " squeeze unsqueeze flatten unflatten ravel contiguous detach to float double half"
    " bfloat16 type type_as t T mT narrow select chunk split unbind movedim swapaxes"
    " diagonal unfold real imag swapdims data as_tensor cpu cuda"
    " parameters buffers values items"
)
_ITERATORS = words("enumerate iter list reversed tuple zip")


def _origins(function: cst.FunctionDef, name: str, seen: set[str]) -> set[str]:
    if name in seen:
        return set()
    seen.add(name)
    found = {name}
    for value in _sources(function, name):
        for each in _viewed(value):
            found |= _origins(function, each, seen)
    return found


def _sources(function: cst.FunctionDef, name: str) -> Iterator[cst.CSTNode]:
    """What a name is assigned, or a part of."""
    targets: Sequence[cst.CSTNode]
    for node in nodes(function.body):
        match node:
            case cst.Assign(value=value):
                targets = [each.target for each in node.targets]
            case cst.AnnAssign(value=value) | cst.NamedExpr(value=value):
                targets = [node.target]
            case cst.For(iter=value) | cst.CompFor(iter=value):
                targets = [node.target]
            case cst.WithItem(item=value, asname=cst.AsName(name=target)):
                targets = [target]
            case _:
                continue
        known = {dotted(n) for each in targets for n in (each, *_targets(each))}
        if value is not None and name in known:
            yield value


def _viewed(value: cst.CSTNode) -> set[str]:
    """The names that a value is, or is a view of."""
    if isinstance(value, cst.IfExp):
        return _viewed(value.body) | _viewed(value.orelse)
    if isinstance(value, cst.Subscript):
        return _viewed(value.value)
    if isinstance(value, (cst.Tuple, cst.List)):
        return set().union(*(_viewed(each.value) for each in value.elements))
    if isinstance(value, cst.Attribute) and value.attr.value in _VIEWS:
        return _viewed(value.value)
    if isinstance(value, cst.Call):
        if isinstance(value.func, cst.Attribute) and value.func.attr.value in _VIEWS:
            receiver = _viewed(value.func.value)
            argument_names = [_viewed(each.value) for each in value.args]
            return receiver.union(*argument_names)
        if dotted(value.func) in _ITERATORS:
            return set().union(*(_viewed(each.value) for each in value.args))
        return set()
    name = dotted(value)
    return {name} if name is not None else set()


def start_of(node: cst.CSTNode) -> str | None:
    """The name at the start of `x`, `x[0]`, `x.view(-1)[0]`; `self.x` as a whole."""
    while isinstance(node, (cst.Subscript, cst.Call)):
        if isinstance(node, cst.Call):
            if not isinstance(node.func, cst.Attribute):
                return None
            node = node.func.value
        else:
            node = node.value
    return dotted(node)


def renamed(root: N, names: Mapping[str, str]) -> N:
    """Code with variables and dotted names renamed; keywords and attributes stay."""
    found = [*_names(root), *(n for n in nodes(root) if isinstance(n, cst.Attribute))]
    texts = {node: dotted(node) or "" for node in found}
    return replaced_in(
        root, {n: cst.Name(names[t]) for n, t in texts.items() if t in names}
    )


def fresh(root: cst.CSTNode, wanted: str, taken: Iterable[str] = ()) -> str:
    """A name that code does not use: `wanted`, or with a number."""
    used = {node.value for node in nodes(root) if isinstance(node, cst.Name)}
    used.update(taken)
    numbered = (f"{wanted}_{number}" for number in itertools.count(2))
    return next(n for n in itertools.chain([wanted], numbered) if n not in used)


def only(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The one simple statement of a line."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def assigned_name(
    statement: cst.CSTNode,
) -> tuple[str, cst.BaseExpression] | tuple[str, None]:
    """The name and the value of `name = value`; an empty name for anything else."""
    match only(statement):
        case cst.Assign([cst.AssignTarget(cst.Name(name))], value):
            return name, value
    return "", None


def values_of(function: cst.FunctionDef, name: str) -> list[cst.BaseExpression | None]:
    """What a function assigns to a name; None where that is not an expression."""
    values: list[cst.BaseExpression | None] = []
    for node in nodes(function.body):
        if isinstance(node, cst.Assign):
            for target in node.targets:
                values += _unpacked(target.target, node.value, name)
        elif isinstance(node, cst.AnnAssign) and dotted(node.target) == name:
            values.append(node.value)
        elif isinstance(node, (cst.AugAssign, cst.For, cst.NamedExpr, cst.AsName)):
            bound = node.name if isinstance(node, cst.AsName) else node.target
            if name in {each.value for each in _targets(bound)}:
                values.append(None)
    return values


def _unpacked(
    target: cst.CSTNode, value: cst.BaseExpression, name: str
) -> list[cst.BaseExpression | None]:
    if dotted(target) == name:
        return [value]
    if name not in {each.value for each in _targets(target)}:
        return []
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        pairs = zip(target.elements, value.elements, strict=False)
        return [found for t, v in pairs for found in _unpacked(t.value, v.value, name)]
    return [None]


def parameters(function: cst.FunctionDef) -> dict[str, cst.Param]:
    every = function.params
    listed = (*every.posonly_params, *every.params, *every.kwonly_params)
    return {each.name.value: each for each in listed}
