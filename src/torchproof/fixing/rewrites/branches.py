"""`if` on a tensor whose branches give values becomes `torch.where`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from torchproof.fixing.rewrites import names
from torchproof.fixing.rewrites.conditions import Both, Either, Python, Reader, Tensor
from torchproof.fixing.rewrites.formatting import parenthesised, wrapped
from torchproof.fixing.rewrites.operators import (
    brief,
    dotted,
    hazard,
    nodes,
    replaced_in,
    unsafe_operands,
)
from torchproof.fixing.rewrites.scalars import (
    Scalars,
    boolean,
    is_representable,
)
from torchproof.fixing.rewrites.site import Draft, NoPattern, Refused, Site, statements
from torchproof.fixing.rewrites.values import Values

_RETURN = "return"
_TEST = "_torchproof_condition_"  # stands for the condition until it gets its name


def select(site: Site) -> Draft:
    """Computes both branches and selects with `torch.where`."""
    form, title = _Where(site), "compute both values, select with torch.where"
    chosen = _conditional_expression(site)
    if chosen is not None:
        text = form.expression(chosen)
        new = cst.parse_expression(text)
        return Draft(title, site.replaced({chosen: new}, imports=["torch"]))
    statement = site.statement
    if not isinstance(statement, cst.If):
        raise Refused("there is no `if` whose branches could be evaluated")
    rest: list[cst.BaseStatement] = []
    if names.ends_with(names.body(statement), cst.Return) and not statement.orelse:
        rest = _rest(site, statement)
    made = form.statements(statement, rest)
    changes: dict[cst.CSTNode, cst.CSTNode | Sequence[cst.BaseStatement]] = {}
    if not isinstance(made[0], cst.If):  # else the rest runs if Python says so
        changes = dict.fromkeys(rest, ())
    above = site.parent(statement)
    if isinstance(above, cst.If) and above.orelse is statement:
        block = cst.IndentedBlock(body=made)
        changes[statement] = cst.Else(body=block, leading_lines=statement.leading_lines)
    else:
        changes[statement] = made
    return Draft(title, site.replaced(changes, imports=["torch"]))


def _conditional_expression(site: Site) -> cst.IfExp | None:
    """The `a if c else b` whose condition is the tensor."""
    wanted = site.expression
    inside = [
        node
        for node in nodes(site.statement)
        if isinstance(node, cst.IfExp)
        and (
            site.range_of(node.test).start.line == site.line
            if wanted is None
            else wanted in set(nodes(node.test))
        )
    ]
    return inside[-1] if inside else None


def _rest(site: Site, statement: cst.If) -> list[cst.BaseStatement]:
    """The statements after an `if` that returns, up to the end of the function."""
    rest = names.following(site, statement)
    block = site.parent(statement)
    if block is not site.function.body or not rest:
        raise NoPattern("what runs after the early return is not in one block")
    if not names.ends_with(rest, cst.Return):
        raise NoPattern("the function may end without a value")
    return rest


@dataclass(frozen=True)
class _Test:
    """A condition in its parts.

    It holds if all of `python` and the tensor do, or if one of `or_python` does.
    """

    tensor: str  # a boolean tensor without dimensions
    python: tuple[str, ...] = ()
    or_python: tuple[str, ...] = ()


def _test(site: Site, test: cst.BaseExpression) -> _Test:
    whole = Reader(site, Values(site)).condition(test)
    parts = whole.operands if isinstance(whole, Both | Either) else (whole,)
    python = tuple(each.text for each in parts if isinstance(each, Python))
    tensors = [each.text for each in parts if isinstance(each, Tensor)]
    if len(tensors) != 1 or len(python) + 1 != len(parts):
        raise Refused(f"`{brief(test)}` mixes tensors and Python values")
    text = boolean(tensors[0])
    if not Scalars(site).is_scalar(cst.parse_expression(text)):
        text = f"{parenthesised(text)}.reshape(())"  # raises if it is not one element
    either = isinstance(whole, Either)
    return _Test(
        text,
        python=() if either else python,
        or_python=python if either else (),
    )


@dataclass
class _Branch:
    """What one branch computes: statements that run first, then values for targets."""

    first: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)
    # Names of the branch that the other code uses too, and what they are called here.
    names: dict[str, str] = field(default_factory=dict)
    lists: set[str] = field(default_factory=set)  # chosen for each element already
    # Values that are the target's old one where they are not selected.
    scaled: dict[str, str] = field(default_factory=dict)


class _Where:
    """Writes an `if` as `torch.where(condition, a, b)`."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._taken: set[str] = set()
        self._test = _Test("")
        self._selected = ""  # the condition's text or name
        self._branch_holds = True

    def expression(self, node: cst.IfExp) -> str:
        self._test = _test(self.site, node.test)
        if self._test.or_python:
            raise NoPattern("a Python condition and a tensor decide together")
        self._selected = self._test.tensor
        branches = []
        for value, self._branch_holds in ((node.body, True), (node.orelse, False)):
            self.check_value(value)
            branches.append(self.value(value, _Branch()))
        text = self._where(*branches)
        if self._test.python:
            guards = " and ".join(self._test.python)
            text = f"({text} if {guards} else {branches[1]})"
        return text

    def statements(
        self, statement: cst.If, rest: Sequence[cst.BaseStatement]
    ) -> list[cst.BaseStatement]:
        self._test = _test(self.site, statement.test)
        blocks = _blocks(statement, rest)
        self._selected = _TEST
        branches = []
        for block, self._branch_holds in zip(blocks, (True, False), strict=True):
            branches.append(
                self.branch(block, statement, ends=bool(rest) and block == rest)
            )
        selecting = self._selecting(statement, *branches)
        lines = [*branches[0].first, *branches[1].first, *selecting]
        test = self._test.tensor
        many = any(branch.lists for branch in branches)
        if many or "".join(lines).count(_TEST) > 1:
            name = self.fresh("condition")
            lines = [f"{name} = {test}", *(each.replace(_TEST, name) for each in lines)]
        lines = [each.replace(_TEST, test) for each in lines]
        return self.guarded(lines, statement, self._test, branches)

    def fresh(self, wanted: str) -> str:
        name = names.fresh(self.site.function, wanted, self._taken)
        self._taken.add(name)
        return name

    def guarded(
        self,
        lines: Sequence[str],
        statement: cst.If,
        test: _Test,
        branches: Sequence[_Branch],
    ) -> list[cst.BaseStatement]:
        """The new statements, under the Python part of the condition."""
        indent = self.site.range_of(statement).start.column
        inner = indent + 4 * bool(test.python)
        text = "".join(wrapped(line, inner) for line in lines)
        yes, no = (
            names.body(statement),
            names.body(statement.orelse) if statement.orelse else [],
        )
        comments = [*branches[0].comments, *branches[1].comments]
        if test.python:
            text = f"if {' and '.join(test.python)}:\n{_indented(text)}"
            if no:
                text += f"else:\n{_indented(self._code(no))}"
        if test.or_python:
            first = f"if {' or '.join(test.or_python)}:\n{_indented(self._code(yes))}"
            text = f"{first}else:\n{_indented(text)}"
        return _with_comments(statements(text), comments)

    def _code(self, block: Sequence[cst.BaseStatement]) -> str:
        return "".join(self.site.module.code_for_node(each) for each in block)

    def check_value(self, value: cst.BaseExpression) -> None:
        """Refuses what a tensor cannot hold."""
        if isinstance(value, cst.Name) and value.value in ("None", "True", "False"):
            raise Refused(f"a branch gives {value.value}, which torch cannot select")
        kinds = (cst.BaseString, cst.List, cst.Dict, cst.Tuple, cst.BaseComp)
        if isinstance(value, kinds):
            raise Refused(f"a branch gives `{brief(value)}`, which is not a tensor")

    # -- branches --------------------------------------------------------------------

    def branch(
        self, block: Sequence[cst.BaseStatement], statement: cst.If, *, ends: bool
    ) -> _Branch:
        """Reads a branch. `ends`: the function returns behind it."""
        steps = [small for line in block for small in self._small(line)]
        branch = _Branch(comments=[c for line in block for c in _comments(line)])
        for index, step in enumerate(steps):
            later = steps[index + 1 :]
            if isinstance(step, cst.Pass):
                continue
            if isinstance(step, cst.Return):
                self._return(step, branch)
            elif isinstance(step, cst.Assign):
                self._assign(step, branch, statement, later=None if ends else later)
            elif not _is_text(step):
                raise Refused(f"a branch contains `{brief(step)}`")
        return branch

    def _small(self, line: cst.BaseStatement) -> Sequence[cst.BaseSmallStatement]:
        if not isinstance(line, cst.SimpleStatementLine):
            raise Refused(f"a branch contains a block: `{_header(line)}`")
        return line.body

    def text(self, node: cst.CSTNode, branch: _Branch) -> str:
        return self.site.code(names.renamed(node, branch.names))

    def _return(self, step: cst.Return, branch: _Branch) -> None:
        value = step.value
        if value is None:
            raise NoPattern("a branch returns without a value")
        if isinstance(value, cst.Tuple):
            for index, each in enumerate(value.elements):
                self._add(f"{_RETURN} {index}", each.value, branch)
        else:
            self._add(_RETURN, value, branch)

    def _add(self, target: str, value: cst.BaseExpression, branch: _Branch) -> None:
        self.check_value(value)
        branch.values[target] = self.value(value, branch)
        if scaled := self._scaled(value, target, branch):
            branch.scaled[target] = scaled

    def _assign(
        self,
        step: cst.Assign,
        branch: _Branch,
        statement: cst.If,
        *,
        later: Sequence[cst.CSTNode] | None,
    ) -> None:
        if len(step.targets) != 1:
            raise Refused(f"a branch assigns twice: `{brief(step)}`")
        target, value = step.targets[0].target, step.value
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            if len(target.elements) != len(value.elements):
                raise Refused(f"a branch unpacks: `{brief(step)}`")
            texts = [self._old(each.value, branch) for each in value.elements]
            pairs = zip(target.elements, value.elements, strict=True)
            for (to, _), text in zip(pairs, texts, strict=True):
                self._store(to.value, text, branch, statement, later=later)
            return
        self._store(target, value, branch, statement, later=later)

    def _old(self, value: cst.BaseExpression, branch: _Branch) -> cst.BaseExpression:
        if set(branch.values) & names.reads(value):
            raise Refused(f"the order of the assignments matters: `{brief(value)}`")
        return value

    def _store(
        self,
        target: cst.BaseExpression,
        value: cst.BaseExpression,
        branch: _Branch,
        statement: cst.If,
        *,
        later: Sequence[cst.CSTNode] | None,
    ) -> None:
        name = dotted(target)
        if isinstance(target, cst.Name):
            self._name(target.value, value, branch, statement, later=later)
        elif isinstance(target, cst.Attribute) and name is not None:
            if later is None:
                raise Refused(f"`{name}` is stored only if the function goes on")
            self._once(name, branch, later)
            self._add(name, value, branch)
        elif isinstance(target, cst.Subscript):
            text = self.site.code(target)
            if later is None or hazard(target) or Values(self.site).effect(target):
                raise Refused(f"storing to `{brief(target)}` may raise")
            self._once(text, branch, later)
            self._add(text, value, branch)
        else:
            raise Refused(f"a branch assigns to `{brief(target)}`")

    def _once(self, text: str, branch: _Branch, later: Sequence[cst.CSTNode]) -> None:
        """Refuses if the branch uses a place again that it has written to."""
        root = text.partition("[")[0]
        again = any(dotted(node) == root for each in later for node in nodes(each))
        if text in branch.values or again:
            raise Refused(f"a branch uses `{text}` after it has stored to it")

    def _name(
        self,
        name: str,
        value: cst.BaseExpression,
        branch: _Branch,
        statement: cst.If,
        *,
        later: Sequence[cst.CSTNode] | None,
    ) -> None:
        ends = later is None
        kept = not ends and names.is_needed_after(self.site, statement, name)
        read_again = any(name in names.reads(each) for each in later or ())
        again = any(name in names.assigned(each) for each in later or ())
        changed = any(names.assigned(each) & names.reads(value) for each in later or ())
        branch.values.pop(name, None)
        if kept and not (later or read_again) and (each := _each_of(name, value)):
            self._select_each(name, each, branch)
            return
        if kept and not (read_again or again or changed):
            self._add(name, value, branch)
            return
        text = self.value(value, branch)
        elsewhere = name in names.reads(statement) or name in names.reads(value)
        shared = elsewhere if ends else kept or self._is_used_twice(name, statement)
        new = self.fresh(f"new_{name}") if shared else name
        branch.first.append(f"{new} = {text}")
        if new != name:
            branch.names[name] = new
        if kept:
            branch.values[name] = new

    def _select_each(self, name: str, each: cst.ListComp, branch: _Branch) -> None:
        """`[f(a) for a in parts]` in place of `parts`, with a choice for each of them.

        The list is a new one in any case.
        """
        item = cst.ensure_type(each.for_in.target, cst.Name)
        text = self._scaled(each.elt, item.value, branch) or self._where(
            *self._ordered(self.value(each.elt, branch), item.value)
        )
        loop = self.site.code(each.for_in)
        branch.first.append(f"{name} = [{text} {loop}]")
        branch.lists.add(name)

    def _scaled(
        self, value: cst.BaseExpression, place: str, branch: _Branch
    ) -> str | None:
        """`x / torch.where(condition, a, 1)` for `x / a` in place of `x`.

        A division by 1 gives `x` and its gradient, and that of `a` is not used.
        """
        is_scaled = isinstance(value, cst.BinaryOperation) and isinstance(
            value.operator, (cst.Multiply, cst.Divide)
        )
        if not is_scaled or Scalars(self.site).is_linear(value):
            return None
        binary = cst.ensure_type(value, cst.BinaryOperation)
        if self.site.module.code_for_node(binary.left).strip() != place:
            return None
        bare = binary.right.with_changes(lpar=[], rpar=[])
        one, other = self._ordered(self.value(bare, branch), "1")
        operator = self.site.module.code_for_node(binary.operator)
        return f"{place}{operator}torch.where({self._selected}, {one}, {other})"

    def _ordered(self, value: str, other: str) -> tuple[str, str]:
        """The values where the condition holds, and where it does not."""
        return (value, other) if self._branch_holds else (other, value)

    def _is_used_twice(self, name: str, statement: cst.If) -> bool:
        """Whether the condition or both branches use a name."""
        if name in names.reads(statement.test):
            return True
        other = statement.orelse
        if other is None:
            return False
        return name in names.reads(other) and name in names.reads(statement.body)

    # -- selecting ------------------------------------------------------------------

    def value(self, node: cst.BaseExpression, branch: _Branch) -> str:
        for why in (Values(self.site).effect(node), hazard(node)):
            if why is not None:
                raise Refused(f"a branch must not run if it is not selected: {why}")
        return self._protected(names.renamed(node, branch.names))

    def _protected(self, node: cst.BaseExpression) -> str:
        """The value, in which nothing can give NaN gradients if it is not selected."""
        scalars = Scalars(self.site)
        risks: set[cst.CSTNode] = set()
        for each in nodes(node):
            if scalars.is_linear(each):
                continue
            operands = unsafe_operands(each)
            if operands is None:
                raise Refused(
                    f"the gradient of `{brief(each)}` may be NaN where the branch is"
                    " not selected"
                )
            risks |= {each for each in operands if not scalars.is_plain(each)}
        return self.site.code(replaced_in(node, dict.fromkeys(risks, self._safe)))

    def _safe(self, operand: cst.CSTNode) -> cst.BaseExpression:
        bare = operand.with_changes(lpar=[], rpar=[])
        text = self.site.code(bare)
        first, second = self._ordered(text, "1")
        return cst.parse_expression(f"torch.where({self._selected}, {first}, {second})")

    def _where(self, a: str, b: str) -> str:
        self._assert_same_kind(a, b)
        numbers = [each for each in (a, b) if _number(each) is not None]
        if len(numbers) == 2 and not all(
            is_representable(_number(each) or 0.0) for each in numbers
        ):
            a = f"torch.tensor({a}, dtype=torch.float64)"
        return f"torch.where({self._selected}, {a}, {b})"

    def _assert_same_kind(self, a: str, b: str) -> None:
        """A number in place of a tensor has other dimensions."""
        scalars = Scalars(self.site)
        parsed = [cst.parse_expression(each) for each in (a, b)]
        plain = [each for each in parsed if scalars.is_plain(each)]
        if len(plain) == 1 and not all(scalars.is_scalar(each) for each in parsed):
            raise Refused(
                f"one branch gives a number, `{brief(plain[0])}`, not a tensor"
            )

    def _selecting(self, statement: cst.If, yes: _Branch, no: _Branch) -> list[str]:
        """The statements that select, one for each target."""
        targets = list(dict.fromkeys((*yes.values, *no.values)))
        if lists := yes.lists | no.lists:
            if (
                targets
                or (yes.lists and no.lists)
                or lists & names.changed_in_place(names.later(self.site, statement))
            ):
                raise NoPattern("the branches compute more than one list")
            return []
        if not targets:
            raise NoPattern("nothing that the branches compute is used")
        returned = [each for each in targets if each.startswith(_RETURN)]
        if returned:
            if targets != returned or set(yes.values) != set(no.values):
                raise NoPattern("only one of the branches returns")
            parts = [self._where(yes.values[t], no.values[t]) for t in targets]
            return [f"return {', '.join(parts)}"]
        pairs = [(target, self._selected_value(target, yes, no)) for target in targets]
        written = {t.partition("[")[0] for t in targets if "[" in t}
        written |= names.changed_in_place(names.later(self.site, statement))
        for target in targets:
            self._check_target(target, statement, yes, no)
            self._assert_no_alias(target, written)
        depend = any(
            set(targets[:i]) & ast_reads(text) for i, (_, text) in enumerate(pairs)
        )
        if depend:
            left = ", ".join(targets)
            return [f"{left} = {', '.join(text for _, text in pairs)}"]
        return [f"{target} = {text}" for target, text in pairs]

    def _selected_value(self, target: str, yes: _Branch, no: _Branch) -> str:
        scaled = {**yes.scaled, **no.scaled}.get(target)
        if scaled and not (target in yes.values and target in no.values):
            return scaled
        return self._where(
            yes.values.get(target, target), no.values.get(target, target)
        )

    def _check_target(
        self, target: str, statement: cst.If, yes: _Branch, no: _Branch
    ) -> None:
        both = target in yes.values and target in no.values
        if "[" in target:
            return
        if both and "." in target:
            return
        if not both and "." not in target and not self._has_value(target, statement):
            raise Refused(f"`{target}` may have no value before the `if`")
        if not both:
            self._check_old(target)
        if target in names.changed_in_place(names.later(self.site, statement)):
            raise Refused(f"`{target}` is later changed in place: it may be an alias")

    def _check_old(self, name: str) -> None:
        """Refuses if what the branches leave as it is may be no tensor."""
        parameter = names.parameters(self.site.function).get(name)
        default = parameter.default if parameter is not None else None
        for value in (default, *names.values_of(self.site.function, name)):
            if value is not None:
                self.check_value(value)

    def _assert_no_alias(self, target: str, written: set[str]) -> None:
        """A selected value is a copy: writes to the original do not reach it."""
        place = target.partition("[")[0]
        for other in written - {place}:
            if names.may_share(self.site.function, place, other):
                why = f"`{other}`, which is changed in place, may be an alias"
                raise Refused(f"{why} of `{place}`")

    def _has_value(self, name: str, statement: cst.If) -> bool:
        if name in names.parameters(self.site.function):
            return True
        line = self.site.range_of(statement).start.line
        before = (
            each
            for each in nodes(self.site.function.body)
            if isinstance(each, cst.SimpleStatementLine)
            and self.site.range_of(each).end.line < line
        )
        return any(name in names.assigned(each) for each in before)


