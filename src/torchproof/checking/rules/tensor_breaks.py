"""GB1xx: graph breaks at operations on tensors that Dynamo does not trace."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import Piece, assembled
from torchproof.checking.rules.breaks import BreakGroup, GraphBreak, move_out, own_hints
from torchproof.checking.rules.rule import Fixed, Match
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind
from torchproof.records import Setting

_INTERNALS = {"requires_grad_", "retain_grad", "resize_"}
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
            "",
            "compiles the rest of the function, and breaks only at the module",
        ),
    )
    types = (r"RNN, GRU, or LSTM",)
    nodes = (ast.Call,)
    settings = (Setting("dynamo.allow_rnn", True),)
    setting_cures = True

    def matches(self, group: BreakGroup) -> bool:
        called = re.search(r"\b(lstm|gru|rnn_tanh|rnn_relu)\b", group.reason.context)
        return called is not None or super().matches(group)

    def why(self, group: BreakGroup) -> str:
        module = _recurrent(group)
        return f"`{group.expression}` calls {module}, which Dynamo does not trace"

    def change(self, group: BreakGroup) -> str:
        module = _recurrent(group)
        return (
            f"keep {module} outside the compiled region: compile the layers before and"
            f" after it, and call `{group.expression}` between them"
        )

    def helps(self, group: BreakGroup) -> Iterator[tuple[Setting, str]]:
        yield self.settings[0], " (experimental; it unrolls the sequence)"

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        if at.kind(node.func) is Kind.RECURRENT:
            yield Match(
                node,
                cause=f"{at.quote(node)} calls a recurrent module, which tracing leaves"
                " out, with the whole function around it",
                advice="compile the layers before and after it, and call it uncompiled"
                " between them",
            )


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
    types = (
        r"backward\(\)",
        r"autograd\.grad",
        r"_autograd_grad",
        r"_ImperativeEngine",
        r"compiled autograd",
    )
    cause_text = (
        "`{at.expression}` runs autograd inside the region that is being traced"
    )
    advice_text = (
        "move `{at.expression}` outside the compiled function and compile the forward"
        " only: its backward is compiled with it"
    )
    nodes = (ast.Call,)
    settings = (Setting("dynamo.trace_autograd_ops", True),)

    def pieces(self, group: BreakGroup) -> tuple[Piece, ...]:
        as_values = "autograd.grad" in group.expression
        functional = Piece("compute the gradients with torch.func.grad", as_values)
        return (*super().pieces(group), functional)

    def helps(self, group: BreakGroup) -> Iterator[tuple[Setting, str]]:
        if "autograd.grad" in group.expression:
            yield self.settings[0], ""

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
    types = (
        r"does not support running with fake tensors",
        r"no meta kernel",
        r"UnsupportedFakeTensor",
        r"non-PT2-compliant",
        r"Fake tensor propagation",
        r"fake tensor call",
    )
    cause_text = "`{at.expression}` has no implementation for tensors without data"
    advice_text = (
        "give the operator behind `{at.expression}` a fake implementation with"
        " register_fake (torch.library), and test it with torch.library.opcheck; or"
        " call it outside the compiled function"
    )


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
    types = (
        r"requires_grad",
        r"Tensor\.(set_|resize|retain_grad|share_memory|uniform_|random_|sparse)",
        r"tensor (data )?attribute",
        r"grad_fn",
        r"[Ss]parse [Tt]ensor|NestedTensor",
        r"subclass",
        r"[Dd]ata pointer|data_ptr|\(delayed\)",
        r"Inplace op on input|is_inference|inference_mode",
        r"nn\.Parameter",
        r"Unhandled tensor method|tensor method call|torch\.\* op returned non-Tensor",
    )
    cause_text = (
        "`{at.expression}` works on the tensor itself rather than its values:"
        " {at.reason.type}"
    )
    nodes = (ast.Call, ast.Assign)
    shown_by = ("GB105", "GB116", "GB199")
    rewrites = (
        "grad_state.call_requires_grad",
        "grad_state.skip_requires_grad",
        "grad_state.not_of_new_tensor",
    )

    def change(self, group: BreakGroup) -> str:
        hints, what = own_hints(group), f"`{group.expression}`"
        return assembled(
            Piece(
                f"do {what} before the compiled call, and pass the tensor in",
                group.line.from_arguments,
            ),
            Piece(hints, bool(hints)),
            otherwise=move_out(group),
        )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call | ast.Assign)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if _is_data(target, at):
                    fix = "copy in place: x.copy_(y), under torch.no_grad()"
                    yield self._match(node, at, fix)
            return
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in _INTERNALS:
            if at.kind(called.value).is_tensor:
                fix = "do it before you pass the tensor to the compiled function"
                yield self._match(node, at, fix)
        elif at.dotted(called) in _PARAMETERS:
            yield self._match(node, at, "create the parameter in __init__")

    def _match(self, node: ast.expr | ast.stmt, at: Flow, fix: str) -> Match:
        cause = f"{at.quote(node)} works on the tensor itself rather than its values"
        return Match(node, cause=cause, advice=fix)


def _is_data(target: ast.expr, at: Flow) -> bool:
    if not isinstance(target, ast.Attribute) or target.attr != "data":
        return False
    name = at.dotted(target.value) or ""
    return at.values.environment.get(name, Kind.UNKNOWN).is_tensor
