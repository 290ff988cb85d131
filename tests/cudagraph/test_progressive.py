"""`torchproof.graph(wait=False)`: nobody waits for the compiler."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph_models import Net
from stage_compiler import Compiler, join_stages
from torch import Tensor, nn

import torchproof
from torchproof.runtime.codegen_worker import ChildDied, Worker
from torchproof.runtime.cudagraph import progressive, recorder
from torchproof.runtime.cudagraph.graph_status import StageStatus
from torchproof.runtime.cudagraph.graphed_step import Graphed
from torchproof.torch_private import comparison, contract, remote_graphs

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Stack(Net):
    def __init__(self) -> None:
        super().__init__(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(super().forward(x))
        return answer


def answers(graphed: Graphed, model: nn.Module, calls: int, rows: int = 4) -> None:
    """Calls it with fresh inputs; every answer is that of the model."""
    for _ in range(calls):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            expected = model(x)
        torch.testing.assert_close(graphed(x), expected)
        join_stages()


def stages(graphed: Graphed) -> dict[str, StageStatus]:
    return {each.strategy: each for each in graphed.status().stages}


def states(graphed: Graphed) -> dict[str, str]:
    return {name: each.state for name, each in stages(graphed).items()}


def test_calls_are_answered_while_the_compiler_works(compiler: Compiler) -> None:
    compiler.released.clear()
    model = Stack().eval()
    graphed = torchproof.graph(model, wait=False, strategy="full")
    answers(graphed, model, 1)
    assert graphed.status().recordings == 0  # eager has answered
    answers(graphed, model, 6)
    assert states(graphed) == {"eager": "in use", "full": "compiling"}
    assert graphed.status().replays == 6
    compiler.released.set()
    answers(graphed, model, 6)
    assert states(graphed) == {"eager": "replaced", "full": "in use"}
    taken = stages(graphed)["full"]
    assert taken.gain == 2.0 and taken.step_ms == 1e3 and taken.why is None
    assert taken.at_call is not None and taken.at_call > 7
    assert taken.pause_s is not None and taken.compile_s is not None
    assert compiler.graphs == 1
    assert "full   in use" in str(graphed.status())


def test_eager_answers_before_anything_is_watched_or_started(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    features: list[str] = []
    seen: list[tuple[bool, bool]] = []

    def missing(feature: str) -> tuple[str, ...]:
        features.append(feature)
        return ()

    class Step(Stack):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((bool(features), compiler.is_started))
            return super().forward(x)

    monkeypatch.setattr(contract, "missing", missing)
    graphed = torchproof.graph(Step().eval(), wait=False, strategy="full")
    graphed(torch.ones(4, 8))
    status = graphed.status()
    assert seen == [(False, False)] and not graphed._snapshots
    assert compiler.is_started  # after the answer
    assert (status.strategy, status.plain_calls, status.stops) == ("eager", 1, ())
    graphed(torch.ones(4, 8))
    assert features and graphed._snapshots


def test_regional_comes_first_and_full_replaces_it(compiler: Compiler) -> None:
    model = Stack().eval()
    graphed = torchproof.graph(model, (torch.randn(4, 8),), wait=False)
    assert graphed.status().recordings == 1  # the example, at once
    answers(graphed, model, 16)
    assert states(graphed) == {
        "eager": "replaced",
        "regional": "replaced",
        "full": "in use",
    }
    assert compiler.graphs == 2  # the blocks share one


def test_code_that_is_not_faster_is_not_used(compiler: Compiler) -> None:
    compiler.slower = True
    model = Stack().eval()
    graphed = torchproof.graph(model, wait=False, strategy="full")
    answers(graphed, model, 10)
    assert states(graphed) == {"eager": "in use", "full": "not faster"}
    assert stages(graphed)["full"].gain == 0.5


def test_a_model_without_blocks_goes_straight_to_full(compiler: Compiler) -> None:
    model = nn.Sequential(nn.Linear(8, 3), nn.Tanh()).eval()
    graphed = torchproof.graph(model, wait=False, strategy="best")
    answers(graphed, model, 14)
    assert states(graphed)["full"] == "in use"
    assert states(graphed)["regional"] == "failed"
    assert "no repeated blocks" in str(stages(graphed)["regional"].why)


def test_a_compiler_that_fails_changes_nothing(compiler: Compiler) -> None:
    compiler.error = ChildDied("killed by SIGKILL")
    model = Stack().eval()
    graphed = torchproof.graph(model, wait=False)
    answers(graphed, model, 12)
    assert states(graphed) == {
        "eager": "in use",
        "regional": "failed",
        "full": "failed",
    }
    assert stages(graphed)["full"].why == "killed by SIGKILL"
    assert graphed.status().replays == 11


def test_code_with_other_results_is_never_used(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*_: Any) -> comparison.Comparison:
        return comparison.wrong("1 is not 2", "output")

    model = Stack().eval()
    graphed = torchproof.graph(model, wait=False, strategy="full")
    answers(graphed, model, 2)
    monkeypatch.setattr(recorder, "compare_results", compare)
    answers(graphed, model, 8)
    assert states(graphed) == {"eager": "in use", "full": "failed"}
    assert "differs from eager" in str(stages(graphed)["full"].why)
    assert compiler.runs == 3  # the rehearsals


def test_pauses_take_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progressive.time, "monotonic", lambda: now)
    budget = progressive.PauseBudget()
    budget.spend(5.0)
    assert budget.allowed
    budget.spend(3.0)  # two seconds too long
    assert not budget.allowed
    now += 9.0
    assert not budget.allowed
    now += 2.0
    assert budget.allowed
    now += 1000.0  # an idle hour saves up no more than the first pauses
    assert budget.allowed
    budget.spend(6.5)
    assert not budget.allowed


def test_shapes_are_recorded_later_if_calls_have_waited_too_long(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Stack().eval()
    graphed = torchproof.graph(model, wait=False, strategy="full")
    answers(graphed, model, calls=2)
    assert graphed.status().recordings == 1
    allowed = False
    monkeypatch.setattr(
        progressive.PauseBudget, "allowed", property(lambda self: allowed)
    )
    answers(graphed, model, calls=5)
    answers(graphed, model, calls=5, rows=8)
    assert graphed.status().recordings == 1
    assert {each.state for each in graphed.status().stages} <= {"in use", "waiting"}
    allowed = True
    answers(graphed, model, calls=5, rows=8)
    assert graphed.status().recordings > 1


def training_step(model: nn.Module) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_training_goes_on_across_the_swap(compiler: Compiler) -> None:
    strategy = "regional"
    model = Stack()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(training_step(model), wait=False, strategy=strategy)
    plain = training_step(twin)
    for _ in range(14):
        x = torch.randn(4, 8)
        torch.testing.assert_close(graphed(x), plain(x))
        join_stages()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert states(graphed).get(strategy) == "in use", str(graphed.status())


def test_gradients_add_up_across_the_swap(compiler: Compiler) -> None:
    model = Stack()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, train=True, wait=False, strategy="full")
    for _ in range(14):
        x = torch.randn(4, 8)
        graphed(x)
        twin(x).mean().backward()
        join_stages()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert "in use" in {
        each.state for each in graphed.status().stages if each.strategy == "full"
    }


def test_a_step_without_operations_to_compile(compiler: Compiler) -> None:
    def step(x: Tensor) -> Tensor:
        return torch.compiler.disable(lambda y: y * 2)(x)

    graphed = torchproof.graph(step, wait=False, strategy="full")
    for _ in range(8):
        x = torch.randn(3)
        assert torch.equal(graphed(x), x * 2)
    assert stages(graphed)["full"].why == "torch compiles nothing of this step"


# -- the compile process ---------------------------------------------------------------


class Cached(nn.Module):
    """Writes to a buffer and to an argument, and returns views."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(3))
        self.count: Tensor

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        self.count += 1
        cache[:, 1] = x[:, 0]
        y = torch.tanh(self.inner(x))
        return y.t(), x[1:], cache.view(-1), self.count * 2


