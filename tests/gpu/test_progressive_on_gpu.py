"""Graphs with `wait=False`: the real compile process and real CUDA graphs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph.graphed_step import Graphed
from torchproof.strategies import Recipe, environment_here, fingerprint, parse
from torchproof.torch_private import remote_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DEVICE = "cuda"
PATIENCE_S = 150.0


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class Net(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        answer: Tensor = self.head(x)
        return answer


def net() -> Net:
    torch.manual_seed(0)
    return Net().to(DEVICE)


def batch(rows: int = 512) -> Tensor:
    return torch.randn(rows, 16, device=DEVICE)


def upgrade(graphed: Graphed, call: Callable[[], None], ends: int) -> dict[str, str]:
    """Calls until that many stages have ended; returns the state of each stage."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        call()
        ended = [s for s in graphed.status().stages if s.state not in _UNDER_WAY]
        if len(ended) >= ends:
            break
        time.sleep(0.01)
    print(graphed.status())
    return {each.strategy: each.state for each in graphed.status().stages}


_UNDER_WAY = ("waiting", "compiling")


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.alone
def test_inference_is_upgraded_to_compiled_code() -> None:
    model = net().eval()
    free_before = torch.cuda.mem_get_info()[0]
    graphed = torchproof.graph(model, wait=False)

    def call() -> None:
        x = batch()
        with torch.no_grad():
            close(graphed(x), model(x))

    states = upgrade(graphed, call, ends=3)
    assert states["eager"] == "replaced", str(graphed.status())
    assert "in use" in (states["regional"], states["full"])
    assert "failed" not in states.values()
    # The compile process keeps no context on the GPU, which takes hundreds of MiB.
    used_elsewhere = free_before - torch.cuda.mem_get_info()[0]
    assert used_elsewhere - torch.cuda.memory_reserved() < 400 << 20
    for _ in range(5):
        call()


def test_training_goes_on_across_the_swap() -> None:
    strategy = "full"
    model = net()
    twin = copy.deepcopy(model)

    def training(of: nn.Module) -> Callable[[Tensor], Tensor]:
        optimizer = torch.optim.AdamW(of.parameters(), lr=1e-3, capturable=True)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = of(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    graphed = torchproof.graph(training(model), wait=False, strategy=strategy)
    plain = training(twin)

    def call() -> None:
        x = batch()
        close(graphed(x), plain(x))

    states = upgrade(graphed, call, ends=2)
    assert states[strategy] in ("in use", "not faster"), str(graphed.status())
    for _ in range(5):
        call()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        # Adam turns rounding of a gradient near zero into whole steps of a few weights.
        apart = (one - other).abs() > 2e-3
        assert apart.float().mean() < 1e-3


def test_wrong_code_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    original = remote_graphs.DeferredGraph.load

    def load(self: remote_graphs.DeferredGraph, compiled: bytes) -> None:
        original(self, compiled)
        right = self._run

        def wrong(*args: Any) -> Any:
            output = right(*args)
            return type(output)([output[0] + 1, *output[1:]])

        self._run = wrong

    monkeypatch.setattr(remote_graphs.DeferredGraph, "load", load)
    model = net().eval()
    graphed = torchproof.graph(model, wait=False, strategy="full")

    def call() -> None:
        x = batch()
        with torch.no_grad():
            close(graphed(x), model(x))

    states = upgrade(graphed, call, ends=2)
    assert states == {"eager": "in use", "full": "failed"}
    [full] = [each for each in graphed.status().stages if each.strategy == "full"]
    assert "differs from eager" in str(full.why)


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [("full", torch.inference_mode), ("regional", torch.no_grad)],
)
def test_a_recipe_is_upgraded_to_compiled_code(strategy: str, mode: Any) -> None:
    plain = net().eval()
    made = {"environment": environment_here(plain), "model": fingerprint(plain)}
    recipe = Recipe(parse(f"{strategy}+graph"), **made)
    model = torchproof.compile(copy.deepcopy(plain), recipe=recipe, wait=False)
    until = time.monotonic() + PATIENCE_S
    states: dict[str, str] = {}
    while time.monotonic() < until:
        x = batch()
        with mode():
            close(model(x), plain(x))
        graph = torchproof.status(model).graph
        assert graph is not None, str(torchproof.status(model))
        states = {each["strategy"]: each["state"] for each in graph["stages"]}
        if states and not {*_UNDER_WAY} & {*states.values()}:
            break
        time.sleep(0.01)
    found = torchproof.status(model)
    print(found)
    assert states.get(strategy) in ("in use", "not faster"), str(found)
    assert not found.notes and not found.fallbacks
    for each in (plain, model):
        each(batch()).sum().backward()
    with mode():
        x = batch()
        close(model(x), plain(x))
