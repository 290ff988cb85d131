"""GPT-2 124M of transformers with random weights, as a target to sweep."""

from __future__ import annotations

from typing import Any

import torch


def make(batch: int = 1, sequence: int = 128) -> tuple[Any, list[dict[str, Any]]]:
    """Inference in bfloat16 on a GPU; with `--train` the loss comes with the output."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    number_type = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model: Any = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
        model = model.to(number_type).eval()
        tokens = torch.randint(config.vocab_size, (batch, sequence))
    return model, [{"input_ids": tokens, "labels": tokens}]


def make_inference(
    batch: int = 1, sequence: int = 128
) -> tuple[Any, list[dict[str, Any]]]:
    """Logits only, weights that need no gradients."""
    model, [call] = make(batch, sequence)
    return model.requires_grad_(False), [{"input_ids": call["input_ids"]}]


def work(call: dict[str, Any]) -> tuple[float, str]:
    return float(call["input_ids"].numel()), "tokens"
