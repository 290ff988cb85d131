"""GPT-2 on several ranks: batches of various sizes, and one of size 1 on rank 3."""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

SHORT = 4  # the step


def make():
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=16, use_cache=False
    )
    sizes = [4, 4, 6, 5, 5, 5]
    if os.environ["RANK"] == "3":
        sizes[SHORT] = 1
    tokens = [torch.randint(64, (size, 8)) for size in sizes]
    return GPT2LMHeadModel(config), [
        {"input_ids": each, "labels": each} for each in tokens
    ]