def load_code(backend: remote_graphs.Deferred, worker: Worker) -> None:
    """Replaces the only graph's operations by code of the compile process."""
    [graph] = backend.graphs
    before = graph._run
    graph.load(worker.send(graph.written, until=float("inf"), kind="graph"))
    assert graph._run is not before
    backend.frozen = True


@pytest.mark.slow
def test_graphs_are_compiled_in_another_process() -> None:
    """One with its backward, and one of inference mode with effects and views."""
    worker = Worker()
    x = torch.randn(4, 8)
    try:
        model, backend = Stack(), remote_graphs.Deferred({"dynamic": False})
        compiled = torch.compile(model, backend=backend, dynamic=False)
        torch.testing.assert_close(compiled(x), model(x))  # uncompiled, so far
        load_code(backend, worker)
        gradients = []
        for each in (compiled, model):
            model.zero_grad()
            output = each(x)
            torch.testing.assert_close(output, model(x))
            output.square().sum().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
        torch.testing.assert_close(*gradients)
        cached, backend = Cached(), remote_graphs.Deferred({"dynamic": False})
        twin = copy.deepcopy(cached)
        compiled = torch.compile(cached, backend=backend, dynamic=False)
        with torch.inference_mode():
            x = torch.randn(4, 8)
            caches = torch.zeros(4, 3), torch.zeros(4, 3)
            compiled(x, caches[0])
            twin(x, caches[1])
            load_code(backend, worker)
            answer = compiled(x, caches[0])
            torch.testing.assert_close(answer, twin(x, caches[1]))
        torch.testing.assert_close(*caches)
        torch.testing.assert_close(cached.count, twin.count)
        assert all(each.is_inference() for each in answer)
    finally:
        worker.close()


