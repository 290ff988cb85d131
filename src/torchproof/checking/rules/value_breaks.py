"""GB101 to GB103: graph breaks where Python or a size needs a tensor's values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import in_force
from torchproof.checking.rules.breaks import (
    CAPTURE_SCALARS,
    CAPTURE_SHAPES,
    FAILED_ASSERTION,
    BreakGroup,
    GraphBreak,
    can_move_before,
    is_of_size,
    move_out,
)
from torchproof.checking.rules.rule import Match, shorten
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind, words
from torchproof.checking.static.line_facts import nodes_of, parsed, tested
from torchproof.checking.static.source import walk
from torchproof.checking.static.value_uses import decides
from torchproof.records import Setting, blame

_CASTS = {"int", "float", "bool", "complex", "range"}
# Functions of math that take a sequence instead of a number.
_SEQUENCES = {"math.prod", "math.fsum", "math.dist", "math.sumprod"}
# Functions of torch and methods of a tensor whose arguments are sizes.
_SIZED = {"arange", "zeros", "ones", "empty", "rand", "randn", "randperm", "eye"}
_SIZED_METHODS = {"view", "reshape", "expand", "repeat", "new_zeros", "new_ones"}
_SIZED_BY_VALUES = words(
    "nonzero argwhere unique unique_consecutive masked_select bincount"
)
_COMPARISONS = ("equal", "allclose", "is_nonzero")  # they return a bool
_ONE_HOT = ("torch.nn.functional.one_hot", "torch.one_hot")
# A statement that tests its expression.
_WHOLE = re.compile(r"^(?:if|elif|while|assert)\s+(.+?):?$")
_CONVERSION = re.compile(
    r"\.(?:item|tolist|__bool__)\(|(?<![.\w])(?:int|float|bool|complex)\("
)
# The operators whose size torch captures; empty for source that has not run.
_CAPTURED = re.compile(
    r"$|aten\.(nonzero|_?unique\w*|masked_select|bincount|repeat_interleave)\."
)
_IN_PYTHON = re.compile(r"numpy|\bmath\.|\brange\(")
_COUNTED = re.compile(r"torch\.arange\(([^=]*)\)\.tolist\(\)$")
# Functions of math that torch has under the same name.
_IN_TORCH = re.compile(
    r"math\.((?:a?(?:sin|cos|tan)h?|ceil|floor|trunc|sqrt|exp|expm1|log|log1p|log2|log10"
    r"|pow|isnan|isinf|isfinite)\(.*\))"
)
# What keeps the size fixed, by the operation whose size depends on values.
_FIXED_SIZES = (
    (r"one_hot", "give the number of classes: F.one_hot(labels, num_classes=n)"),
    (r"repeat_interleave", "pass the size of its result to `{}`: output_size=n"),
    (
        r"bincount",
        "count into a tensor of fixed length instead of `{}`:"
        " torch.zeros(n).scatter_add(0, index, ones)",
    ),
    (r"unique", "compute `{}` before the compiled call and pass it in"),
    (
        r"nonzero|argwhere|torch\.where",
        "keep the mask instead of the positions in `{}`: torch.where(mask, x, 0)",
    ),
    (r"\[|mask", "keep all positions instead of `{}`: torch.where(mask, x, 0)"),
)


# Rewrites for a value that Python needs, in the order in which they are tried.
_OF_VALUES = (
    "numbers.in_python",
    "validation.raise_if",
    "effects.in_graph",
    "layer_drop.rate_first",
    "layer_drop.select",
    "shortcuts.always",
    "branches.select",
    "effects.skip_while_compiling",
)


class TensorToPython(GraphBreak):
    """A tensor's value is converted to a Python number, list or array.

    ## Why
    Tracing cannot continue without the value, so the graph ends here. On a GPU the host
    also waits for the device.

    ## Bad
        history.append(loss.item())

    ## Good
        history.append(loss.detach())     # torch.stack(history).tolist() after the loop

    ## Fix safety
    The values are the same. Code that reads them must convert them later.
    """

    code = "GB101"
    settings = (CAPTURE_SCALARS,)
    causes = words(
        "GB0018 GB0033 GB0070 GB0105 GB0106 GB0109 GB0124 GB0218 GB3775 GB7286 GB7596"
    )
    cause_text = (
        "`{at.expression}` needs the tensor's value in Python while the graph is traced"
    )
    nodes = (ast.Call, ast.Subscript)
    shown_by = ("GB101", "GB103", "GB113", "GB117", "HS901", "DS602")
    rewrites = _OF_VALUES

    def change(self, group: BreakGroup) -> str:
        expression = _WHOLE.sub(r"\1", group.expression)
        tensor = shorten(_converted(group), group.width)
        keep = f"keep `{tensor}` a tensor"
        if not tensor:
            keep = f"keep the tensor in `{expression}` as it is"
        if "numpy" in expression:
            return f"use torch operations on `{tensor or expression}` instead of numpy"
        if counted := _COUNTED.search(expression):
            return f"write list(range({counted[1]})): it needs no tensor"
        if called := _IN_TORCH.search(expression):
            return f"write torch.{called[1]}, and keep the result a tensor"
        if not _CONVERSION.search(expression):
            return (
                f"compute the number that `{expression}` needs before the compiled"
                " call, and pass it in as a Python int"
            )
        if group.line.is_test:
            return f"{keep}, and choose with torch.where"
        if can_move_before(group):
            return move_out(group)
        return f"{keep}, and convert it after the compiled call"

    def helpful(self, group: BreakGroup) -> Iterator[Setting]:
        """The one with which a number stays in the graph, if only tensors use it."""
        frame, code = group.frame, group.expression
        stays = _CONVERSION.search(code) or code.startswith("torch.")
        if frame is None or not stays or _IN_PYTHON.search(code):
            return
        if not decides(frame.file, frame.line, code, number=True):
            yield CAPTURE_SCALARS

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        if isinstance(node, ast.Call):
            reads = _reads_by_call(node, at)
        else:
            assert isinstance(node, ast.Subscript)
            reads = _reads_by_index(node, at)
        if reads:
            yield Match(node)


def _converted(group: BreakGroup) -> str:
    """What the code converts to a value of Python; empty if it cannot be read."""
    code = _WHOLE.sub(r"\1", replace(group, width=1_000).expression)
    casts = ""
    for node in nodes_of(code):
        match node:
            case ast.Call(ast.Attribute(tensor, "item" | "tolist" | "numpy")):
                return ast.get_source_segment(code, tensor) or ""
            case ast.Call(ast.Name("int" | "float" | "bool" | "complex"), [value, *_]):
                casts = casts or ast.get_source_segment(code, value) or ""
    return casts


def _reads_by_call(node: ast.Call, at: Flow) -> bool:
    called = node.func
    if isinstance(called, ast.Attribute) and at.kind(called.value).is_tensor:
        if called.attr in _SIZED_METHODS:
            return _holds_tensor(node.args, at)
        return called.attr in ("item", "tolist", "__bool__")
    dotted = at.dotted(called) or ""
    if dotted in _CASTS or (dotted.startswith("math.") and dotted not in _SEQUENCES):
        return any(at.kind(each).is_tensor for each in node.args)
    sized = dotted.startswith("torch.") and dotted[6:] in _SIZED
    return sized and _holds_tensor(node.args, at)


def _holds_tensor(arguments: list[ast.expr], at: Flow) -> bool:
    every = [
        e for a in arguments for e in (a.elts if isinstance(a, ast.Tuple) else [a])
    ]
    return any(at.kind(each).is_tensor for each in every)


def _reads_by_index(node: ast.Subscript, at: Flow) -> bool:
    container = at.kind(node.value)
    if container in (Kind.PYTHON, Kind.SIZES, Kind.TENSORS):
        return at.kind(node.slice).is_tensor
    if not container.is_tensor:
        return False
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    bounds = [b for p in parts if isinstance(p, ast.Slice) for b in (p.lower, p.upper)]
    return any(b and at.kind(b).is_tensor for b in bounds)


class TensorBranch(GraphBreak):
    """Python control flow depends on the value of a tensor.

    ## Why
    `if`, `while`, `assert not`, `and` and `or` need True or False immediately. While
    tracing, the tensor has no value.

    ## Bad
        if scores.max() > limit:
            scores = scores / scores.max()

    ## Good
        scores = torch.where(scores.max() > limit, scores / scores.max(), scores)

    ## Fix safety
    torch.where computes both sides. Protect divisions and logarithms from values that
    belong to the other side.
    """

    code = "GB102"
    causes = words("GB0035 GB0170 GB0171 GB0360")
    nodes = (
        ast.If,
        ast.While,
        ast.IfExp,
        ast.BoolOp,
        ast.UnaryOp,
        ast.Assert,
        ast.Compare,
        ast.ListComp,
        ast.SetComp,
        ast.GeneratorExp,
        ast.DictComp,
        ast.Call,
    )
    shown_by = ("GB101", "GB102", "GB117")
    rewrites = _OF_VALUES

    def matches(self, group: BreakGroup) -> bool:
        reason = group.reason
        if reason.gb_id == FAILED_ASSERTION:  # that on a shape fails inside a `try`
            return not is_of_size(_condition(group))
        comparison = re.search(r"allclose|aten\.equal|is_nonzero", reason.context)
        return super().matches(group) or comparison is not None

    def why(self, group: BreakGroup) -> str:
        test = f"{_statement(group)} {_condition(group)}".removeprefix("condition ")
        return f"`{test}` depends on a tensor's value, which tracing does not have"

    def change(self, group: BreakGroup) -> str:
        statement, condition = _statement(group), _condition(group)
        if statement == "assert":
            return (
                "assert a tensor, with a constant text: torch captures `assert"
                " ok.all(), 'text'`, but no `not` and no f-string"
            )
        if is_of_size(condition):
            return (
                f"mask instead of testing `{condition}`: only the run knows this size"
            )
        if statement == "if" and _leaves_loop(group):
            return (
                f"run all rounds instead of leaving at `{condition}`, and keep earlier"
                " results with torch.where"
            )
        if statement == "while":
            return f"use torch.while_loop instead of `while {condition}`"
        if filtered := _filtered(group):
            return (
                f"keep every element in `{filtered}`, and mask those to leave out with"
                " torch.where"
            )
        if statement == "if" and (arguments := _raised(group)):
            return f"let the graph check it: torchproof.raise_if({arguments})"
        if in_force(group, CAPTURE_SCALARS) and _is_symbol(group):
            return (
                f"keep the numbers in `{condition}` tensors (drop .item()), and choose"
                " with torch.where"
            )
        chosen = f"torch.where({_as_tensor(condition)}, a, b)"
        return f"compute both sides and choose with {chosen}"

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        if isinstance(node, ast.Call):
            if _gives_bool(node, at):
                yield Match(node)
            return
        for test in _tests(node, at):
            text = f"`{_word(node)}{at.source.brief(test)}`"
            message = f"{text} would cause a graph break in {at.function.name}"
            yield Match(test, message)


def _gives_bool(node: ast.Call, at: Flow) -> bool:
    """Whether a call tests a tensor."""
    if at.dotted(node.func) not in ("any", "all"):
        return at.called(node) in _COMPARISONS
    kinds = [at.kind(each) for each in node.args]
    return any(kind.is_tensor or kind is Kind.TENSORS for kind in kinds)


def _as_tensor(text: str) -> str:
    """A condition with operations on tensors, where Python's return a bool."""
    code = ast.unparse
    match parsed(text):
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"torch.logical_not({_as_tensor(code(operand))})"
        case ast.Compare(left, [ast.In() | ast.NotIn() as op], [among]):
            found = f"torch.isin({code(left)}, torch.tensor({code(among)}))"
            return "~" * isinstance(op, ast.NotIn) + found
        case ast.Compare(left, [_, _, *_] as ops, rest):
            sides = zip([left, *rest], ops, rest, strict=False)
            pairs = [ast.Compare(left, [op], [right]) for left, op, right in sides]
            return " & ".join(f"({code(pair)})" for pair in pairs)
        case ast.Call(ast.Name("all" | "any")):
            return f"torch.{text}"
        case ast.Call(ast.Attribute(owner, name), arguments, keywords):
            operands = [each for each in (owner, *arguments) if code(each) != "torch"]
            match name, [*map(code, operands)]:
                case "is_nonzero", [value]:
                    return f"{value} != 0"
                case "equal", [one, other]:
                    return f"({one} == {other}).all()"
                case "allclose", values:
                    values += [f"{each.arg}={code(each.value)}" for each in keywords]
                    return f"torch.isclose({', '.join(values)}).all()"
    return text


