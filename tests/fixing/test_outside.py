"""Python at the edge of a compiled function leaves it, and the rest is one graph."""

from dataclasses import replace

import pytest
import torch
import torch._dynamo.testing
from sites import function_of, site

from torchproof.fixing.rewrites import Draft, Refused
from torchproof.fixing.rewrites.outside import split
from torchproof.fixing.rewrites.outside import text as of_text

DRAW = """
    import random
    import torch
    from torch import nn

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, *more, scale=1.0) -> torch.Tensor:
            "Adds noise."
            # of this call
            strength = random.gauss(0.0, scale)  # <- random.gauss(0.0, scale)
            for each in more:
                x = x + each
            return self.lin(x) * strength

    def step(x, y):
        random.seed(3)
        torch.manual_seed(3)
        return Noisy()(x, y, scale=0.5)
"""
CLOCK = """
    import time
    import torch

    seconds = []

    def step(x, y):
        begin = time.monotonic()
        a, b = x @ y.T, None
        if x.shape[0] > 2:
            b = a.softmax(-1)
        seconds.append(time.monotonic() - begin)  # <-
        return a, b
"""
UPDATE = """
    import torch

    weight = torch.ones(4, requires_grad=True)

    def step(x, y):
        weight.grad = None
        loss = torch.nn.functional.mse_loss(x * weight, y)
        loss.backward()  # <-
        with torch.no_grad():
            for each in [weight]:
                each -= 0.1 * each.grad
        return loss.detach()
"""
RECURRENT = """
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
            self.rnn = nn.GRU(4, 4)

        def forward(self, x):
            h = self.first(x).relu()
            h, state = self.rnn(h)  # <-
            return self.last(h), state

    def step(x, y):
        torch.manual_seed(3)
        return Tagger()(x)
"""


def drafted(text: str, code: str = "GB115") -> Draft:
    return split(replace(site(text, code), is_entry=True))


@pytest.mark.parametrize(
    ("text", "code"),
    [(DRAW, "GB115"), (CLOCK, "GB115"), (UPDATE, "GB110"), (RECURRENT, "GB108")],
)
def test_the_values_are_the_same(text: str, code: str) -> None:
    draft = drafted(text, code)
    assert draft.tier == "safe"
    torch.manual_seed(0)
    calls = [(torch.rand(3, 4), torch.rand(3, 4)) for _ in range(2)]
    before, after = function_of(text), function_of(draft.text)
    for call in calls:
        torch.testing.assert_close(after(*call), before(*call))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(("text", "code"), [(CLOCK, "GB115"), (UPDATE, "GB110")])
def test_the_rest_is_one_graph(text: str, code: str) -> None:
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(function_of(drafted(text, code).text), backend=counter)
    for _ in range(3):
        compiled(torch.rand(3, 4), torch.rand(3, 4))
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "body",
    [
        "k = random.random()  # <-\n    return k",
        "k = net(x, random.random())  # <-\n    return x @ k",
        "if x.dim() > 1:\n        k = random.random()  # <-\n    return x @ x.T * k",
        "h = x @ x.T\n    k = random.random()  # <-\n    return h @ x * k",
        "for i in range(3):\n        k = random.random()  # <-\n    return x @ x * k",
        "h = x @ x.T\n    if x.dim() > 9:\n        return h\n"
        "    print(random.random())  # <-\n    return h",
        "def k():\n        return x\n    random.random()  # <-\n    return k() @ x",
        "k = torch.split(x, net.tolist())  # <-\n    return [k[0] @ x]",
        "k = random.random()  # <-\n    yield x @ x * k",
    ],
)
def test_what_is_left_alone(body: str) -> None:
    """Nothing to compile, a module, a name that may be missing, work on both sides."""
    text = f"import random\nimport torch\n\n\ndef step(x, net):\n    {body}\n"
    with pytest.raises(Refused):
        drafted(text)


@pytest.mark.parametrize("decorator", ["torch.no_grad()", "staticmethod"])
def test_another_decorator_would_be_around_the_graph(decorator: str) -> None:
    text = f"""
        @{decorator}
        def step(x):
            k = random.random()  # <-
            return x @ x * k
    """
    with pytest.raises(Refused):
        drafted(text)


def test_a_function_that_a_compiled_one_calls_stays_whole() -> None:
    with pytest.raises(Refused):
        split(site(DRAW, "GB115"))


TOKENS = """
    import torch

    embed = torch.nn.EmbeddingBag(256, 4)

    def tokenizer(text):
        return torch.tensor([list(text.encode())])

    def step(texts, scale):
        ids = tokenizer(texts[0])  # <-
        return embed(ids) * scale
"""


def test_text_becomes_a_tensor_before_the_graph() -> None:
    """Other texts need no other graph."""
    new = of_text(replace(site(TOKENS, "RC210"), is_entry=True)).text
    torch.manual_seed(0)
    step = function_of(TOKENS)
    calls = [([each], torch.ones(4)) for each in ("a dog", "A cat", "a hen")]
    expected = [step(*call) for call in calls]
    counter = torch._dynamo.testing.CompileCounter()
    torch.manual_seed(0)
    compiled = torch.compile(function_of(new), backend=counter)
    for call, value in zip(calls, expected, strict=True):
        torch.testing.assert_close(compiled(*call), value)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "body",
    [
        "kind = mode.lower()  # <-\n    return x.sum() if kind == 'sum' else x.mean()",
        "ids = torch.tensor([ord(c) for c in mode.lower()])  # <-\n    return x @ ids",
        "ids = torch.tensor([len(mode)])  # <-\n    return x @ x.T * ids",
        "if mode.lower() == 'sum':  # <-\n        return x.sum()\n    return x.mean()",
    ],
)
def test_a_text_that_decides_stays(body: str) -> None:
    text = f"import torch\n\n\ndef step(x, mode):\n    {body}\n"
    with pytest.raises(Refused):
        of_text(replace(site(text, "RC210"), is_entry=True))
