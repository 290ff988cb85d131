"""What each call changes stays in Python: a counter, a history, a global (on_host).

The graph gets what it needs of it as an argument, so that no guard checks it.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import libcst as cst

from torchproof.checking import words
from torchproof.fixing.rewrites.effects import is_output
from torchproof.fixing.rewrites.names import (
    assigned,
    changed_in_place,
    fresh,
    only,
    origins,
    parameters,
    reads,
    start_of,
    values_of,
)
from torchproof.fixing.rewrites.operators import (
    BUILTINS,
    brief,
    dotted,
    nodes,
    replaced_in,
)
from torchproof.fixing.rewrites.outside import (
    FORBIDDEN,
    assert_plain,
    body_of,
    drafted,
)
from torchproof.fixing.rewrites.pieces import Place, Sorter, may_skip
from torchproof.fixing.rewrites.site import Draft, NoPattern, Refused, Site, Statement
from torchproof.fixing.rewrites.values import Values

_ADDING = words(
    "append extend insert add update appendleft setdefault pop popleft clear remove"
)
_GROWS = words("append extend insert appendleft")
_NUMERIC = words("abs divmod float int len max min pow round sum")
_ASSIGNING = (cst.AugAssign, cst.AssignTarget)
_DRAWS = re.compile(
    r"rand|normal_?\(|bernoulli|multinomial|dropout|shuffle|choice|sample|gauss"
    r"|uniform|poisson|exponential_"
)
# Functions that a class may give itself to, which keep nothing of it.
_ASKS = words("super isinstance getattr setattr hasattr type id")
_LAYERS = ("nn.", "torch.nn.")
_MODULES = ("nn.Module", "torch.nn.Module", "Module", "object")


def outside(site: Site) -> Draft:
    """The statements around what a call changes leave the graph, in their order."""
    if not site.is_entry:
        raise NoPattern("the line is not in the function that is compiled")
    assert_plain(
        site, site.function, tuple(k for k in FORBIDDEN if k is not cst.Global)
    )
    state = _State(site)
    sorter = Sorter(site, is_state=True)
    before, graph, after = _parted(state, sorter)
    state.assert_known()
    code = f"do `{brief(site.statement)}` and what it is for outside"
    title = f"{code}, around the compiled call (on_host)"
    if _grows(site.statement):
        title += "; a preallocated buffer would keep it in the graph"
    pieces = list(map(sorter.on_host, before))
    pieces += [replace(sorter.in_graph(each), place=Place.GRAPH) for each in graph]
    return drafted(sorter, [*pieces, *map(sorter.on_host, after)], title)


def _grows(statement: Statement) -> bool:
    """Whether it adds to a list: in a graph, only a buffer of a fixed length can be."""
    calls = [node for node in nodes(statement) if isinstance(node, cst.Call)]
    names = [(dotted(call.func) or "").rpartition(".")[2] for call in calls]
    return not _GROWS.isdisjoint(names)


class _State:
    """What a function changes at a line, that lasts longer than its call."""

    def __init__(self, site: Site) -> None:
        self.site, function = site, site.function
        self._values = Values(site)
        self.declared = _declared(function)
        own = (assigned(function) | set(parameters(function))) - self.declared
        kept = {
            name
            for name in _changed(function.body)
            if name.startswith("self.") or ("." not in name and name not in own)
        }
        owner = site.around(function, cst.ClassDef)
        self._classes = [owner, *_bases(owner, site.module)] if owner else []
        self._has_inplace = any("inplace" in site.code(e) for e in self._classes)
        parts = [part for each in reversed(self._classes) for part in each.body.body]
        self._methods = {
            f"{prefix}{node.name.value}": node
            for prefix, block in (("self.", parts), ("", site.module.body))
            for node in block
            if isinstance(node, cst.FunctionDef) and node is not function
        }
        lines: list[cst.CSTNode] = [site.statement]
        lines += [m for n, m in self._methods.items() if _mentions(lines[0], {n})]
        self._names = {n for n in kept if any(_mentions(each, {n}) for each in lines)}
        if not self._names:
            raise NoPattern("the line changes nothing that a later call reads")
        self._touched = _with_owners(self._names) | self._unknown(function)
        while readers := {
            name for name, m in self._methods.items() if _mentions(m, self._touched)
        }.difference(self._touched):
            self._touched |= readers
        targets = [n.target for n in nodes(function.body) if isinstance(n, _ASSIGNING)]
        self._lists = self._names - {dotted(each) or "" for each in targets}
        self._numbers = frozenset[str]()

    def _unknown(self, function: cst.FunctionDef) -> set[str]:
        """What may read it, as far as it is not here: methods of a base class.

        Also attributes, which may be properties.
        """
        every = [part for each in self._classes for part in each.body.body]
        lines = [each for each in every if isinstance(each, cst.SimpleStatementLine)]
        made = {each for part in every for each in _changed(part)} | {"self.training"}
        made |= {f"self.{each}" for each in assigned(lines)}
        bases = [each.value for one in self._classes for each in one.bases]
        here = {each.name.value for each in self._classes}
        is_open = any(brief(each) not in (*here, *_MODULES) for each in bases)
        inside = list(nodes(function.body))
        asked = [n.func for n in inside if isinstance(n, cst.Call)]
        if is_open:
            asked += [n for n in inside if isinstance(n, cst.Attribute)]
        own = {name for each in asked if (name := dotted(each) or "").count(".") == 1}
        return {"super"} | {n for n in own - made if n.startswith("self.")}

    def assert_known(self) -> None:
        """Refuses what code may read that nothing in the function names."""
        attributes = {name.rpartition(".")[2] for name in self._names if "." in name}
        for node in nodes(self.site.module):
            given = dotted(node.value) if isinstance(node, cst.Arg) else None
            if given in self._methods and given in self._touched:
                raise Refused(f"`{given}` may be called at any time")
        for each in self.site.module.body:
            if not isinstance(each, cst.ClassDef):
                continue
            is_own = each in self._classes
            for node in nodes(each):
                is_other = isinstance(node, cst.Attribute) and (
                    node.attr.value in attributes
                    and not (dotted(node) or "").startswith("self.")
                )
                if is_other or (not is_own and _is_one(node, self._names)):
                    raise Refused(f"`{brief(node)}` may be read in the graph")
                if is_own and self._is_kept(node):
                    raise Refused(f"`{brief(node)}` may read it at any time")

    def _is_kept(self, node: cst.CSTNode) -> bool:
        """Whether code of the class may keep something that reads its attributes."""
        if isinstance(node, cst.Lambda):
            return _mentions(node, self._touched)
        if not isinstance(node, cst.Call) or node in nodes(self.site.function):
            return False
        asks = (dotted(node.func) or "") in _ASKS
        return not asks and any(dotted(each.value) == "self" for each in node.args)

    def is_in(self, node: cst.CSTNode) -> bool:
        if _mentions(node, self._touched) or self._gives_itself(node):
            return True
        return any(self._origins(each) & self._touched for each in self._modified(node))

    def _gives_itself(self, node: cst.CSTNode) -> bool:
        given = (dotted(n.value) for n in nodes(node) if isinstance(n, cst.Arg))
        return "self" in given or _mentions(node, {"self.__dict__"})

    def assert_free(
        self, moved: Sequence[Statement], graph: Sequence[Statement]
    ) -> None:
        """Refuses if statements cannot change places with others of the graph."""
        for one, each in itertools.product(moved, graph):
            mine, theirs = self._written(one), self._written(each)
            used, asked = self._used(one), self._used(each)
            if (
                theirs & used
                or mine & (theirs | asked)
                or self._shares(used | mine, each)
                or self._shares(asked | theirs, one)
                or (self._outputs(one) and self._may_output(each))
                or any(
                    _raises(part) or self._gives_itself(part) for part in (one, each)
                )
                or not self._is_known(one)
            ):
                raise Refused(
                    f"`{brief(one)}` cannot change places with `{brief(each)}`"
                )

    def _shares(self, used: set[str], changing: Statement) -> bool:
        """Whether a statement may change in place what another one uses."""
        changed = [self._origins(each) for each in self._modified(changing)]
        return any(self._origins(each) & one for one in changed for each in used)

    def _origins(self, name: str) -> set[str]:
        return _origins(self.site.function, name)

    def _modified(self, node: cst.CSTNode) -> set[str]:
        """What may be changed in place, also by a function that it is passed to."""
        found = changed_in_place([node])
        for call in (n for n in nodes(node) if isinstance(n, cst.Call)):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in _ADDING:
                found.add(dotted(call.func.value) or "")
            if self._changes_arguments(call):
                found |= {start_of(each.value) or "" for each in call.args}
            if self._is_module(call):  # it may have buffers
                found.add(dotted(call.func) or "")
        return _with_owners(found - {""})

    def _is_module(self, call: cst.Call) -> bool:
        name = dotted(call.func) or ""
        return name.startswith("self.") and name not in self._methods

    def _is_known(self, node: cst.CSTNode) -> bool:
        """Whether all that a statement calls changes nothing but what it names."""
        return all(
            _is_numeric(dotted(each.func) or "")
            or self._values.effect_of_call(each) is None
            or is_output(each, self._values)
            or (isinstance(f := each.func, cst.Attribute) and f.attr.value in _ADDING)
            for each in self._calls(node)
        )

    def _changes_arguments(self, call: cst.Call) -> bool:
        name = dotted(call.func) or ""
        if any(e.keyword and e.keyword.value in ("out", "inplace") for e in call.args):
            return True
        if name.startswith("self."):
            return self._has_inplace
        known = self._values.effect_of_call(call) is None or _is_numeric(name)
        return isinstance(call.func, cst.Name) and not known and name not in BUILTINS

    def _around(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """A statement, and the functions here that it calls."""
        found = [node]
        for each in found:
            named = sorted((_used(each) | _written(each)) & self._methods.keys())
            found += [m for n in named if (m := self._methods[n]) not in found]
        return found

    def changed(self, node: cst.CSTNode) -> set[str]:
        """What a statement changes, with what that may be a view of."""
        found = self._written(node) | self._modified(node)
        return found.union(*map(self._origins, self._modified(node)))

    def _written(self, node: cst.CSTNode) -> set[str]:
        return _with_owners(_written(node) | self._of_functions(node, _written))

    def _used(self, node: cst.CSTNode) -> set[str]:
        return _used(node) | self._of_functions(node, _used)

    def _of_functions(
        self, node: cst.CSTNode, names: Callable[[cst.CSTNode], set[str]]
    ) -> set[str]:
        """What functions that are called change or use, that is not their own."""
        _, *functions = self._around(node)
        found = set[str]()
        for each in functions:
            assert isinstance(each, cst.FunctionDef)
            own = assigned(each) - _declared(each) | {"self", *parameters(each)}
            found |= {name for name in names(each.body) if name not in own}
        return found

    def draws(self, node: cst.CSTNode) -> bool:
        return any(_DRAWS.search(self.site.code(each)) for each in self._around(node))

    def _calls(self, node: cst.CSTNode) -> list[cst.Call]:
        """The calls in a statement, and in the functions here that it calls."""
        every = (n for each in self._around(node) for n in nodes(each))
        return [
            n
            for n in every
            if isinstance(n, cst.Call) and dotted(n.func) not in self._methods
        ]

    def _outputs(self, node: cst.CSTNode) -> bool:
        return any(is_output(each, self._values) for each in self._calls(node))

    def _may_output(self, node: cst.CSTNode) -> bool:
        """Whether it may print something, as unknown functions do."""
        return any(
            self._values.effect_of_call(each) is not None
            and not (self._is_module(each) and self._is_of_torch(each))
            for each in self._calls(node)
        )

    def _is_of_torch(self, call: cst.Call) -> bool:
        """Whether the class makes a layer of torch's own."""
        made = [
            value
            for each in self._classes
            for method in each.body.body
            if isinstance(method, cst.FunctionDef)
            for value in values_of(method, dotted(call.func) or "")
        ]
        names = (isinstance(v, cst.Call) and self._values.dotted(v.func) for v in made)
        return bool(made) and all((n or "").startswith(_LAYERS) for n in names)

    def is_changed_in(self, node: cst.CSTNode) -> bool:
        return bool(self._names & set(_changed(node)))

    def is_computed_in(self, node: Statement) -> bool:
        """Whether a statement only computes with numbers that were made of it."""
        line = only(node)
        return isinstance(line, cst.Assign) and line.value in self.numbers(line)

    def note(self, names: set[str]) -> None:
        self._numbers = self._numbers | names

    def numbers(self, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
        """The largest expressions that compute a number of it, and of nothing else."""
        if isinstance(node, cst.BaseExpression) and self._is_number(node):
            is_used = _mentions(node, self._touched | self._numbers)
            if is_used and not isinstance(node, cst.Name):
                yield node
            return
        if may_skip(node) or isinstance(node, cst.BaseComp):
            return
        for child in node.children:
            yield from self.numbers(child)

    def _is_number(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.BinaryOperation(left=left, right=right):
                return self._is_number(left) and self._is_number(right)
            case cst.UnaryOperation(expression=value):
                return self._is_number(value)
            case cst.Call(func=func, args=args):
                name = dotted(func) or ""
                known = _is_numeric(name) or self._computes(name)
                given = [each.value for each in args]
                lists = [each for each in given if dotted(each) in self._lists]
                rest = [each for each in given if each not in lists]
                return known and all(map(self._is_number, rest))
            case cst.Name() | cst.Attribute():
                name = dotted(node) or ""
                if name in self._touched | self._numbers:
                    return name in (self._names - self._lists) | self._numbers
                return name.startswith("self.") and name.count(".") == 1
        return isinstance(node, cst.BaseNumber)

    def untraced(self, statement: Statement) -> Statement:
        """Functions that read it are not compiled on their own, for each value."""
        called = (node.func for node in nodes(statement) if isinstance(node, cst.Call))
        own = {f: n for f in called if (n := dotted(f)) in self._methods}
        new: dict[cst.CSTNode, cst.BaseExpression] = {
            func: cst.parse_expression(f"torch.compiler.disable({name})")
            for func, name in own.items()
        }
        return replaced_in(statement, new)

    def _computes(self, method: str) -> bool:
        """Whether a method only computes with numbers."""
        found = self._methods.get(method)
        if found is None:
            return False
        calls = (node for node in nodes(found.body) if isinstance(node, cst.Call))
        return all(_is_numeric(dotted(call.func) or "") for call in calls)


@functools.lru_cache(maxsize=1 << 12)
def _origins(function: cst.FunctionDef, name: str) -> set[str]:
    return origins(function, name)


def _bases(owner: cst.ClassDef, module: cst.Module) -> list[cst.ClassDef]:
    """The classes of a module that a class comes from."""
    known = {e.name.value: e for e in module.body if isinstance(e, cst.ClassDef)}
    found = [owner]
    for each in found:
        named = (known.get(brief(base.value)) for base in each.bases)
        found += [base for base in named if base is not None and base not in found]
    return found[1:]


def _declared(function: cst.FunctionDef) -> set[str]:
    """The globals that a function may assign."""
    declaring = (n for n in nodes(function.body) if isinstance(n, cst.Global))
    return {name.name.value for each in declaring for name in each.names}


def _with_owners(names: set[str]) -> set[str]:
    """Names with the attributes of `self` that they are a part of."""
    parts = (name.split(".") for name in names if name.startswith("self."))
    return names | {".".join(each[:2]) for each in parts}


def _is_one(node: cst.CSTNode, names: set[str]) -> bool:
    return isinstance(node, cst.Name) and node.value in names


def _raises(node: cst.CSTNode) -> bool:
    return any(isinstance(each, (cst.Raise, cst.Assert)) for each in nodes(node))


def _is_numeric(function: str) -> bool:
    return function in _NUMERIC or function.startswith("math.")


def _changed(root: cst.CSTNode) -> Iterator[str]:
    """What code assigns, adds something to, or sets an item of."""
    for node in nodes(root):
        if isinstance(node, _ASSIGNING):
            target = node.target
            if isinstance(target, (cst.Tuple, cst.List)):
                yield from (start_of(each.value) or "" for each in target.elements)
            else:
                yield start_of(target) or ""
            continue
        called = node.func if isinstance(node, cst.Call) else None
        if isinstance(called, cst.Attribute) and called.attr.value in _ADDING:
            yield dotted(called.value) or ""


def _mentions(root: cst.CSTNode, names: set[str]) -> bool:
    return bool((_used(root) | _written(root)) & names)


def _parted(
    state: _State, sorter: Sorter
) -> tuple[list[Statement], list[Statement], list[Statement]]:
    """The statements before the graph, in it, and after it."""
    before: list[Statement] = []
    graph: list[Statement] = []
    after: list[Statement] = []
    *first, last = body_of(state.site.function)
    for each in first:
        if any(isinstance(node, cst.Return) for node in nodes(each)):
            raise NoPattern("the function returns in several places")
    for each in _with_names(state, [*first, last]):
        is_return = isinstance(only(each), cst.Return)
        is_global = isinstance(only(each), cst.Global)
        stays = is_global or state.is_in(each) or state.is_computed_in(each)
        stays |= not graph and _raises(each) and sorter.is_light(each)
        if not stays and not (is_return and after and sorter.is_light(each)):
            state.assert_free(after, [each])
            if assigned(each) & state.declared:
                raise Refused(f"`{brief(each)}` changes a global")
            graph.append(
                _named(each, state.site, after) if is_return and after else each
            )
            continue
        if not sorter.is_light(each):
            raise Refused(f"`{brief(each)}` does more than Python does")
        if state.draws(each):
            raise Refused(f"`{brief(each)}` draws random numbers")
        made = {name for one in graph for name in state.changed(one)}
        if after or is_return or _used(each) & made:
            after.append(state.untraced(each))
            continue
        state.assert_free([each], graph)
        before.append(state.untraced(each))
        state.note(assigned(each) - set(parameters(state.site.function)))
    return before, graph, after


@functools.lru_cache(maxsize=1 << 12)
def _written(node: cst.CSTNode) -> set[str]:
    return assigned(node) | changed_in_place([node]) | set(_changed(node))


@functools.lru_cache(maxsize=1 << 12)
def _used(node: cst.CSTNode) -> set[str]:
    if isinstance(node, cst.SimpleStatementLine) and isinstance(only(node), cst.Global):
        return set()
    dotted_names = {
        dotted(n) or "" for n in nodes(node) if isinstance(n, cst.Attribute)
    }
    return reads(node) | dotted_names


def _with_names(state: _State, block: Sequence[Statement]) -> Iterator[Statement]:
    """The statements, with names for the numbers that the graph needs."""
    count = itertools.count(1)
    for each in block:
        line, found = only(each), list[cst.BaseExpression]()
        if isinstance(line, (cst.Assign, cst.Return)) and not state.is_changed_in(each):
            found = list(state.numbers(each))
        if line is None or getattr(line, "value", None) in found:
            found = []
        named: dict[cst.CSTNode, cst.BaseExpression] = {
            number: cst.Name(fresh(state.site.module, f"number_{next(count)}"))
            for number in found
        }
        rest = replaced_in(each, named)
        if state.is_in(rest):  # it may change what a number is computed of
            yield each
            continue
        for number, name in named.items():
            code = f"{state.site.code(name)} = {state.site.code(number)}\n"
            yield cst.parse_statement(code)
        yield rest


def _named(each: Statement, site: Site, after: list[Statement]) -> Statement:
    """The statement that computes what a function returns, which another one does."""
    line, name = only(each), fresh(site.module, "result")
    assert isinstance(line, cst.Return) and line.value is not None
    value = site.code(line.value)
    after.append(cst.parse_statement(f"return {name}\n"))
    return cst.parse_statement(f"{name} = {value}\n")
