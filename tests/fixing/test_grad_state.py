"""requires_grad set in compiled code, and contexts that tracing cannot enter."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.grad_state import (
    call_requires_grad,
    not_of_new_tensor,
    skip_context,
    skip_requires_grad,
)


def step_with(lines: str, imports: str = "") -> str:
    return program(
        f"import torch\n{imports}\n\ndef step(x, weight):\n{lines}\n    return y\n"
    )


SET = step_with(
    """\
    h = x * 2
    h.requires_grad = True  # <-
    y = (h * weight).sum()"""
)


def gradients(step, compiled=False):
    torch._dynamo.reset()
    weight = torch.full((2,), 3.0, requires_grad=True)
    if compiled:
        step = torch.compile(step, backend="aot_eager", fullgraph=True)
    loss = step(torch.ones(2), weight)
    loss.backward()
    return loss.item(), weight.grad.tolist()


def test_a_method_sets_requires_grad():
    draft = rewritten(call_requires_grad, SET, "GB116")
    assert draft.text == step_with(
        """\
    h = x * 2
    h.requires_grad_()
    y = (h * weight).sum()"""
    )
    assert gradients(function_of(SET)) == gradients(function_of(draft.text))


def test_requires_grad_is_left_alone_while_compiling():
    draft = rewritten(skip_requires_grad, SET, "GB116")
    assert draft.tier == "unsafe"
    assert draft.text == step_with(
        """\
    h = x * 2
    if not torch.compiler.is_compiling():
        h.requires_grad = True
    y = (h * weight).sum()"""
    )
    old, new = function_of(SET), function_of(draft.text)
    assert gradients(old) == gradients(new, compiled=True)


@pytest.mark.parametrize(
    "lines",
    [
        "    h = x * 2\n    h.requires_grad = True  # <-\n    y = h.grad",
        "    self.h.requires_grad = True  # <-\n    y = self.h",
        "    y = x * 2\n    y.requires_grad_()  # <-",
        "    y = x.requires_grad  # <-",
    ],
)
def test_requires_grad_refused(lines):
    with pytest.raises(Refused):
        rewritten(skip_requires_grad, step_with(lines), "GB116")


def test_requires_grad_of_a_new_tensor_is_left_alone_while_compiling():
    before = step_with(
        "    y = (torch.zeros_like(x).requires_grad_() + weight).sum()  # <-"
    )
    draft = rewritten(not_of_new_tensor, before, "GB116")
    assert draft.tier == "unsafe"
    new = "requires_grad_(not torch.compiler.is_compiling())"
    assert draft.text == before.replace("requires_grad_()", new).replace("  # <-", "")
    old, new = function_of(before), function_of(draft.text)
    assert gradients(old) == gradients(new) == gradients(new, compiled=True)


@pytest.mark.parametrize(
    "line",
    [
        "y = x.requires_grad_()",
        "y = self.noise(x).requires_grad_()",
        "y = torch.zeros_like(x).requires_grad_(x.requires_grad)",
        "y = torch.zeros_like(x)",
    ],
)
def test_requires_grad_of_other_tensors_refused(line):
    with pytest.raises(Refused):
        rewritten(not_of_new_tensor, step_with(f"    {line}  # <-"), "GB116")


def test_an_optional_context_is_left_out():
    before = step_with(
        """\
    with torch.backends.cudnn.flags(enabled=False):  # <-
        y = (x * weight).sum()"""
    )
    draft = rewritten(skip_context, before, "GB111")
    assert draft.tier == "unsafe"
    context = "torch.backends.cudnn.flags(enabled=False)"
    assert draft.text == step_with(
        f"""\
    with contextlib.nullcontext() if torch.compiler.is_compiling() else {context}:
        y = (x * weight).sum()""",
        "import contextlib\n",
    )
    old, new = function_of(before), function_of(draft.text)
    assert gradients(old) == gradients(new, compiled=True)


@pytest.mark.parametrize(
    "context",
    ["torch.no_grad()", "open(x)", "torch.profiler.profile() as p", "lock"],
)
def test_other_contexts_are_refused(context):
    with pytest.raises(Refused):
        lines = f"    with {context}:  # <-\n        y = x * 2"
        rewritten(skip_context, step_with(lines), "GB111")