def _is_symbol(group: BreakGroup) -> bool:
    said = f"{group.reason.explanation} {group.reason.context}"
    return re.search(r"\bu\d+\b|SymNode|SymBool|SymInt", said) is not None


def _tests(node: ast.AST, at: Flow) -> list[ast.expr]:
    """The tensors that a node converts to a bool."""
    if isinstance(node, ast.Compare):
        return [node] if _becomes_bool(node, at) else []
    if isinstance(node, ast.Assert):
        # Dynamo captures `assert tensor, "text"`, but not with an f-string.
        built = node.msg is not None and not isinstance(node.msg, ast.Constant)
        tests = [node.test] if built else []
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.BoolOp):
        tests = node.values[:-1]  # the last operand is returned without a test
    elif isinstance(node, ast.UnaryOp):
        tests = [node.operand] if isinstance(node.op, ast.Not) else []
    else:
        tests = [test for each in node.generators for test in each.ifs]  # type: ignore[attr-defined]
    return [test for test in tests if at.kind(test).is_tensor]


def _becomes_bool(node: ast.Compare, at: Flow) -> bool:
    """Whether a comparison converts to bool, as `a < x < b` and `x in (1, 2)` do."""
    if len(node.ops) > 1:
        return at.kind(node).is_tensor
    if not isinstance(node.ops[0], ast.In | ast.NotIn):
        return False
    [right] = node.comparators
    if at.kind(right).is_tensor:
        return True
    numbers = isinstance(right, ast.Tuple | ast.List | ast.Set) and all(
        isinstance(each, ast.Constant) for each in right.elts
    )
    return numbers and at.kind(node.left).is_tensor


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.BoolOp):
        return "and " if isinstance(node.op, ast.And) else "or "
    words = {ast.While: "while ", ast.UnaryOp: "not ", ast.Assert: "assert "}
    return "" if isinstance(node, ast.Compare) else words.get(type(node), "if ")


