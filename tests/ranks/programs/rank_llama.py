"""Decoders of transformers with a plan for tensor parallelism, and one without."""

import torch
import transformers


def make(tied=False):
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        tie_word_embeddings=tied,
        use_cache=False,
    )
    ids = torch.randint(96, (2, 16))
    call = {"input_ids": ids, "labels": ids}
    return transformers.LlamaForCausalLM(config), [call, call]


def make_tied():
    return make(tied=True)