def _each_of(name: str, value: cst.BaseExpression) -> cst.ListComp | None:
    """A list with something else for each element of the list that it replaces."""
    if not isinstance(value, cst.ListComp):
        return None
    loop = value.for_in
    is_plain = not (loop.ifs or loop.inner_for_in or loop.asynchronous)
    is_own = dotted(loop.iter) == name and isinstance(loop.target, cst.Name)
    return value if is_plain and is_own else None


def _is_text(step: cst.BaseSmallStatement) -> bool:
    return isinstance(step, cst.Expr) and isinstance(step.value, cst.BaseString)


def _comments(line: cst.BaseStatement) -> list[str]:
    """The comments of a statement."""
    found = [
        each.comment.value
        for each in getattr(line, "leading_lines", ())
        if each.comment is not None
    ]
    after = getattr(line, "trailing_whitespace", None)
    if after is not None and after.comment is not None:
        found.append(after.comment.value)
    return found


def _header(node: cst.CSTNode) -> str:
    return brief(node).partition(":")[0]


def _blocks(
    statement: cst.If, rest: Sequence[cst.BaseStatement]
) -> tuple[list[cst.BaseStatement], list[cst.BaseStatement]]:
    other = statement.orelse
    if isinstance(other, cst.If):
        raise Refused("an `elif` follows")
    return names.body(statement), list(rest) if other is None else names.body(other)


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())


def _number(text: str) -> float | None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return float(value) if isinstance(value, int | float) else None


def ast_reads(text: str) -> set[str]:
    """The names and dotted names in an expression."""
    tree = ast.parse(text, mode="eval")
    return {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
    }


def _with_comments(
    made: list[cst.BaseStatement], comments: Iterable[str]
) -> list[cst.BaseStatement]:
    lines = [cst.EmptyLine(comment=cst.Comment(each)) for each in comments]
    blank = [cst.EmptyLine(indent=False)]  # without spaces at its end
    first, *rest = made
    return [
        first.with_changes(leading_lines=lines),
        *(
            each.with_changes(leading_lines=blank) if each.leading_lines else each  # type: ignore[attr-defined]
            for each in rest
        ),
    ]