def _statement(group: BreakGroup) -> str:
    word = re.match(r"\w+", group.frame.code if group.frame else "")
    statements = {"if": "if", "elif": "if", "while": "while", "assert": "assert"}
    return statements.get(word[0] if word else "", "condition")


def _branch(group: BreakGroup) -> ast.If | None:
    """The `if` at the place."""
    frame = group.frame
    for node in walk(blame.tree_of(frame.file)) if frame else ():
        if isinstance(node, ast.If) and node.test.lineno <= frame.line <= (  # type: ignore[union-attr]
            node.test.end_lineno or 0
        ):
            return node
    return None


def _filtered(group: BreakGroup) -> str:
    """The comprehension that the condition at the place filters; empty without one."""
    frame, condition = group.frame, _condition(group)
    code = parsed(condition)
    said = ast.unparse(code) if code else condition
    for node in walk(blame.tree_of(frame.file)) if frame else ():
        for test in (t for g in getattr(node, "generators", ()) for t in g.ifs):
            here = test.lineno <= frame.line <= test.end_lineno  # type: ignore[union-attr]
            if here and ast.unparse(test) in said:
                return shorten(ast.unparse(node), group.width)
    return ""


def _leaves_loop(group: BreakGroup) -> bool:
    branch = _branch(group) if group.line.loop_line else None
    return branch is not None and isinstance(branch.body[-1], ast.Break | ast.Return)


