"""The decoders: exact sizes, one graph where cured, every planted defect where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from workloads.conftest import Found, place, places

from torchproof.targets.workloads import WORKLOADS, decoder, gpt, gpt_flex, gpt_original

MAKERS = {
    "gpt": gpt.make,
    "gpt-original": gpt_original.make,
    "gpt-flex": gpt_flex.make,
    "decoder": decoder.make,
}
SMALLER = gpt.Size(layers=2, dim=32, heads=2, vocabulary=50)
# torch says so where FlexAttention runs outside compiled code.
unfused = pytest.mark.filterwarnings("ignore:.*flex_attention called without")


def tokens(batch: int, length: int, vocabulary: int = SMALLER.vocabulary) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(vocabulary, (batch, length), generator=generator)


# -- sizes -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workload", MAKERS)
def test_sizes_have_the_registered_parameters(workload: str) -> None:
    for size, registered in WORKLOADS[workload].sizes.items():
        model, calls = MAKERS[workload](size, device="meta")
        assert sum(p.numel() for p in model.parameters()) == registered, size
        tensors = [*model.parameters(), *model.buffers(), *(call[0] for call in calls)]
        assert all(tensor.is_meta for tensor in tensors), size


def test_the_registry_names_the_sizes_of_the_modules() -> None:
    for name, module in (("gpt", gpt), ("decoder", decoder)):
        assert list(WORKLOADS[name].sizes) == list(module.SIZES)
    assert WORKLOADS["gpt"].sizes["40b"] == 39_484_014_592


# -- cured -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        ("gpt", {}),
        pytest.param("gpt", {"train": True}, marks=pytest.mark.slow),
        pytest.param("gpt-flex", {}, marks=pytest.mark.slow),
        pytest.param("gpt-flex", {"train": True}, marks=pytest.mark.slow),
        ("decoder", {}),
        pytest.param("decoder", {"train": True}, marks=pytest.mark.slow),
    ],
)
def test_cured_has_no_finding(
    found: Found, workload: str, options: dict[str, bool]
) -> None:
    assert found(workload, **options) == []


# The shapes of calls -1 and 1: the largest batch, and batch 1.
@pytest.mark.parametrize(
    ("attention", "first"),
    [
        ("sdpa", -1),
        pytest.param("sdpa", 1, marks=pytest.mark.slow),
        pytest.param("flex", 1, marks=pytest.mark.slow),
    ],
)
def test_one_graph_in_any_order(attention: str, first: int) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    _, calls = gpt.make(attention=attention)
    spec = gpt.Size(layers=1, dim=32, heads=2, vocabulary=512)
    model = gpt.GPT(spec, attention=attention, window=64).requires_grad_(False)
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for call in [calls[first], *reversed(calls)]:
        compiled(*call)
    assert len({call[0].shape for call in calls}) == len(calls)
    assert len(graphs) == 1


@unfused
@pytest.mark.parametrize("attention", gpt.ATTENTIONS)
@pytest.mark.parametrize("window", [None, 5])
def test_a_sample_does_not_depend_on_its_batch(
    attention: str, window: int | None
) -> None:
    torch.manual_seed(0)
    model = gpt.GPT(SMALLER, attention=attention, window=window)
    model.double().requires_grad_(False)
    batch = tokens(3, 20)
    alone = torch.cat([model(sample[None]) for sample in batch])
    torch.testing.assert_close(model(batch), alone)


@unfused
@pytest.mark.parametrize("window", [None, 1, 7, 400])
def test_both_attentions_agree(window: int | None) -> None:
    torch.manual_seed(0)
    sdpa = gpt.GPT(SMALLER, window=window).double().requires_grad_(False)
    flex = gpt.GPT(SMALLER, attention="flex", window=window).double()
    flex.load_state_dict(sdpa.state_dict())
    flex.requires_grad_(False)
    batch = tokens(2, 150)
    torch.testing.assert_close(flex(batch), sdpa(batch))


@unfused
@pytest.mark.parametrize("attention", gpt.ATTENTIONS)
@pytest.mark.parametrize("window", [None, 4])
def test_what_a_token_sees(attention: str, window: int | None) -> None:
    torch.manual_seed(0)
    one_layer = gpt.Size(layers=1, dim=32, heads=2, vocabulary=50)
    model = gpt.GPT(one_layer, attention=attention, window=window)
    model.requires_grad_(False)
    length, changed = 12, 3
    batch = tokens(1, length)
    other = batch.clone()
    other[0, changed] = (other[0, changed] + 1) % one_layer.vocabulary
    differs = (model(batch) != model(other)).any(-1)[0]
    last = length if window is None else changed + window
    seen = [changed <= position < last for position in range(length)]
    assert differs.tolist() == seen


# -- original --------------------------------------------------------------------------


DEFECTS = [
    ("graph_break", "if torch.isinf(x).any():"),
    ("graph_break", "print(f"),
    ("graph_break", "self.history.append(spread.item())"),
    ("recompile", "self.step += 1"),
    ("recompile", "self.history.append(spread.item())"),
    ("recompile", ".clamp(-limit, limit)"),
    ("recompile_limit", "self.step += 1"),
]


@pytest.mark.slow  # test_docs.py compares all that `check` prints of it with the README
@pytest.mark.parametrize(("kind", "text"), DEFECTS)
def test_original_shows_each_defect(found: Found, kind: str, text: str) -> None:
    assert place("gpt-original", text) in places(found("gpt-original"), kind)


@pytest.mark.slow
def test_original_shows_nothing_elsewhere(found: Found) -> None:
    shown = {(Path(f.file).name, f.line) for f in found("gpt-original") if f.file}
    assert shown == {place("gpt-original", text) for _, text in DEFECTS}


def test_original_and_cured_agree() -> None:
    torch.manual_seed(0)
    cured = gpt.GPT(SMALLER, dtype=torch.float64)
    original = gpt_original.GPT(SMALLER, dtype=torch.float64)
    original.load_state_dict(cured.state_dict())
    for length in (16, 9):
        outputs = [model(tokens(3, length)) for model in (original, cured)]
        torch.testing.assert_close(*outputs, rtol=0, atol=0)
        for output in outputs:
            output.square().mean().backward()
    assert original.step == 2
    theirs = dict(cured.named_parameters())
    for name, parameter in original.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
        torch.testing.assert_close(parameter.grad, theirs[name].grad)


# -- make ------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", MAKERS)
def test_a_given_shape_is_that_of_every_call(workload: str) -> None:
    make = MAKERS[workload]
    _, calls = make(batch=3, sequence=130)
    assert {call[0].shape[:2] for call in calls} == {(3, 130)}
    assert {call[0].shape[0] for call in make(batch=3)[1]} == {3}
    assert {call[0].shape[1] for call in make(sequence=130)[1]} == {130}


@pytest.mark.parametrize("workload", ["gpt", "gpt-original", "decoder"])
def test_train_decides_mode_and_gradients(workload: str) -> None:
    for train in (False, True):
        model, _ = MAKERS[workload](train=train)
        assert model.training is train
        assert all(p.requires_grad is train for p in model.parameters())


def test_every_make_gives_the_same_weights_and_inputs() -> None:
    for make in MAKERS.values():
        (model, calls), (again, calls_again) = make(), make()
        torch.testing.assert_close(model.state_dict(), again.state_dict())
        torch.testing.assert_close(calls, calls_again)


@pytest.mark.slow
def test_flex_trains_on_the_cpu_with_the_same_window() -> None:
    reading, calls = gpt_flex.make()
    training, _ = gpt_flex.make(train=True)
    training.load_state_dict(reading.state_dict())
    tokens = calls[1][0]
    torch.testing.assert_close(training(tokens), reading(tokens))
    assert (reading.attention, training.attention) == ("flex", "sdpa")


def test_unknown_attention() -> None:
    with pytest.raises(ValueError, match="'flash'"):
        gpt.make(attention="flash")
