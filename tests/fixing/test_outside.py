"""Python at the edge of a compiled function leaves it, and the rest is one graph."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
LISTED = """
    import torch

    def step(x, y):
        h = x @ y.T
        return h, [v * 2 for v in h.sum(-1).tolist()]  # <-
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
        return loss.detach(), weight.grad
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


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(
    ("text", "code"),
    [(DRAW, "GB115"), (CLOCK, "GB115"), (UPDATE, "GB110"), (RECURRENT, "GB108")],
)
def test_the_values_are_the_same(text: str, code: str) -> None:
    draft = drafted(text, code)
    assert draft.tier == "safe"
    torch.manual_seed(0)
    calls = [[torch.rand(3, 4, requires_grad=True) for _ in "xy"] for _ in range(2)]
    before, after = function_of(text), function_of(draft.text)
    compiled = torch.compile(function_of(draft.text), backend="aot_eager")
    for call in calls:
        expected = with_gradients(before, call)
        torch.testing.assert_close(with_gradients(after, call), expected)
        torch.testing.assert_close(with_gradients(compiled, call), expected)


def with_gradients(
    step: Callable[..., Any], call: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """What a step returns, and the gradients of its arguments."""
    for each in call:
        each.grad = None
    outputs = step(*call)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    open_ends = [each.square().sum() for each in outputs if each.requires_grad]
    if open_ends:
        sum(open_ends).backward()
    return [*outputs, *(each.grad for each in call)]


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(
    ("text", "code"), [(CLOCK, "GB115"), (LISTED, "GB101"), (UPDATE, "GB110")]
)
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
        "def k():\n        return x\n    random.random()  # <-\n    return k() @ x",
        "k = torch.split(x, net.tolist())  # <-\n    return [k[0] @ x]",
        "k = random.random()  # <-\n    yield x @ x * k",
        "h: torch.Tensor\n    if x.dim() > 1:\n        h = x\n"
        "    k = random.random()  # <-\n    return h @ x * k",
        "h: torch.Tensor\n    if x.dim() > 1:\n        h = x @ x\n    y = x @ x.T @ x\n"
        "    return y, h, y.tolist()  # <-",
        "s = x.to_sparse()  # <-\n    return torch.sparse.mm(s, x).relu()",
        "k = net.scale * net(x).sum().item()  # <-\n    return x @ x.T * k",
        "net.total += net(x).sum().item()  # <-\n    return x @ x.T",
        "net[x.sum().item()] += net(x).sum()  # <-\n    return x @ x.T",
        "k = x.sum() + net(x).sum().item()  # <-\n    return x @ x.T * k",
        "k = net.ready and net(x).sum().item()  # <-\n    return x @ x.T * k",
        "k = [net(each).item() for each in x]  # <-\n    return x @ x.T, k",
        "if x.dim() > 1:\n        k = random.random()  # <-\n    return x @ x.T * k",
        "for i in range(3):\n        if i:\n            x = x @ y\n"
        "        y = x @ x.T\n"
        "        print(x.sum().item())  # <-\n    return y",
        "try:\n        k = x.sum().item()  # <-\n    except OSError:\n        k = 0\n"
        "    return x @ x.T * k",
        "big = x.dim() > 2 and (h := x @ y) is not None\n"
        "    k = random.random()  # <-\n    return h * k if big else x @ x.T * k",
        "k = x.sum().item()  # <-\n    y = x @ x.T\n    return eval('k * y')",
        "f = [lambda v: v * k]\n    y = x @ x.T\n    k = random.random()  # <-\n"
        "    return f[0](y) @ y",
        "f = (v * k for v in x)\n    y = x @ x.T\n    k = random.random()  # <-\n"
        "    return sum(f) @ y",
        "k = 5 < x.sum().item() < net(x).sum().item()  # <-\n    return x @ x.T * k",
        "h = x @ x.T; k = h.sum().item(); y = h @ x  # <-\n    return y * k",
    ],
)
def test_what_is_left_alone(body: str) -> None:
    """Nothing to compile, a name that may be missing, work in another order."""
    text = f"import random\nimport torch\n\n\ndef step(x, net):\n    {body}\n"
    with pytest.raises(Refused):
        drafted(text)


PARTS = """
import random
import torch

net, out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
layers = torch.nn.ModuleList([net, out]).requires_grad_(False)
known, notes = {}, []


class Meter:
    total = 0.0

    def update(self, value, n):
        self.total += value * n


meter = Meter()


def step(x):
    %s
"""


