"""Models as people have them are recorded and replayed: nothing of them is refused."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchproof

IDS = torch.arange(24).view(2, 12) + 5
PIXELS = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "use_cache": False,
}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "use_cache": False}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
T5 |= {"vocab_size": 100, "decoder_start_token_id": 0, "use_cache": False}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, {"input_ids": IDS}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", TEXT, {"input_ids": IDS}),
    "mistral": ("MistralForCausalLM", "MistralConfig", TEXT, {"input_ids": IDS}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", TEXT, {"input_ids": IDS}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT, {"input_ids": IDS}),
    "bert": ("BertForSequenceClassification", "BertConfig", TEXT, {"input_ids": IDS}),
    "electra": ("ElectraModel", "ElectraConfig", TEXT, {"input_ids": IDS}),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGE, {"pixel_values": PIXELS}),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", IMAGE, {"pixel_values": PIXELS}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        T5,
        {"input_ids": IDS, "decoder_input_ids": IDS},
    ),
}
QUICK = ("vit",)


def made(name: str) -> tuple[nn.Module, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    model, config, settings, call = MODELS[name]
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**settings)), call


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS],
)
@pytest.mark.parametrize("train", [False, True])
def test_a_model_of_transformers(name: str, train: bool) -> None:
    model, call = made(name)
    model.eval()
    graphed = torchproof.graph(model, train=train)
    for _ in range(3):
        model.zero_grad()
        answer = graphed(**call)
    with torch.no_grad():
        torch.testing.assert_close(answer[0], model(**call)[0])
    status = graphed.status()
    assert (status.recordings, status.replays) == (1, 3), status
    assert status.stops == () and status.changes == ()


def test_a_whole_step_of_a_model_of_transformers() -> None:
    model, call = made("gpt2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = {"steps": 0}

    def step(ids: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    graphed = torchproof.graph(step)
    losses = []
    for _ in range(4):
        losses.append(graphed(call["input_ids"]))
        seen["steps"] += 1
    assert losses[-1] < losses[0]
    assert (graphed.status().recordings, graphed.status().stops) == (1, ())


@pytest.mark.parametrize(
    ("name", "sequence"),
    [
        ("nanovlm", True),
        pytest.param("gpt", True, marks=pytest.mark.slow),
        pytest.param("decoder", True, marks=pytest.mark.slow),
        ("arrcoc", False),
    ],
)
def test_a_bundled_workload(name: str, sequence: bool) -> None:
    module = importlib.import_module(f"torchproof.targets.workloads.{name}")
    make: Callable[..., Any] = module.make
    sizes = (2, 128) if sequence else (2,)
    fn, calls = make("tiny", *sizes, device="cpu", train=False)
    graphed = torchproof.graph(fn)
    for _ in range(2):
        call = calls[0]
        graphed(**call) if isinstance(call, dict) else graphed(*call)
    status = graphed.status()
    assert (status.recordings, status.replays, status.stops) == (1, 2, ()), status
