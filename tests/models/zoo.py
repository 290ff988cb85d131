"""Small, randomly initialised transformers models.

Each factory returns ``(model, calls)``: the model in eval mode and a list of keyword-argument dicts. The first two
calls are alike, the later ones have another sequence length, batch or image size, so that recompilations show.
Nothing is downloaded. TRUTH says what torch.compile makes of each.
"""

from dataclasses import dataclass

import torch

WIDTHS = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
SMALL = dict(WIDTHS, vocab_size=100, max_position_embeddings=128)
IMAGES = dict(WIDTHS, image_size=32)


def _model(name, **config):
    import transformers

    cls = getattr(transformers, name)
    return cls(cls.config_class(**config)).eval()


def _ids(batch, length, vocab=100):
    return torch.randint(5, vocab, (batch, length))


def _text(*shapes):
    return [{"input_ids": _ids(b, s)} for b, s in shapes]


def gpt2():
    model = _model("GPT2LMHeadModel", vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    return model, _text((2, 12), (2, 12), (2, 17), (3, 20))


def _longformer(*lengths_and_tokens):
    model, calls = _model("LongformerModel", **SMALL, attention_window=[4]), []
    for length, tokens in lengths_and_tokens:
        mask = torch.zeros(2, length, dtype=torch.long)
        mask[:, :tokens] = 1
        calls.append({"input_ids": _ids(2, length), "global_attention_mask": mask})
    return model, calls


def longformer():
    # The third call has the same shapes but no token with global attention.
    return _longformer((12, 1), (12, 1), (12, 0))


def longformer_global_tokens():
    # One more token with global attention in the third call: it runs eagerly, and compiled on torch 2.13 it raises an
    # AssertionError of Dynamo's own.
    return _longformer((12, 1), (12, 1), (12, 2))


def big_bird():
    own = dict(attention_type="block_sparse", block_size=4, num_random_blocks=2)
    config = SMALL | dict(num_attention_heads=2, max_position_embeddings=256)
    return _model("BigBirdModel", **config, **own), _text((1, 48), (1, 48), (1, 20))


def reformer():
    model = _model(
        "ReformerModel",
        vocab_size=100,
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=128,
        is_decoder=False,
        attention_head_size=8,
        attn_layers=["lsh"],
        axial_pos_embds=False,
        feed_forward_size=64,
        lsh_attn_chunk_length=8,
        num_buckets=4,
        num_hashes=1,
    )
    return model, _text((2, 32), (2, 32), (2, 30))


def encodec():
    model = _model(
        "EncodecModel",
        num_filters=4,
        hidden_size=8,
        codebook_size=16,
        codebook_dim=8,
        num_lstm_layers=1,
        upsampling_ratios=[4, 2],
        target_bandwidths=[24.0],
        num_residual_layers=1,
    )
    return model, [{"input_values": torch.randn(1, 1, n)} for n in (320, 320, 480)]


def llava():
    from transformers import CLIPVisionConfig, LlamaConfig

    calls = []
    for batch, length in ((2, 12), (2, 12), (2, 17)):
        ids = _ids(batch, length, 99)
        ids[:, 1:5] = 99
        calls.append({"input_ids": ids, "pixel_values": torch.randn(batch, 3, 32, 32)})
    model = _model(
        "LlavaForConditionalGeneration",
        vision_config=CLIPVisionConfig(**IMAGES, patch_size=16),
        text_config=LlamaConfig(**SMALL, num_key_value_heads=2),
        image_token_index=99,
        image_seq_length=4,
    )
    return model, calls


def vilt():
    config = IMAGES | dict(vocab_size=100, patch_size=8, max_position_embeddings=40)
    calls = [
        {"input_ids": _ids(2, s), "pixel_values": torch.randn(2, 3, 32, 32)}
        for s in (8, 8, 11, 13)
    ]
    return _model("ViltModel", **config), calls


def timesfm():
    calls = [
        {
            "past_values": [torch.randn(n) for n in lengths],
            "freq": torch.zeros(len(lengths), dtype=torch.long),
        }
        for lengths in ((32, 32), (32, 32), (32, 24), (32, 24, 16))
    ]
    model = _model(
        "TimesFmModelForPrediction",
        **WIDTHS | dict(hidden_size=16, intermediate_size=32, num_attention_heads=2),
        patch_length=8,
        context_length=32,
        horizon_length=8,
        freq_size=3,
        head_dim=8,
    )
    return model, calls


# ---- Truth -----------------------------------------------------------------------------------------------------------
# Read from the logs and from the structured trace (which agree) of one fresh process per model, on the CPU:
#   HF_HUB_OFFLINE=1 TORCH_LOGS="graph_breaks,recompiles" TORCH_TRACE=trace PYTHONPATH=tests/models python -c "
#   import sys, torch, zoo; torch.manual_seed(0)
#   model, calls = getattr(zoo, sys.argv[1])()
#   compiled = torch.compile(model, backend='eager')
#   for call in calls: compiled(**call)" NAME
# With torch 2.13.0+cpu, transformers 5.22.2, Python 3.11. A second seed changed nothing in any model with a graph break.
@dataclass(frozen=True)
class Truth:
    graph_breaks: int  # distinct (innermost frame outside torch and the standard library, kind of break)
    skipped_frames: int  # distinct functions that run eagerly as a whole, resume functions included
    recompiles: int  # recompile_reasons records except those refused by the recompile limit
    graphs: int  # calls of the backend
    limit_hit: bool = False
    raises: bool = False  # it runs eagerly, but not compiled
    places: tuple[str, ...] = ()  # of the breaks and skips: "file: text of the line"


TRUTH = {
    "gpt2": Truth(0, 0, 2, 3),
    "longformer": Truth(
        7, 1, 1, 18,
        places=(
            'modeling_longformer.py: is_global_attn = is_index_global_attn.flatten().any().item()',
            'modeling_longformer.py: is_index_global_attn_nonzero = is_index_global_attn.nonzero(as_tuple=True)',
            'modeling_longformer.py: is_local_index_global_attn_nonzero = is_local_index_global_attn.nonzero(as_tuple=True)',
            'modeling_longformer.py: is_local_index_no_global_attn_nonzero = (is_local_index_global_attn == 0).nonzero(as_tuple=True)',
            'modeling_longformer.py: attn_probs_without_global = attn_probs.narrow(',
            'modeling_longformer.py: assert list(global_attn_scores.size()) == [',
            'modeling_longformer.py: assert list(global_attn_output.size()) == [',
        ),
    ),
    "longformer_global_tokens": Truth(7, 1, 6, 22, raises=True),
    "big_bird": Truth(
        5, 7, 1, 12,
        places=(
            'modeling_big_bird.py: np.zeros((num_blocks, np.sum(plan_num_rand_blocks[: max_plan_idx + 1])), dtype=np.int32)',
            'output_capturing.py: recordable_keys = {',
            'modeling_big_bird.py: logger.warning(',
            'modeling_big_bird.py: self.query = nn.Linear(config.hidden_size, self.all_head_size, bias=config.use_bias)',
            'modeling_big_bird.py: super().__init__()',
        ),
    ),
    "reformer": Truth(
        3, 1, 4, 16,
        places=(
            'modeling_reformer.py: assert self.training, (',
            'modeling_reformer.py: logger.warning_once(',
            'modeling_reformer.py: if attention_mask is not None and (attention_mask.sum().item() < batch_size * attention_mask.shape[-1]):',
        ),
    ),
    "encodec": Truth(
        2, 5, 35, 42, limit_hit=True,
        places=(
            'modeling_encodec.py: if length <= max_pad:',
            'modeling_encodec.py: hidden_states = self.lstm(hidden_states)[0] + hidden_states',
        ),
    ),
    "llava": Truth(
        3, 3, 10, 11,
        places=(
            'output_capturing.py: with _hook_installation_lock:',
            'output_capturing.py: module.register_forward_hook(output_capturing_hook)',
            'import_utils.py: torch._check_tensor_all(cond)',
        ),
    ),
    "vilt": Truth(
        8, 5, 4, 14,
        places=(
            'modeling_vilt.py: nn.functional.interpolate(',
            'modeling_vilt.py: [',
            'modeling_vilt.py: unique_rows = valid_idx[:, 0].unique()',
            'modeling_vilt.py: non_valid_idx = (1 - x_mask).nonzero(as_tuple=False)',
            'modeling_vilt.py: valid_row_idx = [valid_idx[valid_idx[:, 0] == u] for u in unique_rows]',
            'modeling_vilt.py: non_valid_row_idx = [non_valid_idx[non_valid_idx[:, 0] == u] for u in unique_rows]',
            'modeling_vilt.py: if p <= 0:',
            'modeling_vilt.py: pad_nums = [max_image_length - v for v in valid_nums]',
        ),
    ),
    "timesfm": Truth(0, 0, 2, 3),
}
