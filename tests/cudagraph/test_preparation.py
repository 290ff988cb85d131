"""What a strategy compiles before a step is recorded."""

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.runtime.cudagraph import preparation
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.strategies import strategy
from torchproof.strategies.strategy import NotApplicable

# Dynamo looks at `.grad` of what a block is given, and hides what torch says to that.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

compiled: Counter[str] = Counter()
regions: list[int] = []  # how many each graph has


def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
    names = {str(node.target) for node in graph.graph.nodes}
    compiled["loss" if any("cross_entropy" in n for n in names) else "block"] += 1
    regions.append(sum(isinstance(p, torch.fx.GraphModule) for p in graph.children()))
    return graph.forward


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    compiled.clear()
    regions.clear()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    scaled = 15 * torch.tanh(logits.float() / 15)
    return F.cross_entropy(scaled.flatten(0, 1), targets.flatten())


def small(x: Tensor) -> Tensor:
    return (x + 1) * 2 - 3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 2000)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        x = small(x)
        for block in self.blocks:
            x = block(x)
        return loss_of(self.head(x), targets)


def counted(form: str) -> preparation.Plan:
    return preparation.Plan(
        strategy.with_arguments(strategy.parse(form), backend=counting)
    )


def as_it_is(step: preparation.Forward) -> preparation.Forward:
    return step


def call() -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 64, 16, requires_grad=True)
    return x, torch.randint(0, 2000, (8, 64))


def learned(model: nn.Module, form: str = "regional") -> preparation.Preparation:
    made = preparation.prepare(
        model, as_it_is, counted(form), StateSnapshot(model).reachable.modules
    )
    with made.watching():
        model(*call())
    made.learn()
    return made


def test_blocks_share_code_and_a_heavy_rest_is_compiled_as_well() -> None:
    model = Model()
    made = learned(model)
    assert isinstance(made, preparation.Regional)
    assert made.rest == {loss_of.__code__}
    x, targets = call()
    with made.during() as step:
        answer = step(x, targets)
    assert compiled == {"block": 1, "loss": 1}
    torch.testing.assert_close(answer, model(x, targets))
    torch._dynamo.reset()
    compiled.clear()
    with made.apart() as step:  # without a recording
        step(*call())
    assert compiled == {"block": 1}


def test_nested_blocks_are_one_graph_with_the_rest() -> None:
    model = Model()
    made = learned(model, "nested")
    x, targets = call()
    with made.during() as step:
        answer = step(x, targets)
        step(x, targets)
    assert compiled == {"loss": 1} and regions == [1]
    compiled.clear()
    torch.testing.assert_close(answer, model(x, targets))
    assert not compiled  # the model itself is left as it is
    for block in model.blocks:
        assert block._compiled_call_impl is None and "forward" not in vars(block)


def test_blocks_that_cannot_be_regions_run_as_they_are() -> None:
    model = Model()
    model.blocks[1].forward = lambda x: x  # type: ignore[method-assign]
    made = preparation.prepare(model, as_it_is, counted("nested"), [model])
    with made.watching():
        answer = model(*(given := call()))
    with pytest.raises(NotApplicable, match=r"^Block\b.*\bforward\b"):
        made.learn()
    with made.apart() as step:
        assert torch.equal(step(*given), answer)
    assert not compiled
