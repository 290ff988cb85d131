"""The steps that `benchmarks.published` measures, one factory for each row.

Every factory gives a model and one call, of one shape and without marks for others.
Without a GPU the models are tiny and in float32: enough to try the benchmark itself.
transformers' models have random weights and no dropout.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

Target = tuple[Any, list[Any]]
NO_DROPOUT: dict[str, Any] = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


# -- models of transformers ------------------------------------------------------------


def _built(kind: Any, config: Any, call: dict[str, Any], *, train: bool) -> Target:
    """Numbers of the device's type; weights need gradients only in training."""
    number_type = torch.bfloat16 if device() == "cuda" else torch.float32
    with torch.device(device()):
        model = kind(config).to(number_type)
    moved = {
        name: value.to(device(), number_type if value.is_floating_point() else None)
        for name, value in call.items()
    }
    return model.train(train).requires_grad_(train), [moved]


def _sizes(real: dict[str, Any], tiny: dict[str, Any]) -> dict[str, Any]:
    return real if device() == "cuda" else real | tiny


def _text(vocabulary: int, batch: int, length: int, *, train: bool) -> dict[str, Any]:
    tokens = torch.randint(vocabulary, (batch, length))
    return {"input_ids": tokens} | ({"labels": tokens} if train else {})


def _gpt2(batch: int, *, train: bool) -> Target:
    from transformers import GPT2Config, GPT2LMHeadModel

    real: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tiny = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512}
    config = GPT2Config(use_cache=False, **_sizes(real, tiny))
    call = _text(config.vocab_size, batch, 128, train=train)
    return _built(GPT2LMHeadModel, config, call, train=train)


def gpt2_inference() -> Target:
    return _gpt2(1, train=False)


def gpt2_training() -> Target:
    return _gpt2(8, train=True)


def gemma_training() -> Target:
    """6 layers of width 1024, with a large vocabulary for their size."""
    from transformers import GemmaConfig, GemmaForCausalLM

    real = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6}
    real |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128}
    tiny = {**TINY, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512}
    config = GemmaConfig(use_cache=False, **_sizes(real | {"vocab_size": 32000}, tiny))
    call = _text(config.vocab_size, 4, 256, train=True)
    return _built(GemmaForCausalLM, config, call, train=True)


def llama_inference() -> Target:
    """16 layers of width 1024."""
    from transformers import LlamaConfig, LlamaForCausalLM

    real = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16}
    real |= {"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000}
    tiny = {**TINY, "num_key_value_heads": 2, "vocab_size": 512}
    config = LlamaConfig(use_cache=False, **_sizes(real, tiny))
    call = _text(config.vocab_size, 1, 128, train=False)
    return _built(LlamaForCausalLM, config, call, train=False)


def vit_inference() -> Target:
    """ViT-B/16 on 8 images of 224 x 224."""
    from transformers import ViTConfig, ViTForImageClassification

    tiny = {**TINY, "image_size": 64}
    real = {**NO_DROPOUT, "image_size": 224, "num_labels": 1000}
    sizes = _sizes(real, tiny)
    config = ViTConfig(**sizes)
    images = torch.randn(8, 3, sizes["image_size"], sizes["image_size"])
    call = {"pixel_values": images}
    return _built(ViTForImageClassification, config, call, train=False)


def qwen3_inference() -> Target:
    """20 layers of width 1024, one prompt of 256 tokens."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    real = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 20}
    real |= {"num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000}
    tiny = {**TINY, "num_key_value_heads": 2, "vocab_size": 512}
    config = Qwen3Config(use_cache=False, **_sizes(real, tiny))
    call = _text(config.vocab_size, 1, 256, train=False)
    return _built(Qwen3ForCausalLM, config, call, train=False)


def dinov2_inference() -> Target:
    """DINOv2 base on 4 images of 224 x 224."""
    from transformers import Dinov2Config, Dinov2Model

    tiny = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Dinov2Config(image_size=224, **_sizes({**NO_DROPOUT}, tiny))
    call = {"pixel_values": torch.randn(4, 3, 224, 224)}
    return _built(Dinov2Model, config, call, train=False)


class Decode(torch.nn.Module):
    """One token of greedy decoding into a static cache of 512 positions."""

    def __init__(self, model: Any, length: int) -> None:
        super().__init__()
        from transformers import StaticCache

        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        prompt = torch.zeros((1, 16), dtype=torch.long, device=device())
        with torch.no_grad():
            model(prompt, past_key_values=self.cache, use_cache=True)

    def rewind(self) -> None:
        """Back to the end of the prompt: decoding on would leave the cache."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(16)

    def forward(self, ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            ids, position_ids=position_ids, past_key_values=self.cache, use_cache=True
        ).logits
        return logits[:, -1].clone()


def llama_decode() -> Target:
    """16 layers of width 1024, one token at a time."""
    model, _ = llama_inference()
    model.config.use_cache = True
    step = Decode(model, 512 if device() == "cuda" else 64)
    return step, [
        {
            "ids": torch.ones((1, 1), dtype=torch.long, device=device()),
            "position_ids": torch.full((1, 1), 16, device=device()),
        }
    ]


def gpt2_layers(layers: int) -> Any:
    """A narrow GPT-2: what the host does for it depends on the modules alone."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_embd": 64, "n_head": 2, "vocab_size": 512}
    config = GPT2Config(use_cache=False, n_layer=layers, **sizes)
    return GPT2LMHeadModel(config).eval()


# -- bundled workloads -----------------------------------------------------------------


def _workload(name: str, size: str, **options: Any) -> Target:
    """The first call of a workload, as tensors that no mark for other sizes is on."""
    module = importlib.import_module(f"torchproof.targets.workloads.{name}")
    size = size if device() == "cuda" else "tiny"
    model, [call, *_] = module.make(size, device=device(), **options)
    if isinstance(call, dict):
        return model, [{name: value.clone() for name, value in call.items()}]
    return model, [tuple(value.clone() for value in call)]


def _decoder(batch: int, sequence: int, *, train: bool = False) -> Target:
    length = sequence if device() == "cuda" else min(sequence, 128)
    return _workload("decoder", "base", batch=batch, sequence=length, train=train)


def decoder_training_small() -> Target:
    return _decoder(1, 64, train=True)


def nanovlm_inference() -> Target:
    return _workload("nanovlm", "large")
