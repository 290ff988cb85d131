"""Numbers that went through torch or numpy are computed in Python."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.numbers import in_python


def step_with(line: str, imports: str = "") -> str:
    return program(
        f"import numpy as np\nimport torch\n{imports}\n\n"
        "def step(x, n: int = 2, sizes=(2, 3)):\n"
        f"    length = x.shape[0]\n    {line}\n    return x.repeat(int(k))\n"
    )


CASES = {
    "floor": (
        'k = torch.div(length - n, 2, rounding_mode="floor") + 1',
        "k = (length - n) // 2 + 1",
    ),
    "trunc of sizes": (
        "k = 2 * torch.div(x.size(0), 2, rounding_mode='trunc')",
        "k = 2 * (x.size(0) // 2)",
    ),
    "trunc of numbers": (
        "k = -torch.div(n - length, 2, rounding_mode='trunc')",
        "k = -int((n - length) / 2)",
    ),
    "inside a call": (
        'k = max(1, torch.div(x.size(0), n, rounding_mode="floor"))',
        "k = max(1, x.size(0) // n)",
    ),
    "lcm": ("k = np.lcm(n, 3)", "k = math.lcm(n, 3)"),
    "sum": ("k = int(np.sum(sizes[:n]))", "k = int(sum(sizes[:n]))"),
    "prod": ("k = np.prod(sizes)", "k = math.prod(sizes)"),
    "prod of a shape": ("k = np.prod(x.shape[:1])", "k = math.prod(x.shape[:1])"),
    "ceil": ("k = int(np.ceil(length / n))", "k = math.ceil(length / n)"),
    "read back": ("k = torch.tensor(n).item()", "k = n"),
    "largest": (
        "k = torch.tensor([n, length]).max().item()",
        "k = max([n, length])",
    ),
    "product": (
        "k = int(torch.tensor([n, length]).prod())",
        "k = math.prod([n, length])",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_in_python(name):
    before, after = CASES[name]
    draft = rewritten(in_python, step_with(f"{before}  # <-"))
    imports = "import math\n" if "math." in after else ""
    assert draft.text == step_with(after, imports)
    assert draft.tier == "safe"
    old, new = function_of(step_with(before)), function_of(draft.text)
    torch._dynamo.reset()
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    for size in (4, 7, 9):
        x = torch.arange(size)
        assert torch.equal(old(x), new(x))
        assert torch.equal(old(x), compiled(x))


def test_a_number_of_another_function():
    draft = rewritten(
        in_python,
        """
        import numpy as np


        def common(config):
            return np.lcm(config.first, config.second)


        def step(x, config):
            chunk = common(config)
            padded = (
                x.shape[0] % chunk != 0  # <-
                and x.shape[0] > 2
            )
            return x if padded else x + 1
        """,
    )
    assert "return math.lcm(config.first, config.second)" in draft.text
    assert "import math" in draft.text


@pytest.mark.parametrize(
    "line",
    [
        'k = torch.div(x.sum(), n, rounding_mode="trunc")',
        "k = torch.div(length, n)",
        "k = torch.tensor(0.1).item()",
        "k = np.prod(x)",
        "k = np.sum(x * 2)",
        "k = torch.tensor(x).item()",
        "k = np.sum(sizes, axis=0)",
        "k = np.prod(sizes).astype(int)",
        "k = np.unknown(sizes)",
    ],
)
def test_refused(line):
    with pytest.raises(Refused):
        rewritten(in_python, step_with(f"{line}  # <-"))