def _raised(group: BreakGroup) -> str:
    """The test of the `if` at the place and what it raises; empty if it does not."""
    match _branch(group):
        case ast.If(test, [*_, ast.Raise(exc=ast.expr() as raised)]):
            call = raised if isinstance(raised, ast.Call) else ast.Call(raised, [], [])
            plain = call.args and all(isinstance(e, ast.Constant) for e in call.args)
            text = ast.unparse(call.args[0]) if plain else "'text'"
            return f"{_as_tensor(ast.unparse(test))}, {ast.unparse(call.func)}, {text}"
    return ""


def _condition(group: BreakGroup) -> str:
    """The condition alone, where the traceback underlines the whole statement."""
    if whole := _WHOLE.match(group.expression):
        return whole[1]
    # Of `a if test else b`, Python underlines `test else b`, or all of it.
    return tested(group.frame.code if group.frame else "") or group.expression


class DataDependentShape(GraphBreak):
    """The output size of an operation depends on the values of its input.

    ## Why
    x[mask], nonzero, unique and similar operations have no output shape until they run.
    By default Dynamo does not put them into a graph.

    ## Bad
        return x[x > 0].mean()

    ## Good
        keep = x > 0
        return torch.where(keep, x, 0).sum() / keep.sum()

    ## Fix safety
    The masked form keeps all positions, so a mean must divide by the sum of the mask.
    """

    code = "GB103"
    rewrites = ("shortcuts.always", "masks.write")
    settings = (CAPTURE_SHAPES, CAPTURE_SCALARS)
    reference = torch_pages.DYNAMIC_SHAPES
    causes = words("GB0036 GB0037 GB0038 GB0246")
    cause_text = "the size of `{at.expression}` depends on the data"
    nodes = (ast.Call, ast.Subscript, ast.AugAssign)
    shown_by = ("GB101", "GB103", "GB105")

    def change(self, group: BreakGroup) -> str:
        code = group.expression
        fixed = next((f for name, f in _FIXED_SIZES if re.search(name, code)), None)
        return fixed.format(code) if fixed else move_out(group)

    def helpful(self, group: BreakGroup) -> Iterator[Setting]:
        """The one with which a size stays in the graph, if nothing is decided by it."""
        frame, code = group.frame, group.expression
        if frame is None or re.search("one_hot", code):
            return
        if not _CAPTURED.match(group.reason.context):
            return
        if not decides(frame.file, frame.line, code, number=False):
            yield CAPTURE_SHAPES

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call | ast.Subscript | ast.AugAssign)
        if isinstance(node, ast.AugAssign):  # `x[mask] += y` reads first
            if isinstance(node.target, ast.Subscript) and _by_mask(node.target, at):
                yield Match(node.target)
        elif isinstance(node, ast.Subscript):
            if isinstance(node.ctx, ast.Load) and _by_mask(node, at):
                yield Match(node)
        elif (
            self._is_call(node, at) or _lacks_classes(node, at) or _lacks_size(node, at)
        ):
            yield Match(node)

    def _is_call(self, node: ast.Call, at: Flow) -> bool:
        if at.dotted(node.func) == "torch.where":
            return len(node.args) == 1 and not node.keywords
        return at.called(node) in _SIZED_BY_VALUES


