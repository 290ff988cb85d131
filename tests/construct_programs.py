"""Programs with Python that Dynamo does not trace, for tests/test_remedies.py.

Each with the code of its finding and the kind of the remedy: `none` where the meaning
would not stay the same.
"""

FILTERED = """
@torch.compile(backend="eager")
def f(x):
    {block}
        y = x.sin()
    return y.cos()
for i in range(2):
    out = f(torch.ones(4))
"""
FUNCTION = """
class Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx, left, right):
        {body}
    @staticmethod
    def backward(ctx, grad):
        return grad, grad
@torch.compile(backend="eager")
def f(x):
    return Added.apply(x.sin(), x).relu()
for i in range(2):
    out = f(torch.ones(4, requires_grad={grad}))
"""
CLASS = """
@torch.compile(backend="eager")
def f(x):
    scale = 2.0
    class Pair{base}:
        {body}
    y = x.sin()
    return y * Pair(3.0).value
for i in range(2):
    out = f(torch.ones(4))
"""
MADE = """
@torch.compile(backend="eager")
def f({parameters}):
    for {names}:
        x = x + y
    return x
{before}
for i in range(2):
    out = f(torch.ones(4), {made})
"""
CROP = """
import random
random.seed(0)
@torch.compile(backend="eager")
def f(x):
    start = random.{draw}
    {line}
for i in range(3):
    out = f(torch.arange(16.0).view(2, 8))
"""

CONSTRUCTS = {
    "a filter that a block sets first": (
        "GB105",
        "edit",
        FILTERED.format(
            block="with warnings.catch_warnings():\n"
            '        warnings.simplefilter("ignore")'
        ),
    ),
    "a filter of one category": (
        "GB105",
        "edit",
        FILTERED.format(
            block="with warnings.catch_warnings():\n"
            '        warnings.filterwarnings("ignore", category=UserWarning)'
        ),
    ),
    "a filter of some messages": (
        "GB105",
        "none",
        FILTERED.format(
            block="with warnings.catch_warnings():\n"
            '        warnings.filterwarnings("ignore", "slow")'
        ),
    ),
    "an input that is changed and returned": (
        "GB199",
        "edit",
        FUNCTION.format(
            body="ctx.mark_dirty(left)\n        return left.add_(right)", grad=True
        ),
    ),
    "an input that is changed, by another name": (
        "GB199",
        "edit",
        FUNCTION.format(
            body="ctx.mark_dirty(left)\n"
            "        out = left.mul_(right)\n"
            "        return out",
            grad=True,
        ),
    ),
    "an input that is changed, without gradients": (
        "GB199",
        "none",
        FUNCTION.format(
            body="ctx.mark_dirty(left)\n        return left.add_(right)", grad=False
        ),
    ),
    "a class that needs nothing": (
        "GB113",
        "edit",
        CLASS.format(
            base="", body="def __init__(self, value):\n            self.value = value"
        ),
    ),
    "a class of a base and a method": (
        "GB113",
        "edit",
        CLASS.format(
            base="(dict)",
            body='"""A pair."""\n        kind = "pair"\n'
            "        def __init__(self, value):\n            self.value = value",
        ),
    ),
    "a class that needs a local variable": (
        "GB113",
        "none",
        CLASS.format(
            base="",
            body="def __init__(self, value):\n            self.value = value * scale",
        ),
    ),
    "pairs that the caller makes": (
        "GB113",
        "none",
        MADE.format(
            parameters="x, pairs",
            names="_, y in pairs",
            before="",
            made="zip([0, 1], [torch.ones(4), torch.zeros(4)])",
        ),
    ),
    "a crop": (
        "GB117",
        "none",
        CROP.format(
            draw="randint(0, 3)", line="return x[:, start : start + 4].sin() * 2"
        ),
    ),
}