@pytest.mark.parametrize(
    ("body", "graphs"),
    [
        ("h = x @ x.T\n    k = random.random()  # <-\n    return h @ x * k", 3),
        (
            "h = x @ x.T\n    if x.dim() > 9:\n        return h\n"
            "    notes.append(h.sum().item())  # <-\n    return h",
            1,
        ),
        (
            "n = x.sum().item()  # <-\n    h = (x @ x.T) * n\n"
            "    k = h.argmax().item()\n    return h @ x + k",
            2,
        ),
        ("i = int(x[0].argmax())  # <-\n    h = x @ x.T\n    return h[i]", 1),
        ("i = int(x[0].argmax())  # <-\n    return torch.zeros(i + 1, 4) @ x", 1),
        ("h = x @ x.T\n    return h, [v * 2 for v in h.sum(-1).tolist()]  # <-", 1),
        (
            "def double(v):\n        return v * 2\n    h = double(net(x))\n"
            "    return h, h.sum().item()  # <-",
            1,
        ),
        ("k = int(net(x).argmax())  # <-\n    return x * k", 1),
        ("known[x.sum().item()] = net(x)  # <-\n    return list(known.values())", 1),
        ("notes.append(net(x).sum().item())  # <-\n    return x @ x.T", 2),
        (
            "loss = net(x).mean()\n    meter.update(loss.item(), len(x))  # <-\n"
            "    return loss * meter.total",
            1,
        ),
        (
            "for each in layers:\n        x = each(x)\n"
            "        if x.sum().item() > 90:  # <-\n            break\n"
            "        elif x.sum() > 80:\n            x = x.relu()\n"
            "    else:\n        x = x + 1\n    return x",
            1,
        ),
        (
            "i, tokens = 0, [x]\n    while i < 4 and x.norm().item() > 0.1:  # <-\n"
            "        old = x\n        x = net(x) / 2\n        tokens.append(x - old)\n"
            "        i += 1\n    return torch.stack(tokens), old",
            1,
        ),
        (
            "for i in range(3):\n        if x.sum().item() > 90:  # <-\n"
            "            break\n        elif i < 2:\n            x = net(x)\n"
            "        else:\n            x = out(x)\n    return x",
            2,
        ),
        (
            "last = x\n    for i in range(3):\n        with torch.no_grad():\n"
            "            y = net(last)\n        for each in layers:\n"
            "            y = each(y)\n        if y.max() > 0.5:  # <-\n"
            "            return y @ x.T\n        last = y\n    return last",
            2,
        ),
        (
            "for i in range(2):\n        x = layers[i](x)\n"
            "        notes.append(float(x.mean()))  # <-\n    return x",
            1,
        ),
    ],
)
def test_each_part_is_one_graph(body: str, graphs: int) -> None:
    """The values are the same, and nothing breaks a graph."""
    text = PARTS % body
    x = torch.linspace(-1, 1, 16).view(4, 4)
    results = []
    counter = torch._dynamo.testing.CompileCounter()
    draft = drafted(text, "GB101").text
    for code, backend in ((text, None), (draft, None), (draft, counter)):
        random.seed(0)
        torch.manual_seed(0)
        step = function_of(code)
        torch._dynamo.utils.counters.clear()
        run = step if backend is None else torch.compile(step, backend=backend)
        results.append([run(x) for _ in range(2)])
    for each in results[1:]:
        torch.testing.assert_close(each, results[0])
    assert not torch._dynamo.utils.counters["graph_break"]
    assert counter.frame_count == graphs


def test_each_part_has_a_name_of_its_own() -> None:
    body = "_step_in_graph = x @ x\n    k = random.random()  # <-\n"
    text = drafted(PARTS % (body + "    return (_step_in_graph @ x * k).relu()")).text
    assert len(set(re.findall(r"def (_step_in_graph\w*)", text))) == 2


@pytest.mark.parametrize("given", ["x, w", "*args", "*, self, x, w"])
def test_a_function_of_a_class_without_self_stays(given: str) -> None:
    text = f"""
        class Net:
            def forward({given}):
                k = random.random()  # <-
                return x @ x * k
    """
    with pytest.raises(Refused):
        drafted(text)


def test_a_subclass_keeps_its_own_graph() -> None:
    """Its method calls that of its base class, which has been edited as well."""
    base = DRAW.replace("Noisy", "Base")
    text = base.replace("# <- random.gauss(0.0, scale)", "")
    text += """
    class Sub(Base):
        def forward(self, x):
            strength = random.gauss(0.0, 1.0)  # <-
            return super().forward(x) * strength

    def sub(x):
        random.seed(3)
        torch.manual_seed(3)
        return Sub()(x)
    """
    once = drafted(text).text
    [line] = [each for each in once.splitlines() if "gauss(0.0, scale)" in each]
    twice = drafted(once.replace(line, f"{line}  # <- random.gauss(0.0, scale)")).text
    x = torch.rand(3, 4)
    expected = function_of(text, "sub")(x)
    torch.testing.assert_close(function_of(twice, "sub")(x), expected)


@pytest.mark.parametrize(
    ("line", "is_passed"),
    [("k = x.sum().item()", True), ("print(x.sum().item())", False)],
)
def test_only_a_value_is_passed_in(line: str, is_passed: bool) -> None:
    text = f"""
        import torch

        def step(x, k):
            {line}  # <-
            return torch.relu(x @ x.T) * k
    """
    assert ("argument" in drafted(text).title) is is_passed


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