def test_a_graph_with_code_of_the_user_is_refused() -> None:
    library = torch.library.Library("torchproof_test_stages", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")
    backend = remote_graphs.Deferred({})

    def step(x: Tensor) -> Tensor:
        doubled: Tensor = torch.ops.torchproof_test_stages.twice(x)
        return doubled + 1

    with pytest.raises(Exception, match="torchproof_test_stages"):
        torch.compile(step, backend=backend, dynamic=False)(torch.ones(3))
    assert not backend.graphs


def test_inputs_that_share_memory_share_it_in_the_child() -> None:
    backend = remote_graphs.Deferred({})

    def step(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(1) + y

    memory = torch.zeros(6)
    torch.compile(step, backend=backend, dynamic=False)(memory[:4], memory[2:])
    [graph] = backend.graphs
    request = pickle.loads(graph.written)
    one, other = remote_graphs._fake_inputs(request["inputs"])
    assert one.untyped_storage()._cdata == other.untyped_storage()._cdata
    assert (one.storage_offset(), other.storage_offset()) == (0, 2)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.scale = 1.0
        self.register_buffer("positive", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.positive.add_((x > 0).sum())
        answer: Tensor = self.inner(x) * self.positive * self.scale
        return answer


@pytest.mark.parametrize("wait", [True, False])
def test_memory_that_the_first_call_writes_without_changing_it(
    wait: bool, compiler: Compiler
) -> None:
    model = Counted().eval()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, wait=wait, strategy="eager" if wait else "full")
    for number in range(14):
        x = torch.ones(2, 8) if number > 1 else -torch.ones(2, 8)
        if wait and number == 12:  # the replay that has begun is discarded
            model.scale = twin.scale = 2.0
        with torch.no_grad():
            torch.testing.assert_close(graphed(x), twin(x))
        join_stages()
    if not wait:
        assert states(graphed) == {"eager": "replaced", "full": "in use"}