def _by_mask(node: ast.Subscript, at: Flow) -> bool:
    """Whether a subscript is `x[mask]`."""
    base = at.kind(node.value)
    if not base.is_tensor and base is not Kind.UNKNOWN:
        return False  # a value of unknown kind that a mask indexes is a tensor
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(at.kind(part) is Kind.MASK for part in parts)


def _lacks_classes(node: ast.Call, at: Flow) -> bool:
    """Whether a call is one_hot without the number of classes."""
    keywords = {k.arg: k.value for k in node.keywords}
    if at.dotted(node.func) not in _ONE_HOT or None in keywords:
        return False
    classes = node.args[1] if len(node.args) > 1 else keywords.get("num_classes")
    return classes is None or at.text(classes) == "-1"


def _lacks_size(node: ast.Call, at: Flow) -> bool:
    """Whether a call is repeat_interleave by a tensor, without the output size."""
    keywords = {k.arg: k.value for k in node.keywords}
    repeats = keywords.get("repeats")
    if at.dotted(node.func) == "torch.repeat_interleave":
        repeats = repeats or next(iter(node.args[1::-1]), None)
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "repeat_interleave":
        repeats = repeats or next(iter(node.args), None)
    else:
        return False
    return (
        repeats is not None
        and "output_size" not in keywords
        and (at.kind(repeats).is_tensor)
    )
