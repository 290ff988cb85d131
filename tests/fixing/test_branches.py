"""Branches on tensors become torch.where."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.branches import select


def step_with(lines: str) -> str:
    return program(f"import torch\n\n\ndef step(x, y, n=2.0):\n{lines}\n")


# The code around a branch, and the same code with torch.where.
SELECTED = {
    "no else": (
        """\
    # Large values are cut.
    if x.max() > n:  # <- x.max() > n
        x = x.clamp(-1, 1)  # both sides
    return x + y""",
        """\
    # Large values are cut.
    # both sides
    x = torch.where(x.max() > n, x.clamp(-1, 1), x)
    return x + y""",
    ),
    "else": (
        """\
    if (x < 0).any():  # <-
        z = x + 1
    else:
        z = y - 1
    return z""",
        """\
    z = torch.where((x < 0).any(), x + 1, y - 1)
    return z""",
    ),
    "several names": (
        """\
    if x.sum() > 0:  # <-
        x, y = y + 1, x - 1
    return x - y""",
        """\
    condition = x.sum() > 0
    x, y = torch.where(condition, y + 1, x), torch.where(condition, x - 1, y)
    return x - y""",
    ),
    "a name of the arm": (
        """\
    if x.dtype == torch.half and (torch.isinf(x).any() or torch.isnan(x).any()):  # <-
        limit = torch.finfo(x.dtype).max - 1000
        x = torch.clamp(x, min=-limit, max=limit)
    return x + y""",
        """\
    if x.dtype == torch.half:
        limit = torch.finfo(x.dtype).max - 1000
        x = torch.where(
            torch.logical_or(torch.isinf(x).any(), torch.isnan(x).any()),
            torch.clamp(x, min=-limit, max=limit),
            x,
        )
    return x + y""",
    ),
    "a value used twice": (
        """\
    if x.sum() > 0:  # <-
        z = x + 1
        w = z * 2
    else:
        z = x - 1
        w = y
    return z + w""",
        """\
    condition = x.sum() > 0
    new_z = x + 1
    z = torch.where(condition, new_z, x - 1)
    w = torch.where(condition, new_z * 2, y)
    return z + w""",
    ),
    "expression": (
        """\
    return x * 2 if not (x.sum().item() > 0.1) else y  # <- x.sum().item() > 0.1""",
        """\
    return torch.where(torch.logical_not(x.sum().double() > 0.1), x * 2, y)""",
    ),
    "early return": (
        """\
    low, high = x.min(), x.max()
    if high == low:  # <-
        return torch.zeros_like(x)
    return (x - low) / (high - low)""",
        """\
    low, high = x.min(), x.max()
    condition = high == low
    return torch.where(
        condition,
        torch.zeros_like(x),
        torch.where(condition, 1, x - low) / torch.where(condition, 1, high - low),
    )""",
    ),
    "early return of a tuple": (
        """\
    if x.sum() < 0:  # <-
        return x, y
    z = x * y
    return z, z + 1""",
        """\
    condition = x.sum() < 0
    z = torch.where(condition, 1, x) * torch.where(condition, 1, y)
    return torch.where(condition, x, z), torch.where(condition, y, z + 1)""",
    ),
    "return in both arms": (
        """\
    if x.sum() < 0:  # <-
        return x
    else:
        return y""",
        """\
    return torch.where(x.sum() < 0, x, y)""",
    ),
    "square root": (
        """\
    if x.min() > 0:  # <-
        x = x.sqrt() + torch.log(x)
    return x + y""",
        """\
    condition = x.min() > 0
    x = torch.where(
        condition,
        torch.where(condition, x, 1).sqrt() + torch.log(torch.where(condition, x, 1)),
        x,
    )
    return x + y""",
    ),
    "in place": (
        """\
    if x.sum() > 0:  # <-
        y += 1
    return y""",
        """\
    y.copy_(torch.where(x.sum() > 0, y + 1, y))
    return y""",
    ),
    "in place method": (
        """\
    if x.sum() > 0:  # <-
        y.clamp_(0, 1)
    else:
        y.zero_()
    return y * 1""",
        """\
    y.copy_(
        torch.where(x.sum() > 0, y.clone().clamp(0, 1), torch.zeros_like(y.clone()))
    )
    return y * 1""",
    ),
    "part of a tensor": (
        """\
    y = y.clone()
    if x.sum() > 0:  # <-
        y[0] = x[0] + 1
    return y""",
        """\
    y = y.clone()
    y[0] = torch.where(x.sum() > 0, x[0] + 1, y[0])
    return y""",
    ),
    "python or tensor": (
        """\
    if n is None or x.sum() > n:  # <- x.sum() > n
        x = y
    return x * 1""",
        """\
    if n is None:
        x = y
    else:
        x = torch.where(x.sum() > n, y, x)
    return x * 1""",
    ),
    "python and tensor, with else": (
        """\
    if n > 1 and x.sum() > n:  # <- x.sum() > n
        x = y
    else:
        x = x + 1
    return x * 1""",
        """\
    if n > 1:
        x = torch.where(x.sum() > n, y, x + 1)
    else:
        x = x + 1
    return x * 1""",
    ),
    "python and tensor, early return": (
        """\
    if n > 1 and x.sum() > n:  # <- x.sum() > n
        return y * 1
    x = x + 1
    return x""",
        """\
    if n > 1:
        new_x = x + 1
        return torch.where(x.sum() > n, y * 1, new_x)
    x = x + 1
    return x""",
    ),
    "elif": (
        """\
    if n is None:
        x = y
    elif x.sum() > n:  # <-
        x = x + 1
    return x * 1""",
        """\
    if n is None:
        x = y
    else:
        x = torch.where(x.sum() > n, x + 1, x)
    return x * 1""",
    ),
    "one element": (
        """\
    if x[0] > 0:  # <- x[0] > 0
        y = y + 1
    return y * 1""",
        """\
    y = torch.where((x[0] > 0).reshape(()), y + 1, y)
    return y * 1""",
    ),
    "numbers": (
        """\
    scale = 0.1 if x.sum() > 0 else 2.0  # <- x.sum() > 0
    return x * scale""",
        """\
    scale = torch.where(x.sum() > 0, torch.tensor(0.1, dtype=torch.float64), 2.0)
    return x * scale""",
    ),
}


