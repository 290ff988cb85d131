"""What a rewrite accepts is equivalent, also on NaN, infinities and zeros."""

import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, Phase, given, note, settings
from sites import function_of, rewritten

from torchproof.fixing.rewrites import Refused, Rewrite
from torchproof.fixing.rewrites.branches import select
from torchproof.fixing.rewrites.masks import write

NAN, INF = float("nan"), float("inf")
VECTORS = [
    (1.0, 2.0, 3.0),
    (-1.0, -2.0, 0.5),
    (0.0, 0.0, 0.0),
    (4.0, 4.0, 4.0),
    (1.0, NAN, 3.0),
    (1.0, INF, -INF),
    (1e30, -1e30, 1e-30),
]
NAMES = ("x", "y", "z")
CONDITIONS = (
    "x.sum() > 0",
    "(x > y).any()",
    "torch.isnan(x).any()",
    "not torch.isfinite(x).all()",
    "x.max().item() > 0.3",
    "n > 1 and x.sum() > 0",
    "n is None or y.max() > x.min()",
    "x[0] > 0",
    "x.sum()",
    "0 < x.sum() < 2",
    "x.sum() > 0 or (y == 0).all()",
    "high == low",
)
UNARY = (
    "{}.sqrt()",
    "torch.log({})",
    "{}.exp()",
    "{}.abs()",
    "{}.clamp(0, 1)",
    "torch.tanh({})",
    "-{}",
    "{} ** 2",
    "1 / {}",
    "{}.softmax(-1)",
    "{}.cumsum(0)",
    "{}.rsqrt()",
    "{}.nan_to_num()",
    "torch.zeros_like({})",
    "{}[0]",
    "{}.add_(1)",
)
BINARY = ("+", "-", "*", "/", "//", "%")
LAST = ("x + y + z", "z * 1, x - y", "z", "x * y")


@st.composite
def expressions(draw: st.DrawFn, names: tuple[str, ...], depth: int = 2) -> str:
    kind = draw(st.sampled_from(("name", "number", "unary", "binary", "binary")))
    if depth == 0 or kind == "name":
        return draw(st.sampled_from(names))
    if kind == "number":
        return draw(st.sampled_from(("1", "2.0", "0.1", "n")))
    inner = expressions(names, depth - 1)
    if kind == "unary":
        operand = draw(inner)
        operand = f"({operand})" if " " in operand else operand
        return draw(st.sampled_from(UNARY)).format(operand)
    return f"({draw(inner)} {draw(st.sampled_from(BINARY))} {draw(inner)})"


@st.composite
def stores(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from((*NAMES, "w")))
    value = draw(expressions(NAMES))
    forms = (
        f"{name} = {value}",
        f"{name} = {value}",
        f"{draw(st.sampled_from(NAMES))} += {value}",
        f"{draw(st.sampled_from(NAMES))} *= 2",
        f"z[0] = {draw(st.sampled_from(('1.0', 'x[0]', 'y.sum()')))}",
        f"y.clamp_({draw(st.sampled_from(('0, 1', 'min=x.min()')))})",
        "x, y = y, x",
        "pass",
    )
    return draw(st.sampled_from(forms))


def block(lines: list[str], indent: int) -> str:
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


@st.composite
def branches(draw: st.DrawFn) -> str:
    arms = st.lists(stores(), min_size=1, max_size=3)
    yes, no = draw(arms), draw(st.one_of(st.just([]), arms))
    if draw(st.booleans()) and draw(st.booleans()):
        yes = [*yes, f"return {draw(expressions(NAMES))}"]
    text = "import torch\n\n\ndef step(x, y, n=2.0):\n"
    text += block(["low, high = x.min(), x.max()"], 4)
    text += block([draw(st.sampled_from(("z = x", "z = y * 2", "z = y[:]")))], 4)
    text += f"    if {draw(st.sampled_from(CONDITIONS))}:  # <-\n{block(yes, 8)}"
    text += f"    else:\n{block(no, 8)}" if no else ""
    after = draw(
        st.lists(st.sampled_from(("x += 1", "z.mul_(2)", "w = z")), max_size=1)
    )
    return text + block([*after, f"return {draw(st.sampled_from(LAST))}"], 4)


MASKS = ("x > 0", "~torch.isnan(x)", "y > x", "x.isfinite()", "(x > 0) & (x < 2)")


@st.composite
def masked(draw: st.DrawFn) -> str:
    names = ("x[mask]", "y[mask]", "n", "x[mask]")
    value = draw(expressions(names))
    lines = ["z = y * 2", f"mask = {draw(st.sampled_from(MASKS))}"]
    target = draw(st.sampled_from(("x", "z")))
    forms = (
        [f"{target}[mask] = {value}  # <-"],
        [f"{target}[mask] += {value}  # <-"],
        [f"v = {value}  # <-", f"{target}[mask] = v"],
        [f"v = {value}  # <-", "v = v * 2", f"{target}[mask] = v + v"],
        [f"z = z + x[mask].{draw(st.sampled_from(('sum', 'mean')))}()  # <- x[mask]"],
    )
    lines += draw(st.sampled_from(forms))
    head = "import torch\n\n\ndef step(x, y, n=2.0):\n"
    return head + block([*lines, "return x + z"], 4)


def result(step: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    """Outputs, changed inputs and gradients, or the exception."""
    leaves = [each.clone().requires_grad_() for each in (x, y)]
    inputs = [each * 1 for each in leaves]
    try:
        outputs = step(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        outputs = [torch.as_tensor(each) for each in outputs]
        total = sum(each.nan_to_num(0, 0, 0).sum() for each in (*outputs, *inputs))
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    except Exception as error:
        return error
    grads = tuple(torch.zeros(3) if g is None else g for g in grads)
    return [each.detach() for each in (*outputs, *inputs, *grads)]


def assert_equivalent(rewrite: Rewrite, text: str) -> None:
    try:
        edited = rewritten(rewrite, text).text
    except Refused:
        return
    note(f"{text}\nbecame\n{edited}")
    old, new = function_of(text), function_of(edited)
    inputs = [(torch.tensor(x), torch.tensor(y)) for x in VECTORS for y in VECTORS[:5]]
    expected = [result(old, *each) for each in inputs]
    if not _is_sound(expected):
        return
    for each, wanted in zip(inputs, expected, strict=True):
        found = result(new, *each)
        note(f"{each}\n{wanted}\n{found}")
        assert not isinstance(found, Exception)
        for a, b in zip(wanted, found, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


def _is_sound(results: list[Any]) -> bool:
    """Whether a program never fails, and its outputs have one shape and dtype.

    Nothing in the source shows the shapes of the arms: the proof of a fix does.
    """
    if any(isinstance(each, Exception) for each in results):
        return False
    return len({str([(t.shape, t.dtype) for t in each]) for each in results}) == 1


PROPERTY = settings(
    max_examples=12,
    phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@PROPERTY
@given(branches())
def test_branches(text: str) -> None:
    assert_branches_are_equivalent(text)


def assert_branches_are_equivalent(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_equivalent(select, text)


@PROPERTY
@given(masked())
def test_masks(text: str) -> None:
    assert_masks_are_equivalent(text)


def assert_masks_are_equivalent(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_equivalent(write, text)
