"""Tensors that outlive their memory in a CUDA graph: copies, and where steps begin."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import libcst as cst

from torchproof.fixing.rewrites.names import (
    changed_in_place,
    later,
    may_share,
    start_of,
)
from torchproof.fixing.rewrites.operators import brief, dotted, nodes
from torchproof.fixing.rewrites.site import (
    Changes,
    Draft,
    NoPattern,
    Refused,
    Site,
    statements,
)

_KEEPS = {"append", "appendleft", "add", "put", "insert", "setdefault"}
_MARK = "torch.compiler.cudagraph_mark_step_begin"
_GRADIENT = re.compile(r"`([\w.]+)\.\w+\.grad`")


def clone(site: Site) -> Draft:
    """What a statement keeps of a CUDA graph's outputs becomes a copy."""
    [small] = _small_statements(site)
    title = "keep a .clone(), which the next step does not overwrite"
    if isinstance(small, cst.Assign) and (names := _unpacked(small)):
        copies = ", ".join(f"{name}.clone()" for name in names)
        line = statements(f"{', '.join(names)} = {copies}\n")
        return Draft(title, site.replaced({site.statement: [site.statement, *line]}))
    value = _tensor(small)
    if isinstance(value, cst.ListComp | cst.GeneratorExp):
        value = value.elt
    _assert_not_written(site, small, value)
    return Draft(title, site.replaced({value: _copy_of(value)}))


def _small_statements(site: Site) -> Sequence[cst.BaseSmallStatement]:
    line = site.statement
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        raise Refused(f"`{brief(line)}` is more than one statement")
    return line.body


def _unpacked(assignment: cst.Assign) -> list[str]:
    """The names of `a, b = f(x)`; empty if it is another assignment."""
    target = assignment.targets[0].target
    if len(assignment.targets) > 1 or not isinstance(target, cst.Tuple):
        return []
    plain = [each for each in target.elements if isinstance(each, cst.Element)]
    values = [each.value for each in plain]
    names = [each.value for each in values if isinstance(each, cst.Name)]
    if len(names) < len(target.elements):
        raise Refused(f"`{brief(target)}` keeps more than tensors in variables")
    return names


def _tensor(small: cst.BaseSmallStatement) -> cst.BaseExpression:
    """The value that a statement keeps or passes on."""
    value: cst.BaseExpression | None = None
    if isinstance(small, cst.Assign | cst.AnnAssign | cst.Return):
        value = small.value
    elif isinstance(small, cst.Expr):
        value = _argument(small.value)
    if value is None:
        raise Refused(f"`{brief(small)}` does not show which tensor it keeps")
    return value