@pytest.mark.parametrize("name", SELECTED)
def test_select(name: str) -> None:
    before, after = (step_with(each) for each in SELECTED[name])
    assert rewritten(select, before).text == after


NAN, INF = float("nan"), float("inf")
INPUTS = [
    torch.tensor([1.0, 2.0, 3.0]),
    torch.tensor([-1.0, -2.0, 0.5]),
    torch.tensor([4.0, 4.0, 4.0]),
    torch.tensor([0.0, 0.0, 0.0]),
    torch.tensor([1.0, NAN, 3.0]),
    torch.tensor([1.0, INF, -INF]),
]


OBSERVED = """

def observed(x, y):
    inputs = x * 1, y * 1
    outputs = step(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [each * 1 for each in (*outputs, *inputs)]
"""


def outcome(run, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, changed inputs and gradients."""
    leaves = [each.clone().requires_grad_() for each in (x, y)]
    outputs = run(*leaves)
    total = sum((each * torch.arange(1.0, 4.0)).nansum() for each in outputs)
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [*outputs, *(torch.zeros(3) if g is None else g for g in grads)]


# Each is compiled: every third one here, the others in slow tests.
COMPILED = [
    pytest.param(name, marks=[pytest.mark.slow] if number % 3 else [])
    for number, name in enumerate(SELECTED)
]


@pytest.mark.parametrize("name", COMPILED)
def test_selected_agrees(name: str) -> None:
    """Outputs, gradients and mutation, on both outcomes, with NaN and infinities."""
    before, after = (step_with(each) for each in SELECTED[name])
    old, new = (function_of(each + OBSERVED, "observed") for each in (before, after))
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    kind = torch.half if "half" in before else torch.float
    for x in INPUTS:
        y = torch.tensor([0.5, -2.0, 2.0]).to(kind)
        expected = outcome(old, x.to(kind), y)
        # Compiled gradients at infinities differ from eager ones, edited or not.
        versions = (new, compiled) if torch.isfinite(x).all() else (new,)
        for version in versions:
            for a, b in zip(expected, outcome(version, x.to(kind), y), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


REFUSED = {
    "side effect": ("if x.sum() > 0:  # <-\n        y = n.pop()", "side effects"),
    "print": ("if x.sum() > 0:  # <-\n        print(x)", "more than compute"),
    "append": ("if x.sum() > 0:  # <-\n        n.append(x)", "more than compute"),
    "random": ("if x.sum() > 0:  # <-\n        y = torch.rand_like(x)", "random"),
    "None": ("if x.sum() > 0:  # <-\n        y = None", "None"),
    "list": ("if x.sum() > 0:  # <-\n        y = [x]", "not a tensor"),
    "integer division": ("if x.sum() > 0:  # <-\n        y = x // y", "divide by zero"),
    "remainder": ("if x.sum() > 0:  # <-\n        y = x % y", "divide by zero"),
    "index": ("if x.sum() > 0:  # <-\n        y = x[n]", "out of range"),
    "gradient": ("if x.sum() > 0:  # <-\n        y = x.acos()", "side effects|NaN"),
    "alias of another": (
        "z = x[0]\n    if x.sum() > 0:  # <-\n        y = x\n    z.add_(1)",
        "alias",
    ),
    "number or tensor": ("if x.sum() > 0:  # <-\n        y = 0.0", "a number"),
    "layer": ("if x.sum() > 0:  # <-\n        y = n.layer(x)", "side effects"),
    "while": ("while x.sum() > 0:  # <-\n        x = x - 1", "no `if`"),
    "raise": ("if x.sum() > 0:  # <-\n        raise ValueError", "raise ValueError"),
    "loop": (
        "if x.sum() > 0:  # <-\n        for each in y:\n            x = each",
        "a block",
    ),
    "no value before": ("if x.sum() > 0:  # <-\n        z = x\n    y = z", "no value"),
    "alias": ("if x.sum() > 0:  # <-\n        y = x\n    y.add_(1)", "alias"),
    "alias with +=": ("if x.sum() > 0:  # <-\n        y = x\n    y += 1", "alias"),
    "unused": ("if x.sum() > 0:  # <-\n        z = x + 1", "is used"),
    "stored, then used": (
        "if x.sum() > 0:  # <-\n        n.y = x\n        y = n.y + 1",
        "after it has stored",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_select_refuses(name: str) -> None:
    lines, why = REFUSED[name]
    with pytest.raises(Refused, match=why):
        rewritten(select, step_with(f"    {lines}\n    return x + y"))


def test_a_condition_of_several_elements_raises() -> None:
    lines = "    if x > 0:  # <-\n        y = y + 1\n    return y"
    text = rewritten(select, step_with(lines)).text
    with pytest.raises(RuntimeError):
        function_of(text)(torch.ones(3), torch.ones(3))
    one = torch.ones(1, 1)
    assert function_of(text)(one, torch.ones(3)).tolist() == [2, 2, 2]


def test_the_other_arm_of_an_attribute() -> None:
    """Both arms store the same attribute, which the module keeps."""
    before = program(
        """
        import torch


        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("largest", torch.zeros(()))

            def forward(self, x):
                if x.max() > self.largest:  # <-
                    self.largest = x.max()
                return x / 2 + self.largest
        """
    )
    draft = rewritten(select, before)
    assert "condition = (x.max() > self.largest).reshape(())\n" in draft.text
    assert "condition, torch.where(condition, x, 1).max(), self.largest" in draft.text
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    old = function_of(before.replace("# <-", "#"), "Model")()
    new = function_of(draft.text, "Model")()
    compiled = torch.compile(new, backend=backend, fullgraph=True)
    for value in (1.0, 0.5, 3.0, 2.0):
        x = torch.full((4,), value)
        assert torch.equal(old(x), compiled(x))
        assert torch.equal(old.largest, new.largest)
    assert len(graphs) == 1
