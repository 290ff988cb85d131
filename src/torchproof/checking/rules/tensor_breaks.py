"""GB1xx: graph breaks caused by what the program does with a tensor."""

from __future__ import annotations

import re

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.breaks import GraphBreak, own_hints
from torchproof.checking.rules.rule import EventGroup


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
    types = (
        r"Tensor\.item\(\)",
        r"Data dependent operator",
        r"Tensor\.tolist",
        r"Tensor\.numpy",
        r"nb_(int|float|index)",
        r"Attempted to wrap unbacked SymInt",
        r"unsupported index\(Tensor\)",
        r"with non-scalar tensor",
    )
    cause_text = (
        "`{at.expression}` needs the tensor's value in Python while the graph is traced"
    )

    def remedy(self, group: EventGroup) -> str:
        expression = group.expression
        tensor = re.sub(r"\.(item|tolist|numpy)\(\)", "", expression)
        tensor = re.sub(r"^(?:int|float|bool)\((.*)\)$", r"\1", tensor)
        if "numpy" in expression:
            return (
                f"use torch operations on `{tensor}` instead of numpy, or move the"
                " numpy part outside the compiled function"
            )
        if "tolist" in expression:
            return (
                f"pass lengths as Python ints instead of computing `{expression}` in"
                " the graph, or set torch._dynamo.config.capture_scalar_outputs = True"
                " (with torch._check on each value that becomes a size)"
            )
        return (
            f"keep `{tensor}` a tensor: drop the conversion (.item(), int(), float()),"
            " collect tensors and read them after the compiled call, e.g."
            " torch.stack(values).tolist(); or set"
            " torch._dynamo.config.capture_scalar_outputs = True (and torch._check its"
            " range if it becomes a size)"
        )

    def setting(self, group: EventGroup) -> str:
        if "numpy" in group.expression:
            return ""
        return "torch._dynamo.config.capture_scalar_outputs = True"


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
    types = (
        r"[Dd]ata-dependent branching",
        r"Data-dependent assertion",
        r"guard_scalar branch",
        r"assert with non-string",
    )

    def matches(self, group: EventGroup) -> bool:
        data = group.data
        if "ssertion" in data["type"] and _about_sizes(group):
            return False  # a failing assert on shapes, inside a try
        comparison = re.search(r"allclose|aten\.equal|is_nonzero", data["context"])
        return super().matches(group) or comparison is not None

    def why(self, group: EventGroup) -> str:
        return (
            f"the {_statement(group)} `{_condition(group)}` depends on a tensor's"
            " value, which tracing does not have"
        )

    def remedy(self, group: EventGroup) -> str:
        statement = _statement(group)
        code = group.frame.code if group.frame else ""
        if statement == "assert":
            return (
                "write the assert so that its condition is the tensor itself (`assert"
                " torch.isfinite(y).all(), ...` is captured, `assert not ...` is not),"
                " use torch._assert_async(condition), or check outside the compiled"
                " function"
            )
        if "allclose" in group.expression or "torch.equal" in group.expression:
            return (
                "keep the comparison a tensor, torch.isclose(a, b).all(), and choose"
                " with torch.where; or decide outside the compiled function"
            )
        if _about_sizes(group):
            return (
                f"`{_condition(group)}` depends on a size that is known only at run"
                " time: assert it with torch._check, use torch.cond, mask instead of"
                " branching (torch.where), or mark the dimension with mark_dynamic"
                " instead of mark_unbacked"
            )
        if statement == "while":
            return (
                "use torch.while_loop, or run a fixed number of iterations and mask"
                f" the rest with torch.where, instead of `{code}`"
            )
        return (
            f"compute both sides and choose with torch.where({_condition(group)}, a,"
            " b), or use torch.cond(condition, true_fn, false_fn, operands); if the"
            " test is only a check, move it outside the compiled function"
        )


def _about_sizes(group: EventGroup) -> bool:
    return (
        re.search(r"\.shape|\.size\(|\.numel\(|\.dim\(|len\(", group.expression)
        is not None
    )


def _statement(group: EventGroup) -> str:
    word = re.match(r"\w+", group.frame.code if group.frame else "")
    statements = {"if": "if", "elif": "if", "while": "while", "assert": "assert"}
    return statements.get(word[0] if word else "", "condition")


def _condition(group: EventGroup) -> str:
    """The condition alone, where the traceback underlines the whole statement."""
    whole = re.match(r"(?:if|elif|while|assert)\s+(.+?):?$", group.expression)
    return whole[1] if whole else group.expression


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
    reference = torch_pages.DYNAMIC_SHAPES
    types = (
        r"Dynamic shape operator",
        r"Dynamic slicing",
        r"one_hot.*data-dependent",
        r"GuardOnDataDependent",
    )
    cause_text = "the size of `{at.expression}` depends on the data"

    def remedy(self, group: EventGroup) -> str:
        if "one_hot" in group.expression:
            return (
                f"give the number of classes in `{group.expression}`:"
                " F.one_hot(labels, num_classes=n)"
            )
        return (
            f"keep the size fixed: replace `{group.expression}` by a masked form such"
            " as torch.where(mask, x, 0) (or masked_fill, topk, nonzero_static); or"
            " set torch._dynamo.config.capture_dynamic_output_shape_ops = True to keep"
            " it in the graph"
        )

    def setting(self, group: EventGroup) -> str:
        if "one_hot" in group.expression:
            return ""
        return "torch._dynamo.config.capture_dynamic_output_shape_ops = True"


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
    types = (r"RNN, GRU, or LSTM",)

    def matches(self, group: EventGroup) -> bool:
        called = re.search(r"\b(lstm|gru|rnn_tanh|rnn_relu)\b", group.data["context"])
        return called is not None or super().matches(group)

    def why(self, group: EventGroup) -> str:
        module = _recurrent(group)
        return f"`{group.expression}` calls {module}, which Dynamo does not trace"

    def remedy(self, group: EventGroup) -> str:
        module = _recurrent(group)
        return (
            f"keep {module} outside the compiled region: compile the layers before and"
            f" after it, and call `{group.expression}` between them; or set"
            " torch._dynamo.config.allow_rnn = True (experimental; it unrolls the"
            " sequence)"
        )


def _recurrent(group: EventGroup) -> str:
    named = re.search(r"LSTM|GRU|RNN|lstm|gru|rnn", group.data["context"])
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
    fix_text = (
        "move `{at.expression}` outside the compiled function and compile the forward"
        " only (its backward is compiled with it); for gradients as values use"
        " torch.func.grad, or set torch._dynamo.config.trace_autograd_ops = True for"
        " autograd.grad"
    )


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
    fix_text = (
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
        " {at.data[type]}"
    )

    def remedy(self, group: EventGroup) -> str:
        hints = own_hints(group)
        moved = (
            f"do `{group.expression}` outside the compiled function, before you pass"
            " the tensor in"
        )
        return f"{moved}; or {hints[:1].lower()}{hints[1:]}" if hints else moved
