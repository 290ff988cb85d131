"""What a recording keeps in memory: few copies, on the host, freed when it is done."""

import weakref
from typing import Any

import pytest
import strip
import torch
from stage_compiler import Compiler
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph import eager_recorder, recorder
from torchproof.runtime.cudagraph.step_gradients import Gradients, _Parked
from torchproof.torch_private import comparison


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


@pytest.fixture
def zeros(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of zeros that stood in for gradients, for each time there were any."""
    counts: list[int] = []
    original = Gradients.plant

    def plant(gradients: Gradients) -> list[Tensor]:
        planted = original(gradients)
        counts.append(len(planted))
        return planted

    monkeypatch.setattr(Gradients, "plant", plant)
    return counts


def test_inference_has_no_stand_ins_for_gradients(zeros: list[int]) -> None:
    graphed = torchproof.graph(net())
    graphed(torch.randn(3, 4))
    assert graphed.status().recordings == 1
    assert not zeros


def test_a_backward_has_a_stand_in_for_each_gradient(zeros: list[int]) -> None:
    graphed = torchproof.graph(net(), train=True)
    graphed(torch.randn(3, 4))
    assert graphed.status().recordings == 1
    assert set(zeros) == {4}


def test_gradients_that_the_step_drops_are_freed_with_the_recording() -> None:
    model = net()

    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        loss = model(x).mean()
        loss.backward()
        return loss.detach()

    graphed = torchproof.graph(step)
    earlier = []
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
        earlier.append(weakref.ref(parameter.grad))
    x = torch.randn(3, 4)
    loss = graphed(x)
    assert graphed.status().recordings == 1
    assert [each() for each in earlier] == [None] * 4
    model.zero_grad()
    assert torch.equal(graphed(x), loss)
    assert graphed.status().recordings == 1


def test_the_result_of_a_replay_is_compared_without_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[weakref.ref[Tensor]] = []
    alive: list[int] = []
    original = recorder._Copy.load

    def load(copy: Any) -> Tensor:
        tensor = original(copy).clone()  # as if it came from the host
        loaded.append(weakref.ref(tensor))
        alive.append(sum(each() is not None for each in loaded))
        return tensor

    compare = recorder.compare_results
    sides: list[set[type]] = []

    def compared(actual: Any, expected: Any, *rest: Any) -> comparison.Comparison:
        for result in (actual, expected):
            parts = {**result.output, **result.gradients}.values()
            sides.append({type(part) for part in parts})
        return compare(actual, expected, *rest)

    monkeypatch.setattr(recorder._Copy, "load", load)
    monkeypatch.setattr(recorder, "compare_results", compared)
    graphed = torchproof.graph(net(), train=True)
    graphed(torch.randn(3, 4))
    assert graphed.status().recordings == 1
    assert sides == [{Tensor}, {recorder._Copy}]
    assert len(loaded) == 2 * 5  # the output and four gradients
    assert max(alive) <= 2
    assert not any(each() is not None for each in loaded)


def test_state_that_cannot_be_saved_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eager_recorder.Copies, "make", lambda copies, tensor: None)
    total = torch.zeros(3)

    def step(x: Tensor) -> Tensor:
        total.add_(x)
        return total * 2

    graphed = torchproof.graph(step)
    for number in (1, 2):
        assert torch.equal(graphed(torch.ones(3)), torch.full((3,), 2.0 * number))
    [stop] = graphed.status().stops
    assert stop.kind == "memory"
    assert "does not fit" in stop.reason
    assert "\n" not in str(stop)


def test_eager_without_memory_stops_the_recording() -> None:
    calls = 0

    def step(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.\nSee the manual.")
        return x + 1

    graphed = torchproof.graph(step)
    assert torch.equal(graphed(torch.ones(2)), torch.full((2,), 2.0))
    [stop] = graphed.status().stops
    assert stop.kind == "memory"
    assert "2.00 GiB" in stop.reason
    assert "\n" not in str(stop)


def trained(model: nn.Module, begin: Any) -> Any:
    def step(x: Tensor) -> Tensor:
        norm = begin()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach() + norm

    return step


@pytest.mark.parametrize("way", ["drops", "adds", "zeroes", "reads"])
def test_gradients_from_before_the_call(way: str) -> None:
    """Steps that drop them run without them; for others they are there."""
    answers = []
    for graphs in (False, True):
        torch.manual_seed(0)
        model = net()

        def begin(model: nn.Module = model) -> Tensor:
            norm = torch.zeros(())
            if way == "reads":
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        norm = norm + parameter.grad.norm()
            if way != "adds":
                model.zero_grad(set_to_none=way != "zeroes")
            return norm

        step = trained(model, begin)
        run = torchproof.graph(step) if graphs else step
        x = torch.randn(3, 4)
        losses = [run(x)]  # without gradients
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        alias = model[0].weight.grad.detach()
        if graphs:
            run.prepare(x)
            for parameter in model.parameters():
                assert bool((parameter.grad == 1).all())
            assert alias.data_ptr() == model[0].weight.grad.data_ptr()
        losses += [run(x), run(x)]
        answers.append((losses, [each.grad for each in model.parameters()]))
    torch.testing.assert_close(answers[0], answers[1])


def test_parked_gradients_take_no_memory_while_a_step_that_drops_them_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    graphed = torchproof.graph(step)
    x = torch.randn(3, 4)
    graphed(x)  # creates the state of the optimizer
    earlier = [weakref.ref(each.grad) for each in model.parameters()]
    alive: list[int] = []
    rehearse = strip.Strip.rehearse

    def counted(capture: Any, run: Any) -> Any:
        alive.append(sum(each() is not None for each in earlier))
        return rehearse(capture, run)

    monkeypatch.setattr(strip.Strip, "rehearse", counted)
    graphed(x)
    assert graphed.status().recordings == 1
    assert set(alive) == {0}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiled_recording_keeps_no_gradients_of_the_one_it_replaces(
    compiler: Compiler,
) -> None:
    model = net()

    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        loss = model(x).mean()
        loss.backward()
        return loss.detach()

    graphed = torchproof.graph(step, wait=False, strategy="full")
    x = torch.randn(3, 4)
    for _ in range(2):
        graphed(x)
    earlier = [weakref.ref(each.grad.untyped_storage()) for each in model.parameters()]
    for _ in range(100):
        graphed(x)
        if graphed.status().recordings == 2:
            break
    assert graphed.is_compiled
    assert [each() for each in earlier] == [None] * 4


def test_a_run_without_memory_frees_its_own_before_gradients_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net()
    activations: list[weakref.ref[Tensor]] = []
    is_short = False

    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        output = model(x)
        activations.append(weakref.ref(output))
        if is_short:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
        loss = output.mean()
        loss.backward()
        return loss.detach()

    graphed = torchproof.graph(step)
    graphed(torch.randn(3, 4))
    alive: list[bool] = []
    back = _Parked.back

    def checked(parked: _Parked) -> Tensor:
        alive.append(activations[-1]() is not None)
        return back(parked)

    monkeypatch.setattr(_Parked, "back", checked)
    is_short = True
    graphed.prepare(torch.randn(5, 4))
    assert alive == [False] * 4
    assert all(each.grad is not None for each in model.parameters())


def test_results_are_compared_alike_with_and_without_copies() -> None:
    eager = torch.tensor([1e6, 1e-3], dtype=torch.bfloat16)
    outputs = [torch.tensor([1e6, 2e3], dtype=torch.bfloat16), 2 * eager]
    verdicts = []
    for expected in (eager, recorder._Copy(eager, eager.device)):
        for output in outputs:
            compared = recorder.compare_results(
                recorder.StepResult({"output": output}, {}),
                recorder.StepResult({"output": expected}, {}),
                [],
            )
            verdicts.append(compared.verdict)
    assert verdicts[:2] == verdicts[2:]
    assert verdicts[0] != "wrong" and verdicts[1] == "wrong"
