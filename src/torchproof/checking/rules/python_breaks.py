"""GB1xx: graph breaks at Python constructs that Dynamo does not trace."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.breaks import (
    FAILED_ASSERTION,
    BreakGroup,
    GraphBreak,
    hint,
    is_of_container,
    move_out,
)
from torchproof.checking.rules.rule import Fixed, Match
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind, words
from torchproof.records import Remedy, Setting

# What a checkpoint runs again in backward is not done a second time.
_CHECKPOINTED = Setting("dynamo.skip_fwd_side_effects_in_bwd_under_checkpoint", True)
_DEVICE = "pass device= to each call that creates a tensor"
_PLAIN = (
    "choose `{}` with a condition, which becomes a guard: `True if length > 1 else"
    " False`"
)


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
    causes = words("GB0066 GB0142 GB0262 GB0263 GB0274 GB2533")
    nodes = (ast.With,)
    shown_by = ("GB111", "GB115", "GB199")
    rewrites = ("contexts.skip",)

    def matches(self, group: BreakGroup) -> bool:
        entered = group.frame is not None and group.frame.code.startswith("with ")
        return entered or super().matches(group)

    def change(self, group: BreakGroup) -> str:
        if "torch.device(" in group.expression:
            return _DEVICE
        line = group.line.with_line
        if line is None:
            return move_out(group)
        return f"move the `with` at line {line} outside the compiled function"

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
                    advice=_DEVICE,
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
        is_call = group.reason.gb_id in ("GB0112", "GB4315")
        return is_call and self.symbol.search(group.reason.context) is not None

    def _argument(self, group: BreakGroup) -> str:
        match = self.symbol.search(group.reason.context)
        return (match and (match[1] or match[3])) or "the argument"

    def why(self, group: BreakGroup) -> str:
        return (
            f"`{self._argument(group)}` comes from a dynamic size: it is a symbol while"
            " tracing, and the operator takes a plain value only"
        )

    def change(self, group: BreakGroup) -> str:
        return _PLAIN.format(self._argument(group))

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
                advice=_PLAIN.format(name),
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
    cause_text = "`{at.expression}` raises or handles an exception while it is traced"
    causes = words(
        "GB0000 GB0002 GB0028 GB0050 GB0051 GB0057 GB0088 GB0089 GB0095 GB0111"
        " GB0135 GB0178 GB0219 GB0273 GB0279 GB9625"
    )

    def change(self, group: BreakGroup) -> str:
        if group.expression.startswith("raise ") and group.line.try_line is None:
            return f"check this before the compiled call: `{group.expression}` there"
        return (
            "test the condition with an `if` on shapes or Python values, instead of"
            " relying on the exception"
        )

    def matches(self, group: BreakGroup) -> bool:
        # The exception may be raised by the line itself or by a nearby frame.
        file = group.frame.file if group.frame else ""
        near = [frame for frame in group.first.frames[-4:] if frame.file == file]
        raising = any(re.match(r"(try|except|raise)\b", frame.code) for frame in near)
        return (
            raising
            or "traceback." in group.expression
            or group.reason.gb_id == FAILED_ASSERTION
            or super().matches(group)
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
    causes = words(
        "GB0003 GB0075 GB0094 GB0120 GB0172 GB0221 GB0253 GB0811 GB2549 GB4347"
        " GB8335 GB8977"
    )
    cause_text = "`{at.expression}` uses a generator, a coroutine or a class body"

    def change(self, group: BreakGroup) -> str:
        said = f"{group.reason.type} {group.expression}"
        if re.search(r"BUILD_CLASS|build_class|\bclass ", said):
            return "define the class outside the compiled function"
        if re.search(r"\basync\b|coroutine", said):
            return "await it outside the compiled function and pass the result in"
        if "know how to iterate" in group.reason.explanation:
            return "pass a list: Dynamo does not trace iterators made outside"
        return f"build a list instead of a generator at `{group.expression}`"

    def matches(self, group: BreakGroup) -> bool:
        written = re.match(r"class |for |async |yield\b|next\(", group.expression)
        return written is not None or super().matches(group)


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
    causes = words(
        "GB0004 GB0005 GB0006 GB0013 GB0023 GB0031 GB0032 GB0054 GB0059 GB0061"
        " GB0062 GB0063 GB0071 GB0077 GB0081 GB0082 GB0084 GB0086 GB0092 GB0093"
        " GB0097 GB0113 GB0114 GB0115 GB0118 GB0131 GB0132 GB0133 GB0134 GB0136"
        " GB0137 GB0141 GB0150 GB0152 GB0153 GB0154 GB0155 GB0157 GB0158 GB0159"
        " GB0160 GB0161 GB0162 GB0174 GB0175 GB0176 GB0180 GB0182 GB0183 GB0184"
        " GB0185 GB0186 GB0187 GB0188 GB0189 GB0190 GB0191 GB0192 GB0193 GB0194"
        " GB0196 GB0197 GB0198 GB0201 GB0203 GB0207 GB0211 GB0213 GB0214 GB0215"
        " GB0217 GB0222 GB0231 GB0232 GB0238 GB0240 GB0241 GB0245 GB0250 GB0254"
        " GB0255 GB0256 GB0258 GB0259 GB0260 GB0261 GB0266 GB0267 GB0268 GB0270"
        " GB0271 GB0278 GB0280 GB0281 GB0282 GB0287 GB0289 GB0292 GB0298 GB0299"
        " GB0331 GB0344 GB0350 GB0354 GB0359 GB0362 GB0364 GB0365 GB0366 GB0367"
        " GB0368 GB0369 GB0459 GB0467 GB0569 GB0682 GB0755 GB0781 GB0871 GB1220"
        " GB1275 GB1297 GB1319 GB1380 GB1584 GB1752 GB2404 GB2483 GB2520 GB2544"
        " GB2852 GB2861 GB3006 GB3241 GB3383 GB3697 GB3934 GB4240 GB4271 GB4411"
        " GB4501 GB4608 GB4880 GB5380 GB5458 GB5565 GB5849 GB5904 GB6012 GB6025"
        " GB6053 GB6215 GB6622 GB6890 GB6999 GB7230 GB7425 GB7502 GB7510 GB7637"
        " GB7786 GB7968 GB8315 GB8435 GB8656 GB8887 GB9137 GB9198 GB9277 GB9316"
        " GB9458 GB9522 GB9548 GB9561 GB9648 GB9672"
    )
    nodes = (ast.Call,)
    shown_by = ("GB101", "GB117")

    def matches(self, group: BreakGroup) -> bool:
        return super().matches(group) or is_of_container(group)

    def change(self, group: BreakGroup) -> str:
        if group.reason.type.startswith("Reconstruct"):
            return (
                f"return tensors and numbers at `{group.expression}`, and make the"
                " other objects outside, after the compiled call"
            )
        if re.search(r"(?<![.\w])(sorted|max|min)\(|\.sort\(", group.expression):
            return f"use torch.sort or torch.argsort instead of `{group.expression}`"
        if group.expression.startswith("range("):
            return "compute the number before the compiled call, and pass in an int"
        if re.match(r"(str|repr)\(", group.expression):
            return f"build the text `{group.expression}` after the compiled call"
        return hint(group) or move_out(group)

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func)
        if dotted not in ("str", "repr", "sorted") or not node.args:
            return
        kind = at.kind(node.args[0])
        if kind.is_tensor or (dotted == "sorted" and kind is Kind.TENSORS):
            cause = f"{at.quote(node)} needs the values, which tracing does not have"
            yield Match(node, cause=cause)


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

    def remedy(self, group: BreakGroup) -> Remedy:
        found = super().remedy(group)
        if found.settings != (_CHECKPOINTED,):
            return found
        title = f"{_CHECKPOINTED.code}: backward does not repeat {group.what}"
        return replace(
            found, title=f"before the first compiled call: {title}", tier="unsafe"
        )

    def helpful(self, group: BreakGroup) -> Iterator[Setting]:
        frames = group.first.frames
        is_checkpoint = any("checkpoint" in frame.code for frame in frames)
        if group.reason.type == "HOP: Unsafe side effect" and is_checkpoint:
            yield _CHECKPOINTED

    def matches(self, group: BreakGroup) -> bool:
        return True

    def change(self, group: BreakGroup) -> str:
        if re.search(r"torch\.jit|Script", group.reason.type):
            return (
                "use the original module instead of its torch.jit.script version at"
                f" `{group.expression}`"
            )
        return hint(group) or move_out(group)