def _argument(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """What is given to the method of a container, or yielded."""
    if isinstance(value, cst.Yield):
        return value.value if isinstance(value.value, cst.BaseExpression) else None
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return None
    keeps = value.func.attr.value in _KEEPS and value.args
    return value.args[-1].value if keeps else None


def _assert_not_written(
    site: Site, small: cst.BaseSmallStatement, value: cst.BaseExpression
) -> None:
    """Refuses if the tensor is changed later, through what is kept or the variable."""
    kept = start_of(value)
    if kept is None:  # the result of a function, which has no other name
        return
    names = {kept, *_targets(small)}
    for changed in changed_in_place(later(site, site.statement)):
        if any(may_share(site.function, changed, name) for name in names):
            raise Refused(f"`{changed}` is changed in place after it is kept")


def _targets(small: cst.BaseSmallStatement) -> set[str]:
    """Where an assignment keeps its value, as far as that has a name."""
    targets = [each.target for each in getattr(small, "targets", ())]
    return {name for each in targets if (name := dotted(each)) is not None}


def _copy_of(value: cst.BaseExpression) -> cst.BaseExpression:
    if not isinstance(value, cst.Name | cst.Attribute | cst.Subscript | cst.Call):
        raise Refused(f"`{brief(value)}` may be more than a tensor")
    method = value.func if isinstance(value, cst.Call) else None
    if isinstance(method, cst.Attribute) and method.attr.value == "clone":
        raise Refused(
            f"`{brief(value)}` is a copy in the graph, whose memory is reused too:"
            " copy it outside the compiled function"
        )
    return cst.Call(cst.Attribute(value, cst.Name("clone")))


def gradient_step(site: Site) -> Draft:
    """A loop that accumulates gradients makes each pass a step that copies them.

    A gradient that a step adds to has to have memory of its own before it begins.
    """
    model = _model(site)
    function = site.function
    around = site.ancestors(site.statement)
    loop = next((n for n in around if isinstance(n, cst.For | cst.While)), None)
    suspends = any(isinstance(node, cst.Yield | cst.Await) for node in nodes(function))
    if suspends or function.asynchronous is not None:
        raise Refused(f"`{function.name.value}` may be suspended within a step")
    inside = loop is not None and function in site.ancestors(loop)
    block = loop.body if loop is not None and inside else function.body
    if not isinstance(block, cst.IndentedBlock):
        raise Refused(f"`{function.name.value}` has its statements on one line")
    first = 1 if not inside and function.get_docstring() is not None else 0
    header = f"with torchproof.step(parameters={model}.parameters()):\n    pass\n"
    [step] = statements(header)
    assert isinstance(step, cst.With)
    inner = block.with_changes(body=block.body[first:], header=cst.TrailingWhitespace())
    step = step.with_changes(body=inner)
    changes: Changes = {
        block: block.with_changes(body=[*block.body[:first], step], footer=[])
    }
    title = "make each pass a torchproof.step, which keeps what no zero_grad() clears"
    return Draft(title, site.replaced(changes, ["torchproof"]))


def _model(site: Site) -> str:
    """The module that has all parameters of the finding, as the message names them."""
    owners = [name.split(".") for name in _GRADIENT.findall(site.finding.message)]
    if not owners:
        raise NoPattern("no variable leads to the parameters of the gradients")
    # A part of an `nn.Sequential` has no name that code could write: `net.0`.
    same = itertools.takewhile(
        lambda words: len(set(words)) == 1 and words[0].isidentifier(),
        zip(*owners, strict=False),
    )
    shared = [words[0] for words in same]
    if not shared:
        names = ", ".join(f"`{'.'.join(owner)}`" for owner in owners)
        raise Refused(f"no one module has the parameters of {names}")
    return ".".join(shared)


def mark_first(site: Site) -> Draft:
    """A mark between a forward and its backward moves before the forward."""
    [small] = _small_statements(site)
    call = small.value if isinstance(small, cst.Expr) else None
    if not isinstance(call, cst.Call) or dotted(call.func) != _MARK:
        raise Refused(f"`{brief(small)}` begins a step by calling compiled code")
    block = site.block(site.statement)
    index = block.index(site.statement)
    names = _backwards(block[index + 1 :])
    forwards = [i for i in range(index) if _assigned(block[i]) & names]
    if not forwards:
        raise NoPattern("the forward is not in the block of the mark")
    forward = block[forwards[0]]
    own = getattr(site.statement, "leading_lines", ())
    comments = [line for line in own if line.comment is not None]
    mark = site.statement.with_changes(leading_lines=comments)
    below = forward.with_changes(leading_lines=())  # its comments stay above the mark
    changes: Changes = {forward: [mark, below], site.statement: []}
    return Draft("begin the step before the forward", site.replaced(changes))


def _backwards(block: Sequence[cst.CSTNode]) -> set[str]:
    """The variables whose `backward` is called."""
    calls = [n for line in block for n in nodes(line) if isinstance(n, cst.Call)]
    names = [dotted(call.func) or "" for call in calls]
    return {n.removesuffix(".backward") for n in names if n.endswith(".backward")}


def _assigned(line: cst.CSTNode) -> set[str]:
    assignments = [node for node in nodes(line) if isinstance(node, cst.Assign)]
    targets = [each.target for node in assignments for each in node.targets]
    return {target.value for target in targets if isinstance(target, cst.Name)}
