"""A random draw that decides whether a layer runs."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.layer_drop import (
    draw_where_needed,
    rate_first,
    select,
)

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


SELECTED = {
    "a name for the condition": (
        """\
    draw = torch.rand([])
    s = training and draw < p
    if not s or n < 3:  # <-
        x = layer(x)""",
        """\
    draw = torch.rand([])
    s = training and draw < p
    if torch.compiler.is_compiling() and isinstance(s, torch.Tensor) and not (n < 3):
        x_before = x
        x = layer(x)
        x = torch.where(s.to(x.device), x_before, x)
    elif not s or n < 3:
        x = layer(x)""",
    ),
    "continue": (
        """\
    for i in range(3):
        # LayerDrop
        if training:
            draw = torch.rand([])
            if draw < p:  # <-
                continue
        x = layer(x)""",
        """\
    for i in range(3):
        # LayerDrop
        skip_layer = False
        if training:
            draw = torch.rand([])
            skip_layer = draw < p
        if torch.compiler.is_compiling() and isinstance(skip_layer, torch.Tensor):
            x_before = x
            x = layer(x)
            x = torch.where(skip_layer.to(x.device), x_before, x)
        elif not skip_layer:
            x = layer(x)""",
    ),
    "two values": (
        """\
    y = x + 1
    for i in range(3):
        draw = torch.rand([])
        skip = training and draw < p
        if not skip:  # <-
            # both
            x, y = both(x, y)""",
        """\
    y = x + 1
    for i in range(3):
        draw = torch.rand([])
        skip = training and draw < p
        if torch.compiler.is_compiling() and isinstance(skip, torch.Tensor):
            x_before, y_before = x, y
            x, y = both(x, y)
            x = torch.where(skip.to(x.device), x_before, x)
            y = torch.where(skip.to(y.device), y_before, y)
        elif not skip:
            # both
            x, y = both(x, y)""",
    ),
    "a flag": (
        """\
    for i in range(3):
        drop = False
        if training:
            draw = torch.rand([])
            if draw < p:  # <-
                drop = True
        if not drop:
            x = layer(x)""",
        """\
    for i in range(3):
        drop = False
        if training:
            draw = torch.rand([])
            drop = draw < p
        if torch.compiler.is_compiling() and isinstance(drop, torch.Tensor):
            x_before = x
            x = layer(x)
            x = torch.where(drop.to(x.device), x_before, x)
        elif not drop:
            x = layer(x)""",
    ),
}


def dropped(lines: str) -> str:
    layer = "def layer(x):\n    return x * 2\n\n\n"
    layer += "def both(x, y):\n    return x * y, x + y\n\n\n"
    step = "def step(x, p=0.5, training=True, n=3):\n"
    return program(f"import torch\n\n\n{layer}{step}{lines}\n    return x\n")


@pytest.mark.parametrize("name", SELECTED)
def test_select(name):
    lines, after = SELECTED[name]
    before = dropped(lines)
    draft = rewritten(select, before)
    assert draft.text == dropped(after)
    assert draft.tier == "unsafe"
    old, new = function_of(before), function_of(draft.text)
    torch._dynamo.reset()
    compiled = torch.compile(new, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for training in (True, False):
        for seed in range(5):
            results = []
            for step in (old, new, compiled):
                torch.manual_seed(seed)
                results.append(step(x, 0.5, training).tolist())
            assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    "lines",
    [
        # A second value depends on the draw.
        """\
    draw = torch.rand([])
    skip = training and draw < p
    if not skip:  # <-
        x = layer(x)
        n = 4""",
        # The layer does not replace its input.
        """\
    draw = torch.rand([])
    skip = training and draw < p
    if not skip:  # <-
        y = layer(x)""",
        """\
    for i in range(3):
        draw = torch.rand([])
        if draw < p:  # <-
            continue
        x = layer(x)
        n = n + 1""",
    ],
)
def test_select_refused(lines):
    with pytest.raises(Refused):
        rewritten(select, dropped(lines))


def test_draw_where_needed():
    before = step_with(
        """\
    draw = np.random.uniform(0, 1)  # <-
    skip = training and (draw < p)
    if not skip:
        x = x * 2"""
    )
    draft = rewritten(draw_where_needed, before)
    assert draft.tier == "unsafe"
    assert draft.text == step_with(
        """\
    draw = np.random.uniform(0, 1) if training and p > 0 else 1.0
    skip = training and (draw < p)
    if not skip:
        x = x * 2"""
    )
    torch._dynamo.reset()
    new = function_of(draft.text)
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(compiled(x), function_of(before)(x))
    assert torch.equal(compiled(x, 0.5, False), function_of(before)(x, 0.5, False))


def test_a_draw_that_is_used_twice_stays():
    with pytest.raises(Refused):
        lines = "    draw = np.random.rand()  # <-\n    x = x * draw * (draw < p)"
        rewritten(draw_where_needed, step_with(lines))
