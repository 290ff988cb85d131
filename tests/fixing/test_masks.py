"""Boolean masks as indices become torch.where."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.masks import direct, write


def step_with(lines: str) -> str:
    return program(f"import torch\n\n\ndef step(x, y):\n{lines}\n")


WRITTEN = {
    "arithmetic": (
        """\
    mask = x > 0
    x[mask] = x[mask] * 2 + 1  # <- x[mask]
    return x""",
        """\
    mask = x > 0
    x.copy_(torch.where(mask, (x * 2 + 1).to(x.dtype), x))
    return x""",
    ),
    "augmented": (
        """\
    # Only those that are positive.
    x[x > 0] += y[x > 0]  # <-
    return x""",
        """\
    # Only those that are positive.
    mask = x > 0
    x.copy_(torch.where(mask, (x + y).to(x.dtype), x))
    return x""",
    ),
    "functions with infinite gradients": (
        """\
    mask = x > 0
    x[mask] = x[mask].sqrt() / y[mask]  # <- x[mask]
    return x""",
        """\
    mask = x > 0
    computed = (torch.where(mask, x, 1).sqrt() / torch.where(mask, y, 1)).to(x.dtype)
    x.copy_(torch.where(mask, computed, x))
    return x""",
    ),
    "several statements": (
        """\
    mask = ~torch.isnan(x)
    some = x[mask]  # <- x[mask]
    some = torch.tanh(some)
    x[mask] = some
    return x""",
        """\
    mask = ~torch.isnan(x)
    x.copy_(torch.where(mask, torch.tanh(torch.where(mask, x, 1)).to(x.dtype), x))
    return x""",
    ),
    "a copy": (
        """\
    y[x > y] = x[x > y]  # <-
    return y""",
        """\
    mask = x > y
    selected = mask.view(*mask.shape, *[1] * (y.dim() - mask.dim()))
    y.copy_(torch.where(selected, x, y))
    return y""",
    ),
    "rows": (
        """\
    mask = x.sum(-1) > 0
    x[mask] = x[mask].exp()  # <- x[mask]
    return x""",
        """\
    mask = x.sum(-1) > 0
    selected = mask.view(*mask.shape, *[1] * (x.dim() - mask.dim()))
    x.copy_(torch.where(selected, torch.where(selected, x, 1).exp().to(x.dtype), x))
    return x""",
    ),
}
DIRECT = {
    "places": (
        """\
    x[torch.where(x.sum(-1) > 0)] = 5.0  # <-
    return x + y""",
        """\
    x[x.sum(-1) > 0] = 5.0
    return x + y""",
    ),
}
CASES = [
    *((write, *texts) for texts in WRITTEN.values()),
    *((direct, *texts) for texts in DIRECT.values()),
]
NAN, INF = float("nan"), float("inf")
OBSERVED = """

def observed(x, y):
    inputs = x * 1, y * 1
    output = step(*inputs)
    return [each * 1 for each in (output, *inputs)]
"""
INPUTS = [
    torch.tensor([[1.0, -2.0], [3.0, 4.0]]),
    torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]),
    torch.tensor([[1.0, 1.0], [1.0, 1.0]]),
    torch.tensor([[NAN, 1.0], [-1.0, 0.0]]),
    torch.tensor([[1.0, -INF], [INF, 0.0]]),
]


def outcome(run, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, changed inputs and gradients."""
    leaves = [each.clone().requires_grad_() for each in (x, y)]
    outputs = run(*leaves)
    total = sum(each.nansum() for each in outputs)
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [*outputs, *(torch.zeros(2, 2) if g is None else g for g in grads)]


@pytest.mark.parametrize(("rewrite", "before", "after"), CASES)
def test_masks(rewrite, before: str, after: str) -> None:
    """The text; outputs, gradients and mutation in eager and in one graph."""
    before, after = step_with(before), step_with(after)
    assert rewritten(rewrite, before).text == after
    old, new = (function_of(each + OBSERVED, "observed") for each in (before, after))
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    y = torch.tensor([[0.0, 2.0], [3.0, -1.0]])
    for x in INPUTS:
        expected = outcome(old, x, y)
        for version in (new, compiled):
            for a, b in zip(expected, outcome(version, x, y), strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)


def test_integers_keep_their_values() -> None:
    """The elements that are not selected are not rounded to a float."""
    lines = "    mask = x > y\n    x[mask] = x[mask] / 2  # <- x[mask]\n    return x"
    text = rewritten(write, step_with(lines)).text
    large = 2**40 + 1
    x, y = torch.tensor([9, large]), torch.tensor([1, large])
    assert function_of(text)(x, y).tolist() == [4, large]


REFUSED = {
    "not elementwise": (write, "x[m] = x[m].softmax(-1)  # <-", "elementwise"),
    "matrix": (write, "x[m] = x[m] @ y  # <-", "elementwise"),
    "reduction": (write, "x[m] = x[m] - x[m].mean()  # <-", "elementwise"),
    "another mask": (write, "x[m] = y[~m]  # <-", "nothing is read"),
    "another index": (write, "x[m] = x[m] * y[0]  # <-", "another way"),
    "not masked": (write, "x[m] = x[m] * y  # <-", "as long as"),
    "remainder": (write, "x[m] = x[m] % y[m]  # <-", "elementwise"),
    "side effect": (write, "x[m] = f(x[m])  # <-", "side effects"),
    "random": (write, "x[m] = torch.rand_like(x[m])  # <-", "random"),
    "used again": (
        write,
        "v = x[m]  # <-\n    x[m] = v * 2\n    y = v.sum()",
        "used again",
    ),
    "changed in between": (
        write,
        "v = x[m]  # <-\n    x.add_(1)\n    x[m] = v * 2",
        "changes between",
    ),
    "not stored": (write, "y = x[m]  # <-", "not stored"),
    "singular": (write, "x[m] = x[m].acos()  # <-", "elementwise"),
    "two arguments": (
        direct,
        "x[torch.where(m, x, y)] = 1.0  # <-",
        "nothing is stored",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_masks_refuse(name: str) -> None:
    rewrite, lines, why = REFUSED[name]
    with pytest.raises(Refused, match=why):
        rewritten(rewrite, step_with(f"    m = y > 0\n    {lines}\n    return x + y"))
