"""GB1xx: graph breaks at operations on tensors that Dynamo does not trace."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import user_files
from torchproof.checking.rules.breaks import (
    BreakGroup,
    GraphBreak,
    can_move_before,
    hint,
    is_in_entry,
    move_out,
)
from torchproof.checking.rules.operator_edits import fake_edit, register_fake
from torchproof.checking.rules.rule import Fixed, Match
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind, words
from torchproof.records import Remedy, Setting, is_frame_of

_INTERNALS = {"requires_grad_", "retain_grad", "resize_"}
_BEFORE = "do it before you pass the tensor to the compiled function"
_SETTING = "trace_autograd_ops"  # in torch's hints, since backward() can be traced
_PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")


class RecurrentModule(GraphBreak):
    """nn.RNN, nn.GRU or nn.LSTM is called in a compiled region.

    ## Why
    Dynamo does not trace recurrent modules; they run with their own kernels. It skips
    the frame that calls them, so the rest of that frame runs eagerly too.

    ## Bad
        def forward(self, x):
            h, _ = self.lstm(self.norm(x))
            return self.head(h)

    ## Good
        self.norm.compile()      # and call the LSTM between the two, uncompiled
        self.head.compile()

    ## Fix safety
    The values are the same. The alternative, allow_rnn, unrolls the sequence: compile
    time grows with its length.
    """

    code = "GB108"
    fixed = (
        Fixed(
            "2.15",
            "`nn.LSTM`, `nn.GRU` and `nn.RNN`",
            None,
            "compiles the rest of the function, and breaks only at the module",
        ),
    )
    causes = words("GB0014")
    nodes = (ast.Call,)
    settings = (Setting("dynamo.allow_rnn", True),)

    def matches(self, group: BreakGroup) -> bool:
        called = re.search(r"\b(lstm|gru|rnn_tanh|rnn_relu)\b", group.reason.context)
        return called is not None or super().matches(group)

    def why(self, group: BreakGroup) -> str:
        module = _recurrent(group)
        return f"`{group.expression}` calls {module}, which Dynamo does not trace"

    def change(self, group: BreakGroup) -> str:
        return (
            f"compile the layers before and after it, and call `{group.expression}`"
            " uncompiled between them"
        )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        if at.kind(node.func) is Kind.RECURRENT:
            yield Match(node)


def _recurrent(group: BreakGroup) -> str:
    named = re.search(r"LSTM|GRU|RNN|lstm|gru|rnn", group.reason.context)
    return f"an {named[0].upper()}" if named else "an RNN"


class AutogradCall(GraphBreak):
    """backward() or autograd.grad is called in a compiled region.

    ## Why
    Dynamo captures the forward. AOTAutograd compiles the backward from that graph.

    ## Bad
        @torch.compile
        def step(x):
            loss = model(x).mean()
            loss.backward()

    ## Good
        loss = compiled_forward(x)
        loss.backward()                 # outside; the backward is compiled too

    ## Fix safety
    The gradients do not change.
    """

    code = "GB110"
    causes = words(
        "GB0029 GB0083 GB0123 GB0165 GB0166 GB0371 GB0372 GB0373 GB0442 GB1042"
        " GB1140 GB1381 GB1724 GB4927 GB5748 GB6663 GB7054 GB7299 GB9186"
    )
    cause_text = (
        "`{at.expression}` runs autograd inside the region that is being traced"
    )
    advice_text = (
        "call `{at.expression}` after the compiled call: the backward of a compiled"
        " forward is compiled too"
    )
    nodes = (ast.Call,)
    settings = (Setting(f"dynamo.{_SETTING}", True),)

    def helpful(self, group: BreakGroup) -> Iterator[Setting]:
        root, entries = group.first.function, group.facts.entries
        is_inlined = root is not None and any(is_frame_of(root, e) for e in entries)
        is_known = is_inlined and _SETTING in group.reason.explanation
        if "autograd.grad" in group.expression or (is_known and not is_in_entry(group)):
            yield self.settings[0]

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func) or ""
        runs_autograd = dotted in ("torch.autograd.grad", "torch.autograd.backward")
        if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            on_tensor = at.kind(node.func.value).is_tensor
            runs_autograd |= on_tensor or dotted.rpartition(".")[0].endswith("loss")
        if runs_autograd:
            yield Match(node)


class OperatorWithoutFake(GraphBreak):
    """An operator cannot run on fake tensors.

    ## Why
    Dynamo runs every operator on fake tensors, which have no data, to learn output
    shapes. This operator has no fake implementation.

    ## Bad
        @torch.library.custom_op("lib::scale", mutates_args=())
        def scale(x: Tensor) -> Tensor: ...

    ## Good
        @scale.register_fake
        def _(x): return torch.empty_like(x)

    ## Fix safety
    A fake implementation that returns another shape or dtype than the operator makes
    the graph wrong. torch.library.opcheck tests it.
    """

    code = "GB114"
    reference = torch_pages.CUSTOM_OPERATORS
    causes = words("GB0043 GB0064 GB0087 GB0090 GB0112 GB4315")
    cause_text = "`{at.expression}` has no implementation for tensors without data"

    def edit(self, group: BreakGroup) -> Remedy | None:
        found = fake_edit(group.reason.context, user_files(group))
        return found or super().edit(group)

    def change(self, group: BreakGroup) -> str:
        return register_fake(group.reason.context) or move_out(group)


class TensorInternals(GraphBreak):
    """The program changes a tensor's storage, gradient state or type directly.

    ## Why
    set_, resize_, .data =, data_ptr, requires_grad_ on an intermediate tensor, sparse
    tensors and tensor subclasses use details that a graph cannot represent.

    ## Bad
        y.requires_grad_()

    ## Good
        y = y.detach().requires_grad_()    # before the compiled call

    ## Fix safety
    Depends on the operation: compare the outputs before and after.
    """

    code = "GB116"
    fixed = (
        Fixed(
            "2.15",
            "`y.requires_grad = True`",
            r"\.requires_grad = True",
            "traces this for a tensor that the function computes, not for an argument",
        ),
    )
    causes = words(
        "GB0001 GB0015 GB0016 GB0026 GB0044 GB0045 GB0046 GB0056 GB0058 GB0072"
        " GB0085 GB0103 GB0104 GB0107 GB0108 GB0110 GB0125 GB0126 GB0127 GB0128"
        " GB0129 GB0130 GB0148 GB0163 GB0164 GB0195 GB0206 GB0208 GB0220 GB0225"
        " GB0226 GB0227 GB0228 GB0233 GB0235 GB0237 GB0244 GB0264 GB0277 GB0374"
        " GB4197 GB4393 GB5976 GB6270 GB7324 GB7489 GB8985"
    )
    cause_text = "`{at.expression}` works on the tensor itself rather than its values"
    nodes = (ast.Call, ast.Assign)
    shown_by = ("GB105", "GB116", "GB199")

    def change(self, group: BreakGroup) -> str:
        if "Parameter(" in group.expression:
            return "create the parameter in __init__"
        if re.search(r"\.data\b", group.expression):
            return "copy in place: x.copy_(y), under torch.no_grad()"
        return (
            move_out(group)
            if can_move_before(group)
            else hint(group) or move_out(group)
        )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call | ast.Assign)
        if isinstance(node, ast.Assign):
            if any(_is_data(target, at) for target in node.targets):
                yield Match(node)
            return
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in _INTERNALS:
            if at.kind(called.value).is_tensor:
                yield Match(node, advice=_BEFORE)
        elif at.dotted(called) in _PARAMETERS:
            yield Match(node)


def _is_data(target: ast.expr, at: Flow) -> bool:
    if not isinstance(target, ast.Attribute) or target.attr != "data":
        return False
    name = at.dotted(target.value) or ""
    return at.values.environment.get(name, Kind.UNKNOWN).is_tensor
