"""`if tensor: break` in a loop: all rounds run, torch.where keeps earlier results."""

from __future__ import annotations

import libcst as cst

from torchproof.checking import words
from torchproof.fixing.rewrites import names
from torchproof.fixing.rewrites.branches import condition_of, protected
from torchproof.fixing.rewrites.operators import (
    brief,
    called,
    layer_calls,
    nodes,
    replaced_in,
)
from torchproof.fixing.rewrites.scalars import Scalars
from torchproof.fixing.rewrites.site import (
    Changes,
    Draft,
    NoPattern,
    Refused,
    Site,
    statements,
)
from torchproof.fixing.rewrites.values import Values

# What gives a larger tensor in each round.
_GROWING = words("cat concat concatenate hstack vstack dstack pad append")
_LEAVES = (cst.Break, cst.Continue, cst.Return, cst.Yield, cst.Await)
_TITLE = "run all rounds of the loop, keep earlier results with torch.where"


def all_rounds(site: Site) -> Draft:
    """The loop goes on after its end, and what it computes then is not used."""
    loop, branch = _left_at(site)
    block = names.body(loop)
    index = block.index(branch)
    round_ = _Round(site, loop, branch)
    changes: Changes = {}
    for number, line in enumerate(block):
        if line is not branch:
            changes |= round_.selecting(line, is_last=number > index)
    done, first = round_.done, round_.carried[0]
    test = condition_of(site, branch.test)
    changes[branch] = statements(f"{done} = torch.logical_or({done}, {test})\n")
    start = statements(f"{done} = {first}.new_zeros((), dtype=torch.bool)\n")
    changes[loop] = [*start, loop]
    text = site.replaced(changes, ["torch"])
    return Draft(_TITLE, text, "unsafe" if round_.has_layers else "safe")


def _left_at(site: Site) -> tuple[cst.For, cst.If]:
    """The loop, and the statement that leaves it and does nothing else."""
    branch, loop = site.statement, site.around(site.statement, cst.For)
    if not isinstance(branch, cst.If) or branch.orelse is not None or loop is None:
        raise NoPattern("the condition does not end a loop")
    inside = [node for node in nodes(loop.body) if isinstance(node, _LEAVES)]
    if branch not in loop.body.body or len(inside) != 1 or loop.orelse is not None:
        raise NoPattern("the loop is left in more than one way")
    [*first, last] = names.body(branch)
    if first or not isinstance(names.only(last), cst.Break):
        raise NoPattern("the branch does more than leave the loop")
    return loop, branch


class _Round:
    """The statements of a loop, and what they hand on to the next round."""

    def __init__(self, site: Site, loop: cst.For, branch: cst.If) -> None:
        self.site, self.loop = site, loop
        self.done = names.fresh(site.function, "done")
        self.has_layers = False
        self.tensors = names.reads(branch.test)
        lines = [each for each in names.body(loop) if each is not branch]
        found = [name for line in lines for name in sorted(names.assigned(line))]
        self.carried = [
            name
            for name in dict.fromkeys(found)
            if names.is_needed_after(site, loop, name) or names.is_input(lines, name)
        ]
        if not self.carried:
            raise NoPattern("the loop hands no value on")
        for name in names.assigned(loop) - set(found):
            if names.is_needed_after(site, loop, name):
                raise Refused(f"`{name}` is the number of rounds")
        for name in self.carried:
            self._assert_begun(name)

    def _assert_begun(self, name: str) -> None:
        """A value that the first round may not reach has to have its shape before."""
        line = self.site.range_of(self.loop).start.line
        before = [
            each
            for each in names.values_of(self.site.function, name)
            if each is not None and self.site.range_of(each).start.line < line
        ]
        is_given = name in names.parameters(self.site.function)
        if not before and not is_given:
            raise Refused(f"`{name}` may have no value before the loop")
        scalars = Scalars(self.site)
        if any(scalars.is_scalar(each) for each in before):
            raise Refused(f"`{name}` begins as a number")

    def selecting(self, line: cst.CSTNode, *, is_last: bool) -> Changes:
        """An assignment whose values are kept once the loop is done."""
        assign = names.only(line)
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
            raise Refused(f"a round does more than assign: `{brief(line)}`")
        value = assign.value
        target: cst.BaseExpression = assign.targets[0].target
        pairs = [(target, value)]
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            both = zip(target.elements, value.elements, strict=True)
            pairs = [(to.value, each.value) for to, each in both]
        changes: Changes = {}
        for to, each in pairs:
            self._assert_pure(each, is_last=is_last)
            if self.tensors & names.reads(each):
                self.tensors |= names.assigned(line)
            if not isinstance(to, cst.Name):
                raise Refused(f"a round stores to `{brief(to)}`")
            if to.value in self.carried:
                changes[each] = self._kept(to.value, each, is_last=is_last)
        return changes

    def _kept(
        self, name: str, value: cst.BaseExpression, *, is_last: bool
    ) -> cst.BaseExpression:
        if name not in self.tensors or Scalars(self.site).is_plain(value):
            raise Refused(f"`{name}` may be no tensor")
        text = self.site.code(value)
        if is_last:  # the round that ends the loop does not reach it
            text = protected(self.site, value, self.done)
        return cst.parse_expression(f"torch.where({self.done}, {name}, {text})")

    def _assert_pure(self, value: cst.BaseExpression, *, is_last: bool) -> None:
        """More rounds of layers may draw random numbers; nothing else may."""
        calls = [each for each in nodes(value) if isinstance(each, cst.Call)]
        if any(called(each)[0] in _GROWING for each in calls):
            raise Refused(f"`{brief(value)}` may be larger in each round")
        layers = layer_calls(value, names.assigned(self.loop))
        self.has_layers |= bool(layers)
        once_more = value if is_last else replaced_in(value, layers)
        if why := Values(self.site).effect(once_more):
            raise Refused(f"a round must not run once more: {why}")
