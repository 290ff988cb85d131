"""A random draw that decides whether a layer runs."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.layer_drop import rate_first

HEADER = "import random\n\nimport numpy as np\nimport torch\n\n\n"


def step_with(lines: str) -> str:
    return program(
        f"{HEADER}def step(x, p=0.0, training=True):\n{lines}\n    return x\n"
    )


CASES = {
    "continue": (
        """\
    for i in range(3):
        draw = torch.rand([])
        if draw < p:  # <-
            continue
        x = x * 2""",
        """\
    for i in range(3):
        draw = torch.rand([])
        if p > 0 and draw < p:
            continue
        x = x * 2""",
        "safe",
    ),
    "a name for the condition": (
        """\
    draw = torch.rand([])
    skip = training and draw < p
    if not skip or not training:  # <-
        x = x * 2""",
        """\
    draw = torch.rand([])
    skip = training and p > 0 and draw < p
    if not skip or not training:
        x = x * 2""",
        "safe",
    ),
    "brackets": (
        """\
    draw = torch.rand([])
    if training and (p > draw):  # <-
        x = x * 2""",
        """\
    draw = torch.rand([])
    if training and (p > 0 and p > draw):
        x = x * 2""",
        "safe",
    ),
    "keeps the layer": (
        """\
    draw = torch.rand([])
    if not training or draw >= p:  # <-
        x = x * 2""",
        """\
    draw = torch.rand([])
    if not training or (p <= 0 or draw >= p):
        x = x * 2""",
        "safe",
    ),
    "a draw of exactly 0": (
        """\
    draw = torch.rand([])
    if draw > p:  # <-
        x = x * 2""",
        """\
    draw = torch.rand([])
    if p <= 0 or draw > p:
        x = x * 2""",
        "unsafe",
    ),
    "no draw": (
        """\
    if torch.rand([]) < p:  # <-
        x = x * 2""",
        """\
    if p > 0 and torch.rand([]) < p:
        x = x * 2""",
        "unsafe",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rate_first(name):
    lines, after, tier = CASES[name]
    before = step_with(lines)
    draft = rewritten(rate_first, before)
    assert draft.text == step_with(after)
    assert draft.tier == tier
    old, new = function_of(before), function_of(draft.text)
    torch._dynamo.reset()
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(old(x), compiled(x))
    for rate in (0.0, 0.5, 1.0):
        torch.manual_seed(0)
        first, state = old(x, rate), torch.get_rng_state()
        torch.manual_seed(0)
        assert torch.equal(new(x, rate), first)
        assert tier == "unsafe" or torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "lines",
    [
        "    if x.sum() < p:  # <-\n        x = x * 2",
        "    draw = torch.randn([])\n    if draw < p:  # <-\n        x = x * 2",
        "    draw = random.uniform(-1, 1)\n    if draw < p:  # <-\n        x = x * 2",
        "    d = torch.rand([])\n    d = x[0]\n    if d < p:  # <-\n        x = x * 2",
        "    draw = torch.rand([])\n    if draw < x.sum():  # <-\n        x = x * 2",
    ],
)
def test_refused(lines):
    with pytest.raises(Refused):
        rewritten(rate_first, step_with(lines))
