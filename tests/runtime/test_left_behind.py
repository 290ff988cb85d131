"""A process that has compiled is as it was before, and other models notice nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import replaced
import torch
from commands import run
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

import torchproof
from torchproof.torch_private.replacements import STAYING

PROGRAM = Path(replaced.__file__)
# Dynamo hides it where warnings are shown, not where they are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


*IN_PROCESS, _ = replaced.CASES


@pytest.mark.parametrize(
    "cases", [IN_PROCESS, pytest.param(["inductor"], marks=pytest.mark.slow)], ids=str
)
def test_nothing_stays_replaced_but_what_is_listed(cases: list[str]) -> None:
    done = run([sys.executable, PROGRAM, *cases])
    assert done.returncode == 0, done.stderr
    # Only modules are copied: a function leaves nothing at all.
    found = set(done.stdout.splitlines())
    listed = [f"torch.nn.modules.module.{each.name[3:]}" for each in STAYING]
    changing = [case for case in cases if case != "deadline"]
    assert found == {f"{case}: {name}" for case in changing for name in listed}


class Plain(nn.Module):
    """Breaks its graph, recompiles for another mode and size, and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.drop = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.mix(x))
        torch._dynamo.graph_break()
        return y @ y.T


def observed(beside: Callable[[], Any]) -> dict[str, Any]:
    """What torch.compile does with a model, while another one is called in between."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    kind = type("Plain", (Plain,), {})
    counter = CompileCounter()
    model = torch.compile(kind(), backend=counter)
    answers = []
    for rows in (2, 2, 3, 5):
        beside()
        answers.append(model(torch.ones(rows, 4)))
    model.eval()
    answers.append(model(torch.ones(2, 4)))
    whole = torch.compile(kind(), backend="eager", fullgraph=True)
    beside()
    with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
        whole(torch.ones(2, 4))
    beside()
    with pytest.raises(RuntimeError) as of_model:
        model(torch.ones(2, 5))
    return {
        "answers": [each.tolist() for each in answers],
        "graphs": (counter.frame_count, counter.op_count),
        "breaks": sum(counters["graph_break"].values()),
        "errors": (str(raised.value).splitlines()[0], str(of_model.value)),
        "limit": torch._dynamo.config.recompile_limit,
    }


@pytest.mark.parametrize("outcome", ["compiles", "falls back", "wait=False"])
def test_a_plain_model_beside_it_compiles_as_if_alone(
    outcome: str, fresh_compiler: None
) -> None:
    alone = observed(lambda: None)
    calls = 0

    def fails(gm: Any, inputs: Any) -> Any:
        raise RuntimeError("planted")

    class Other(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin() + 1

    backend: Any = fails if outcome == "falls back" else "eager"
    other = torchproof.compile(Other(), backend=backend, wait=outcome != "wait=False")

    def call_another() -> None:
        nonlocal calls
        calls += 1
        random = torch.get_rng_state()
        x = torch.ones(1 + calls % 3)
        torch.testing.assert_close(other(x), x.sin() + 1)
        while torchproof.status(other).pending:  # else its thread counts breaks, too
            pass
        torch.set_rng_state(random)

    assert observed(call_another) == alone
    assert calls == 6 and torchproof.status(other).calls == 6


def test_ctrl_c_while_tracing_reaches_the_caller(fresh_compiler: None) -> None:
    function = torchproof.compile(lambda x: x * 2, backend=replaced.interrupts)
    with pytest.raises(KeyboardInterrupt):
        function(torch.ones(2))
    assert not torchproof.status(function).fallbacks
