"""Models as people have them are recorded and replayed: nothing of them is refused."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch says about speed
IDS = torch.arange(24).view(2, 12) + 5
PIXELS = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)
LAYERS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
IMAGE = {**LAYERS, "image_size": 32, "patch_size": 8}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "use_cache": False}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
T5 |= {"vocab_size": 100, "decoder_start_token_id": 0, "use_cache": False}
TEXTS = {"input_ids": IDS}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, TEXTS),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGE, {"pixel_values": PIXELS}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        T5,
        {"input_ids": IDS, "decoder_input_ids": IDS},
    ),
}


def made(name: str, device: str = "cpu", **settings: Any) -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers")
    model, config, sizes, call = MODELS[name]
    torch.manual_seed(0)
    known = getattr(transformers, config)(**sizes, **settings)
    built = getattr(transformers, model)(known).to(device)
    return built, {key: value.to(device) for key, value in call.items()}


@pytest.mark.slow  # `test_a_model_learns_as_in_eager` trains one
@pytest.mark.parametrize("name", ["vit", "t5"])
def test_a_model_of_transformers(name: str) -> None:
    model, call = made(name)
    model.eval()
    graphed = torchproof.graph(model, train=True)
    for _ in range(3):
        model.zero_grad()
        answer = graphed(**call)
    with torch.no_grad():
        torch.testing.assert_close(answer[0], model(**call)[0])
    status = graphed.status()
    assert (status.recordings, status.replays) == (1, 3), status
    assert status.stops == () and status.changes == ()


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.parametrize("strategy", ["regional", "full", "nested"])
def test_a_model_of_transformers_is_compiled_and_recorded(
    strategy: str, device: str
) -> None:
    model, call = made("gpt2", device)
    model.eval()
    graphed = torchproof.graph(model, call, strategy=strategy)
    assert graphed.falls_back == []
    for number in range(3):
        ids = call["input_ids"] + number
        torch.testing.assert_close(
            graphed(input_ids=ids)[0], model(input_ids=ids)[0], rtol=2e-3, atol=2e-4
        )


# -- whole steps -----------------------------------------------------------------------


def training(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(ids: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(input_ids=ids, labels=labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def texts(seed: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 100, (2, 2, 12), generator=generator)
    ids[1, 1, 9 - seed :] = -100  # labels that do not count
    return ids[0].to(device), ids[1].to(device)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("gpt2", "cpu"),
        pytest.param("t5", "cuda", marks=pytest.mark.gpu),
    ],
)
def test_a_model_learns_as_in_eager(name: str, device: str) -> None:
    model, _ = made(name, device)
    model.eval()  # without dropout
    twin = copy.deepcopy(model)
    graphed, plain = torchproof.graph(training(model)), training(twin)
    for number in range(4):
        call = texts(number, device)
        torch.testing.assert_close(
            graphed(*call), plain(*call).detach(), rtol=1e-3, atol=1e-4
        )
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
    status = graphed.status()
    assert (status.recordings, status.stops) == (1, ()), status
    assert status.replays >= 3


# -- bundled workloads -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [pytest.param("nanovlm", (2, 128), marks=pytest.mark.slow), ("arrcoc", (2,))],
)
def test_a_bundled_workload(name: str, sizes: tuple[int, ...]) -> None:
    module = importlib.import_module(f"torchproof.targets.workloads.{name}")
    fn, calls = module.make("tiny", *sizes, device="cpu", train=False)
    graphed = torchproof.graph(fn)
    for _ in range(2):
        call = calls[0]
        graphed(**call) if isinstance(call, dict) else graphed(*call)
    status = graphed.status()
    assert (status.recordings, status.replays, status.stops) == (1, 2, ()), status
