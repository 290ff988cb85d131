"""GB1xx: graph breaks at Python constructs that Dynamo does not trace."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import Piece, assembled
from torchproof.checking.rules.breaks import BreakGroup, GraphBreak, move_out, own_hints
from torchproof.checking.rules.rule import Fixed, Match, shorten
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind


class ContextManager(GraphBreak):
    """Dynamo cannot enter a `with` block, or cannot resume inside it.

    ## Why
    Dynamo supports only the context managers it knows. After a break inside any other
    one it cannot resume, so it skips the whole frame.

    ## Bad
        with timer("attention"):
            y = attend(x)
            print(y)

    ## Good
        with timer("attention"):       # around the compiled call
            y = compiled_attend(x)

    ## Fix safety
    The block then covers the whole call instead of a part of it.
    """

    code = "GB111"
    types = (
        r"[Cc]ontext manager|ContextWrapping|contextlib|contextmanager|WITH_EXCEPT",
    )
    nodes = (ast.With,)
    shown_by = ("GB111", "GB115", "GB199")
    rewrites = ("grad_state.skip_context",)
    last_rewrites = ("host_calls.statement",)

    def matches(self, group: BreakGroup) -> bool:
        entered = group.frame is not None and group.frame.code.startswith("with ")
        return entered or super().matches(group)

    def change(self, group: BreakGroup) -> str:
        line, frame = group.line.with_line, group.frame
        inside = line is not None and frame is not None and line < frame.line
        return assembled(
            Piece(
                f"move the `with` at line {line} outside the compiled function",
                line is not None,
            ),
            Piece(f"move `{group.expression}` out of the block", inside),
            otherwise=move_out(group),
        )

    def why(self, group: BreakGroup) -> str:
        return (
            f"`{group.expression}` is inside, or is, a context manager Dynamo cannot"
            f" handle: {shorten(group.reason.explanation, 160)}"
        )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.With)
        for item in node.items:
            context = item.context_expr
            if (
                isinstance(context, ast.Call)
                and at.dotted(context.func) == "torch.device"
            ):
                yield Match(
                    context,
                    cause=f"{at.quote(context)} as a context manager cannot be entered"
                    " while tracing, and the whole function is left out",
                    advice="pass device= to each call that creates a tensor",
                )


class SymbolicArgument(GraphBreak):
    """An operator that needs a plain value gets a comparison of dynamic sizes.

    ## Why
    If a size is dynamic, `x.shape[1] > 1` is a symbol instead of True or False.
    Arguments such as `is_causal` and `keepdim` do not accept a symbol.

    ## Bad
        attention(query, key, value, is_causal=query.shape[2] > 1)

    ## Good
        attention(query, key, value, is_causal=True)

    ## Fix safety
    A fixed value is wrong for some sizes: keep a second path for them, or use a
    condition (`True if length > 1 else False`), which becomes a guard.
    """

    code = "GB118"
    reference = torch_pages.DYNAMIC_SHAPES
    symbol = re.compile(
        r"argument '(\w+)'.* must be (\w+), not Sym\w+|(\w+)=Sym(?:Bool|Int|Float)\b"
    )
    nodes = (ast.Call,)
    calls = 2  # a size becomes dynamic after it has changed

    def matches(self, group: BreakGroup) -> bool:
        reason = group.reason
        is_call = "fake tensor call" in reason.type
        return is_call and self.symbol.search(reason.context) is not None

    def _argument(self, group: BreakGroup) -> str:
        match = self.symbol.search(group.reason.context)
        return (match and (match[1] or match[3])) or "the argument"

    def why(self, group: BreakGroup) -> str:
        return (
            f"`{self._argument(group)}` comes from a size that is dynamic here: it is"
            " a symbol while tracing, and the operator takes a plain value only"
        )

    def change(self, group: BreakGroup) -> str:
        name = self._argument(group)
        return (
            f"pass `{name}` as a plain value (`{name}=True`, or an attribute set"
            " once); or choose it with a condition, which becomes a guard: `True if"
            " length > 1 else False` (bool(...) stays a symbol)"
        )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        for keyword in node.keywords:
            name = keyword.arg
            symbol = name and at.kind(keyword.value) is Kind.CONDITION
            if not symbol or not _of_torch(node, at):
                continue
            yield Match(
                node,
                cause=f"`{name}` comes from a size: a dynamic one is a symbol while"
                " tracing, and the operator takes a plain bool",
                advice=f"pass `{name}` as a plain value (`{name}=True`, or an attribute"
                " set once); or use a condition, which becomes a guard: `True if length"
                " > 1 else False` (bool(...) stays a symbol)",
            )


def _of_torch(node: ast.Call, at: Flow) -> bool:
    if isinstance(node.func, ast.Attribute) and at.kind(node.func.value).is_tensor:
        return True
    dotted = at.dotted(node.func) or ""
    direct = dotted.startswith("torch.") and dotted.count(".") == 1
    return direct or dotted.startswith("torch.nn.functional.")


class ExceptionFlow(GraphBreak):
    """The code raises or catches an exception in a way that Dynamo does not trace.

    ## Why
    Dynamo traces one path through the code. An exception that it cannot model ends the
    trace.

    ## Bad
        try:
            y = table[key]
        except KeyError:
            y = default

    ## Good
        y = table.get(key, default)

    ## Fix safety
    Check that the test and the exception agree on every input.
    """

    code = "GB112"
    fixed = (
        Fixed("2.15", "an exception with an `__init__` of its own", r"super\(\)\."),
    )
    types = (
        (
            r"[Ee]xception|[Aa]ssertion|Failed to raise|TypeError from user"
            r" code|EXCEPT_HANDLER|traceback"
        ),
    )

    def change(self, group: BreakGroup) -> str:
        line = group.line.try_line
        return assembled(
            Piece(
                "test the condition with an `if` on shapes or Python values instead of"
                f" relying on an exception at `{group.expression}`"
            ),
            Piece(
                f"move the `try` at line {line} outside the compiled function",
                line is not None,
            ),
        )

    def matches(self, group: BreakGroup) -> bool:
        # The exception may be raised by the line itself or by a nearby frame.
        file = group.frame.file if group.frame else ""
        near = [frame for frame in group.first.frames[-4:] if frame.file == file]
        raising = any(re.match(r"(try|except|raise)\b", frame.code) for frame in near)
        return raising or "traceback." in group.expression or super().matches(group)

    def why(self, group: BreakGroup) -> str:
        return (
            f"`{group.expression}` raises or handles an exception while it is traced:"
            f" {shorten(group.reason.explanation, 200)}"
        )


class GeneratorUse(GraphBreak):
    """A generator, async code or a class definition is used in a compiled region.

    ## Why
    Generators and coroutines suspend their frame, and a class body builds a type.
    Dynamo does not trace either.

    ## Bad
        def pieces(x):
            for part in x.split(2): yield part * 2

    ## Good
        def pieces(x):
            return [part * 2 for part in x.split(2)]

    ## Fix safety
    A list keeps all items in memory; the generator keeps one.
    """

    code = "GB113"
    types = (r"[Gg]enerator|async|BUILD_CLASS|build_class|YIELD|SEND|\byield\b",)

    def change(self, group: BreakGroup) -> str:
        said = f"{group.reason.type} {group.expression}"
        if re.search(r"BUILD_CLASS|build_class|\bclass ", said):
            return "define the class outside the compiled function"
        if re.search(r"\basync\b|coroutine", said):
            return "do not use async code in the compiled function"
        return f"build a list instead of a generator at `{group.expression}`"

    def matches(self, group: BreakGroup) -> bool:
        iterates = re.search(r"tp_iter(next)?\b", group.reason.type)
        written = re.match(r"class |for |async |yield\b|next\(", group.expression)
        return bool(iterates or written) or super().matches(group)

    def why(self, group: BreakGroup) -> str:
        return (
            f"`{group.expression}` uses a generator, a coroutine or a class body:"
            f" {shorten(group.reason.explanation, 160)}"
        )


class UnsupportedPython(GraphBreak):
    """The code uses an operation on a Python object that Dynamo does not support.

    ## Why
    Dynamo supports the common operations of the common types. Examples of what it does
    not support: sets of tensors, repr of a tensor, rare special methods, metaclasses.

    ## Bad
        label = str(x)

    ## Good
        label = f"{tuple(x.shape)}"

    ## Fix safety
    Depends on the operation: compare the outputs before and after.
    """

    code = "GB117"
    fixed = (
        Fixed("2.14.1", "`deque.rotate`", r"\.rotate\("),
        Fixed("2.15", "`bytes` of a list", r"\bbytes\("),
    )
    types = (
        r"repr|str\(\)|str_impl",
        r"set with tensors|sort with|id\(\)|call_id|hash|richcompare|__eq__",
        r"builtin|bytecode|unpack|deque|itertools|functools|namedtuple|dataclass|Enum|dict|list",
        r"hasattr|getattr|setattr|__\w+__|attribute|isinstance|issubclass|super",
        r"nb_|sq_|tp_|mp_|next\(\)|iter",
        r"user-defined|user defined|metaclass|Reconstruct",
        r"numpy|ndarray|method call",
        r"comparison|slot|constant",
    )
    nodes = (ast.Call,)
    shown_by = ("GB101", "GB117")

    def change(self, group: BreakGroup) -> str:
        if re.search(r"\b(sorted|max|min|\.sort)\(", group.expression):
            return assembled(
                Piece(
                    "order tensors with tensor operations (torch.sort, torch.argsort,"
                    f" topk) instead of `{group.expression}`"
                ),
                Piece(move_out(group)),
            )
        hints = own_hints(group)
        advice = move_out(group)
        return f"{hints}; or {advice}" if hints else advice

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func)
        if dotted not in ("str", "repr", "sorted") or not node.args:
            return
        kind = at.kind(node.args[0])
        if dotted == "sorted" and (kind.is_tensor or kind is Kind.TENSORS):
            fix = "stack them into one tensor and use torch.sort or torch.argsort"
        elif dotted != "sorted" and kind.is_tensor:
            fix = "use its shape or dtype, or build the text after the compiled call"
        else:
            return
        cause = f"{at.quote(node)} needs the values, which tracing does not have"
        yield Match(node, cause=cause, advice=fix)


class OtherBreak(GraphBreak):
    """A graph break that no other rule covers.

    ## Why
    The finding quotes torch's explanation, its id and its page.

    ## Bad
        y = unsupported(x)       # in the compiled function

    ## Good
        y = unsupported(x)       # outside the compiled function

    ## Fix safety
    Unknown: compare the outputs before and after.
    """

    code = "GB199"
    rewrites = ("casts.where_needed",)

    def matches(self, group: BreakGroup) -> bool:
        return True

    def change(self, group: BreakGroup) -> str:
        if re.search(r"torch\.jit|Script", group.reason.type):
            return (
                "use the original module instead of its torch.jit.script version at"
                f" `{group.expression}`: Dynamo does not trace TorchScript"
            )
        hints = own_hints(group)
        return f"{hints}; or {move_out(group)}" if hints else move_out(group)
