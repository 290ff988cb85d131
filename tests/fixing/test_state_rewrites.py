"""Python values that change from call to call leave the graph, or become inputs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fix_runs import fixed, verified
from sites import program, site

from torchproof.fixing.rewrites import Draft, Refused, Rewrite
from torchproof.fixing.rewrites.state import (
    joined_list,
    outside_graph,
    tensor_argument,
)


def drafted(rewrite: Rewrite, text: str, subject: str) -> Draft:
    return rewrite(dataclasses.replace(site(text), subject=subject))


COUNTER = """
class Model:
    def forward(self, x):
        self.calls += 1  # <-
        limit = min(1.0, self.calls / 100)
        y = self.inner(x).clamp(-limit, limit)
        return y + self.calls
"""


def test_a_counter_is_counted_before_the_graph() -> None:
    draft = drafted(outside_graph, COUNTER, "self.calls")
    assert draft.text == program(
        """
        from torchproof import on_host
        class Model:
            @on_host
            def forward(self, x):
                self.calls += 1
                limit = min(1.0, self.calls / 100)
                calls = self.calls
                return self._forward_in_graph(x, calls, limit)

            def _forward_in_graph(self, x, calls, limit):
                y = self.inner(x).clamp(-limit, limit)
                return y + calls
        """
    )


def test_a_counter_is_counted_after_the_graph() -> None:
    draft = drafted(
        outside_graph,
        """
        class Model:
            def forward(self, x):
                y = self.inner(x) * self.calls  # <-
                self.calls += 1
                return y
        """,
        "self.calls",
    )
    assert draft.text == program(
        """
        from torchproof import on_host
        class Model:
            def _forward_in_graph(self, x, calls):
                y = self.inner(x) * calls
                return y

            @on_host
            def forward(self, x):
                calls = self.calls
                y = self._forward_in_graph(x, calls)
                self.calls += 1
                return y
        """
    )


def test_a_global_becomes_an_argument() -> None:
    draft = drafted(
        outside_graph,
        """
        SCALE = 1.5


        def step(x):
            return x * SCALE  # <-
        """,
        "SCALE",
    )
    assert draft.text.endswith(
        """\
@on_host
def step(x):
    scale = SCALE
    return _step_in_graph(x, scale)


def _step_in_graph(x, scale):
    return x * scale
"""
    )


def test_a_number_becomes_a_tensor() -> None:
    text = "import torch\n\n\ndef step(x, scale=1.0):\n    return x * scale  # <-\n"
    draft = drafted(tensor_argument, text, "scale")
    assert "    scale = torch.as_tensor(scale)\n" in draft.text
    assert "def _step_in_graph(x, scale):\n    return x * scale\n" in draft.text


LISTS = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, images=None):
        x = self.inner(x)
        if images is not None:
            x = x + self.vision(torch.stack([i for i in images]))  # <-
        return x
"""


def test_a_list_is_joined_before_the_graph() -> None:
    draft = drafted(joined_list, LISTS, "images")
    assert draft.text.endswith(
        """\
    @on_host
    def forward(self, x, images=None):
        images_joined = torch.stack([i for i in images]) if images is not None else None
        if images_joined is not None:
            torch._dynamo.maybe_mark_dynamic(images_joined, 0)
        return self._forward_in_graph(x, images_joined)

    def _forward_in_graph(self, x, images_joined):
        x = self.inner(x)
        if images_joined is not None:
            x = x + self.vision(images_joined)
        return x
"""
    )


REFUSED = {
    "a loop": (
        joined_list,
        "y = 0\n    for each in x:  # <-\n        y = y + each\n    return y",
        "x",
        "one by one",
    ),
    "what the graph computes": (
        joined_list,
        "n = g(0)\n    return torch.stack([a * n for a in x])  # <-",
        "x",
        "which the graph computes",
    ),
    "a local name": (outside_graph, "n = g(x)\n    return n  # <-", "n", "not an attr"),
    "an object of the graph": (
        outside_graph,
        "n = g(x)\n    return n.size  # <-",
        "n.size",
        "is assigned",
    ),
    "read elsewhere": (
        outside_graph,
        "return g(x)  # <-",
        "self.calls",
        "in a function that the graph calls",
    ),
    "no argument": (tensor_argument, "return x * g(1)  # <-", "n", "not an argument"),
    "a counter in the middle": (
        outside_graph,
        "y = g(x)\n    s.n += 1  # <-\n    return g(y)",
        "s.n",
        "leave the graph",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    rewrite, lines, subject, why = REFUSED[name]
    with pytest.raises(Refused, match=why):
        drafted(rewrite, f"import torch\n\n\ndef f(x, s):\n    {lines}\n", subject)


# -- proofs ----------------------------------------------------------------------------

STATE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.calls = 0
        self.history = []

    def forward(self, x):
        self.calls += 1
        y = self.inner(x) / self.calls
        self.history.append(y.mean().item())
        return y


def make():
    torch.manual_seed(0)
    return Model(), [(torch.randn(2, 4),) for _ in range(6)]
"""


@pytest.mark.slow  # a proof of its own
def test_a_counter_and_a_history_are_proved(tmp_path: Path) -> None:
    run = fixed(tmp_path, STATE)
    done = verified(run)
    assert any("self.calls" in each.title for each in done)
    assert run.fixing is not None
    assert run.counts["recompiles"] and run.fixing.counts["recompiles"] == 1
    assert {each.code for each in run.fixing.remaining} <= {"RC210"}  # it settles


IMAGES = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x, images):
        if images is not None:
            x = x + self.inner(torch.stack(images)).mean(0)
        return x


def make():
    torch.manual_seed(0)
    sizes = (2, 3, 4, 5)
    return Model(), [
        (torch.randn(4), [torch.randn(4) for _ in range(n)]) for n in sizes
    ]
"""


@pytest.mark.slow  # a proof of its own
def test_a_list_is_proved(tmp_path: Path) -> None:
    run = fixed(tmp_path, IMAGES)
    (done,) = verified(run)
    assert done.codes == ("RC212",) and done.tier == "safe"
    assert run.fixing is not None and not run.fixing.remaining
    assert run.counts["recompiles"] == 3 and run.fixing.counts["recompiles"] == 0
