"""A compiled function is split into its graph and the Python around it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fix_runs import fixed, verified
from sites import program, site

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.host_parts import after_graph, before_graph

MODEL = """
import torch


class Model(torch.nn.Module):
    # The model.
    def forward(self, x: torch.Tensor, name, *more, **options):
        \"\"\"One step.\"\"\"
        # Looks the name up.
        scale = self.scales[name]{prefix}
        y = self.inner(x) * scale
        if y.shape[0] > 2:
            z = y.std()
        else:
            z = y.mean()

        # The history.
        self.history.append(z.item()){suffix}
        print(self.history[-1], options)
        return y
"""


def test_the_rest_runs_after_the_graph() -> None:
    draft = after_graph(site(MODEL.format(prefix="", suffix="  # <-")))
    assert draft.tier == "safe"
    assert draft.text == program(
        """
        import torch
        from torchproof import on_host


        class Model(torch.nn.Module):
            # The model.
            def _forward_in_graph(self, x: torch.Tensor, name):
                # Looks the name up.
                scale = self.scales[name]
                y = self.inner(x) * scale
                if y.shape[0] > 2:
                    z = y.std()
                else:
                    z = y.mean()
                return y, z

            @on_host
            def forward(self, x: torch.Tensor, name, *more, **options):
                \"\"\"One step.\"\"\"
                y, z = self._forward_in_graph(x, name)

                # The history.
                self.history.append(z.item())
                print(self.history[-1], options)
                return y
        """
    )


def test_a_split_function_is_split_again() -> None:
    text = after_graph(site(MODEL.format(prefix="", suffix="  # <-"))).text
    again = text.replace(
        "scale = self.scales[name]\n", "scale = self.scales[name]  # <-\n"
    )
    draft = before_graph(site(again))
    assert draft.text.count("@on_host") == draft.text.count("import on_host") == 1
    assert draft.text.endswith(
        """\
        scale = self.scales[name]
        y, z = self._forward_in_graph(x, scale)

        # The history.
        self.history.append(z.item())
        print(self.history[-1], options)
        return y

    def _forward_in_graph(self, x: torch.Tensor, scale):
        y = self.inner(x) * scale
        if y.shape[0] > 2:
            z = y.std()
        else:
            z = y.mean()
        return y, z
"""
    )


REFUSED = {
    "work of the graph": (
        "y = step.item()  # <-\n    return inner(y)",
        "leave the graph",
    ),
    "a matrix product": ("y = step.item()  # <-\n    return y @ y", "leave the graph"),
    "an early return": (
        "if x is None:\n        return 1\n    y = inner(x)\n    print(y)  # <-",
        "may return before",
    ),
    "not always assigned": (
        "if x.shape[0]:\n        y = inner(x)\n    print(y)  # <-",
        "may not be assigned",
    ),
    "nothing left": ("print(x)  # <-\n    return x", "would be left"),
    "a generator": ("y = inner(x)\n    yield y.item()  # <-", "generator"),
    "another scope": (
        "global y\n    y = inner(x)\n    print(y)  # <-",
        "another scope",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    lines, why = REFUSED[name]
    with pytest.raises(Refused, match=why):
        after_graph(site(f"def f(x, step):\n    {lines}\n"))


def test_only_the_outermost_function_is_split() -> None:
    inside = dataclasses.replace(
        site("def f(x):\n    y = g(x)\n    print(y)  # <-\n"), outermost=False
    )
    with pytest.raises(Refused, match="called by compiled code"):
        after_graph(inside)


# -- proofs ----------------------------------------------------------------------------

TRAINING = """
import logging

import torch

logger = logging.getLogger(__name__)


class Trainer:
    compiles_itself = True
    trains_itself = True

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses = []
        self.compiled = torch.compile(self.step, backend="eager")

    def __call__(self, x):
        return self.compiled(x)

    def step(self, x):
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        logger.info("loss %.4f", self.losses[-1])
        return loss.detach()


def make():
    torch.manual_seed(0)
    return Trainer(), [(torch.randn(4, 8),) for _ in range(5)]
"""


@pytest.mark.slow  # a proof of its own
def test_a_training_step_is_proved(tmp_path: Path) -> None:
    run = fixed(tmp_path, TRAINING)
    done = verified(run)
    assert "run the rest after the graph, in Python" in {each.title for each in done}
    assert all(each.tier == "safe" for each in done)
    assert run.fixing is not None and not run.fixing.remaining
    assert run.fixing.counts["recompiles"] == 0
