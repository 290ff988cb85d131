"""Factories for tiny models of transformers with random weights: nothing is downloaded.

    torchproof check benchmarks/zoo.py:transformers_bart --effort quick

The configuration is the type's default with every known size made small, and the inputs
are made from the signature of `forward`; `OVERRIDES` lists what a type needs beyond
that.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

Call = dict[str, Any]

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 32, 4, 2, 100, 32, 8

# What each size becomes, by its name in a configuration.
_NAMES: tuple[tuple[int, str], ...] = (
    (
        WIDTH,
        """
        hidden_size d_model n_embd emb_dim embed_dim dim embedding_size
        encoder_hidden_size decoder_hidden_size out_hidden_size word_embed_proj_dim
        projection_dim output_hidden_size codebook_dim mlp_dim classifier_proj_size
        attention_hidden_size lru_width mask_feature_size codevector_dim
        proj_codevector_dim cross_attention_hidden_size query_pre_attn_scalar d_latents
        vision_output_dim conv_channels
        """,
    ),
    (
        2 * WIDTH,
        """
        intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim d_inner
        dim_feedforward ffn_hidden_size moe_intermediate_size decoder_intermediate_size
        feed_forward_size encoder_feedforward_dim speaker_embedding_dim
        """,
    ),
    (
        LAYERS,
        """
        num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers
        depth num_encoder_layers num_decoder_layers decoder_num_hidden_layers
        num_global_layers num_residual_layers speech_decoder_postnet_layers
        num_self_attends_per_block num_blocks max_window_layers
        """,
    ),
    (
        HEADS,
        """
        num_attention_heads n_head n_heads num_heads encoder_attention_heads
        decoder_attention_heads attention_heads decoder_num_attention_heads
        num_cross_attention_heads num_self_attention_heads num_experts num_local_experts
        n_routed_experts num_codebooks n_codebooks num_quantizers
        """,
    ),
    (
        2,
        """
        num_key_value_heads num_experts_per_tok num_kv_heads n_group topk_group n_groups
        num_conv_pos_embedding_groups
        """,
    ),
    (
        WIDTH // HEADS,
        """
        head_dim d_kv qk_rope_head_dim qk_nope_head_dim v_head_dim d_head state_size
        mamba_d_state kv_lora_rank qk_head_dim num_mel_bins num_queries num_query_tokens
        num_latents mamba_d_head chunk_size mamba_chunk_size mm_tokens_per_image
        """,
    ),
    (
        16,
        """
        q_lora_rank num_conv_pos_embeddings num_filters sliding_window codebook_size
        """,
    ),
    (VOCABULARY, "vocab_size decoder_vocab_size"),
    (
        128,
        """
        max_position_embeddings n_positions max_source_positions block_size max_seq_len
        max_target_positions max_2d_position_embeddings context_length
        """,
    ),
    (IMAGE, "image_size"),
    (PATCH, "patch_size"),
)
SIZES = {name: size for size, names in _NAMES for name in names.split()}
# Lists with one entry for each stage of a network.
STAGES: dict[str, Callable[[int], list[int]]] = {
    "depths": lambda count: [1] * count,
    "conv_dim": lambda count: [WIDTH] * count,
    "hidden_sizes": lambda count: [8 << stage for stage in range(count)],
    "num_heads": lambda count: [1 << stage for stage in range(count)],
    "num_attention_heads": lambda count: [1 << stage for stage in range(count)],
}
TOKENS = {"pad": 0, "bos": 1, "eos": 2, "decoder_start": 3, "sep": 4, "cls": 5}
FIRST_SPECIAL = 80  # further special tokens count from here; text stays below


def shrunk(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that make a small configuration of one with these values.

    Only what changes is passed, so that what a configuration derives from its sizes,
    such as the kind of each layer, is derived anew.
    """
    small: dict[str, Any] = {}
    for name, value in values.items():
        inner = overrides.get(name, {})
        if isinstance(value, dict) and "model_type" in value and inner is not None:
            other = inner.get("model_type", value["model_type"])
            if other != value["model_type"]:
                value = CONFIG_MAPPING[other]().to_dict()
            small[name] = {**shrunk(value, inner), "model_type": other}
        elif name in overrides:
            small[name] = inner
        elif (size := _small(name, value)) is not None:
            small[name] = size
    heads = values.get("num_attention_heads")
    if heads is not None and values.get("num_key_value_heads") == heads:
        small["num_key_value_heads"] = small["num_attention_heads"]
    return {**overrides, **small}


def _small(name: str, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (list, tuple)):
        if name in STAGES:
            return STAGES[name](len(value))
        if name in {"image_size", "patch_size"}:
            return [SIZES[name]] * len(value)
    stem = name.removesuffix("_token_id").removesuffix("_token_index")
    if stem != name:
        return _token(stem)
    return SIZES.get(name) if isinstance(value, int) else None


def _token(stem: str) -> int:
    known = TOKENS.get(stem)
    if known is not None:
        return known
    return FIRST_SPECIAL + sum(stem.encode()) % (VOCABULARY - FIRST_SPECIAL)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call."""

    batch: int = 2
    length: int = 12
    audio: int = 8000


CALLS = (
    Sizes(),
    Sizes(batch=3, length=16, audio=9600),
    Sizes(batch=4, length=20, audio=11200),
)


@dataclass(frozen=True)
class Override:
    """What a model type needs beyond its default configuration and signature."""

    config: Mapping[str, Any] = field(default_factory=dict)
    head: str | None = None  # the class, if not the first of HEAD_TABLES
    inputs: Callable[[Any, Sizes], Call] | None = None  # added to the usual ones
    without: tuple[str, ...] = ()  # usual inputs that are left out
    calls: tuple[Sizes, ...] = CALLS


# The classes to take, in this order: those that people run.
HEAD_TABLES = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)


def head(model_type: str) -> Any:
    override = OVERRIDES.get(model_type, Override())
    if override.head is not None:
        return getattr(transformers, override.head)
    for table in HEAD_TABLES:
        name = getattr(modeling_auto, table).get(model_type)
        if name is not None:
            return getattr(transformers, name if isinstance(name, str) else name[0])
    raise KeyError(model_type)


def built(model_type: str) -> Any:
    config_class = CONFIG_MAPPING[model_type]
    override = OVERRIDES.get(model_type, Override())
    small = shrunk(config_class().to_dict(), override.config)
    small.pop("model_type", None)
    config = config_class(**small)
    return head(model_type)(config)


def text(config: Any, sizes: Sizes) -> torch.Tensor:
    last = min(FIRST_SPECIAL, _of(config, "vocab_size", VOCABULARY))
    return torch.randint(6, last, (sizes.batch, sizes.length))


def mask(sizes: Sizes, length: int) -> torch.Tensor:
    """A mask in which the last sequence is padded."""
    ones = torch.ones(sizes.batch, length, dtype=torch.long)
    ones[-1, length - length // 4 :] = 0
    return ones


def image(config: Any, sizes: Sizes) -> torch.Tensor:
    side = _of(config, "image_size", IMAGE)
    height, width = (side, side) if isinstance(side, int) else side
    channels = _of(config, "num_channels", 3)
    return torch.randn(sizes.batch, channels, height, width)


def _of(config: Any, name: str, default: Any) -> Any:
    """A value of the configuration or of the first of its parts that has it."""
    value = getattr(config, name, None)
    if value is None:
        for part in vars(config).values():
            if isinstance(part, transformers.PreTrainedConfig):
                value = _of(part, name, None)
                if value is not None:
                    return value
    return default if value is None else value


def boxes(sizes: Sizes) -> torch.Tensor:
    corners = torch.randint(0, 50, (sizes.batch, sizes.length, 4))
    corners[..., 2:] += corners[..., :2]
    return corners


# The inputs that are made when `forward` takes them.
INPUTS: dict[str, Callable[[Any, Sizes], Any]] = {
    "input_ids": text,
    "attention_mask": lambda config, sizes: mask(sizes, sizes.length),
    "decoder_input_ids": lambda config, sizes: text(config, sizes)[:, :7],
    "pixel_values": image,
    "input_values": lambda config, sizes: torch.randn(sizes.batch, sizes.audio),
    "input_features": lambda config, sizes: torch.randn(
        sizes.batch, _of(config, "num_mel_bins", 8), 64
    ),
    "bbox": lambda config, sizes: boxes(sizes),
}


def inputs(model_type: str, model: Any, sizes: Sizes) -> Call:
    override = OVERRIDES.get(model_type, Override())
    taken = inspect.signature(model.forward).parameters
    made: Call = {}
    for name, make in INPUTS.items():
        if name in taken and name not in override.without:
            made[name] = make(model.config, sizes)
    audio = made.get("input_values")
    if audio is not None and "attention_mask" in made:
        made["attention_mask"] = mask(sizes, audio.shape[-1])
    elif "input_ids" not in made:
        made.pop("attention_mask", None)
    if override.inputs is not None:
        made |= override.inputs(model.config, sizes)
    if "input_ids" in made and "pixel_values" in made:
        made = with_image_tokens(model, made)
    return made


def with_image_tokens(model: Any, call: Call) -> Call:
    """Puts as many image tokens before the text as the model makes image features."""
    config = model.config
    token = _of(config, "image_token_id", None) or _of(
        config, "image_token_index", None
    )
    features = getattr(model, "get_image_features", None)
    if token is None or features is None:
        return call
    taken = inspect.signature(features).parameters
    given = {n: v for n, v in call.items() if n in taken and n not in {"input_ids"}}
    with torch.no_grad():
        answer = features(**given)
    rows = getattr(answer, "pooler_output", answer)
    rows = rows if isinstance(rows, torch.Tensor) else torch.cat(list(rows))
    count = math.prod(rows.shape[:-1]) // call["input_ids"].shape[0]
    ids = call["input_ids"]
    prefix = torch.full((ids.shape[0], count), token)
    ids = torch.cat([ids[:, :1], prefix, ids[:, 1:]], dim=1)
    ones = torch.ones(ids.shape[0], count, dtype=torch.long)
    call = {**call, "input_ids": ids}
    for name in ("attention_mask", "token_type_ids", "mm_token_type_ids"):
        if name in call:
            call[name] = torch.cat([call[name][:, :1], ones, call[name][:, 1:]], dim=1)
    return call


def labels(model: Any, call: Call) -> Call:
    """Labels for a loss, as the head of the model needs them."""
    name = type(model).__name__
    ids = call.get("decoder_input_ids", call.get("input_ids"))
    batch = next(v.shape[0] for v in call.values() if isinstance(v, torch.Tensor))
    if "labels" not in inspect.signature(model.forward).parameters or "labels" in call:
        return {}
    if name.endswith("ForCTC"):
        return {"labels": torch.randint(1, 30, (batch, 4))}
    if name.endswith("Classification"):
        return {"labels": torch.zeros(batch, dtype=torch.long)}
    return {} if ids is None else {"labels": ids.clone()}


def make(
    model_type: str, training: bool, *, one_size: bool = False
) -> tuple[Any, list[Call]]:
    """A model and three calls of different sizes, or of one size."""
    sizes = OVERRIDES.get(model_type, Override()).calls
    model = built(model_type).eval()
    calls = [inputs(model_type, model, sizes[0] if one_size else s) for s in sizes]
    if training:
        calls = [call | labels(model, call) for call in calls]
    return model.train(training), calls


# Block-sparse attention is used from a length of several blocks on.
SPARSE = {"block_size": 4, "num_random_blocks": 1}
LONG_CALLS = tuple(Sizes(length=length) for length in (64, 80, 96))
RESNET = {"model_type": "resnet", "out_features": ["stage2", "stage3", "stage4"]}
DETECTION = Override(
    {"use_timm_backbone": False, "backbone_config": RESNET, "auxiliary_loss": False}
)
SWIN = {
    "patch_size": 2,
    "window_size": 2,
    "embed_dim": 16,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
LAGS, PAST, AHEAD = [1, 2, 3], 12, 6
SERIES_CONFIG = {
    "prediction_length": AHEAD,
    "context_length": PAST,
    "lags_sequence": LAGS,
    "num_time_features": 2,
    "feature_size": len(LAGS) + 4,
}


def series(config: Any, sizes: Sizes) -> Call:
    past = PAST + max(LAGS)
    return {
        "past_values": torch.randn(sizes.batch, past),
        "past_time_features": torch.randn(sizes.batch, past, 2),
        "past_observed_mask": torch.ones(sizes.batch, past),
        "future_values": torch.randn(sizes.batch, AHEAD),
        "future_time_features": torch.randn(sizes.batch, AHEAD, 2),
    }


def channels(config: Any, sizes: Sizes) -> Call:
    size = config.context_length, config.num_input_channels
    return {"past_values": torch.randn(sizes.batch, *size)}


def frames(time: int, width: int) -> Callable[[Any, Sizes], Call]:
    """Features of audio, one row for each point in time."""

    def inputs_of(config: Any, sizes: Sizes) -> Call:
        length = time * sizes.length // 12
        features = torch.randn(sizes.batch, length, width)
        return {"input_features": features, "attention_mask": mask(sizes, length)}

    return inputs_of


def mel(config: Any, sizes: Sizes) -> Call:
    length = 2 * config.max_source_positions
    return {"input_features": torch.randn(sizes.batch, config.num_mel_bins, length)}


def waveform(config: Any, sizes: Sizes) -> Call:
    return {"input_values": torch.randn(sizes.batch, 1, sizes.audio)}


def several_images(config: Any, sizes: Sizes) -> Call:
    return {"pixel_values": image(config, sizes).unsqueeze(1)}


def tiles(config: Any, sizes: Sizes) -> Call:
    """An image as the whole and its tiles, with the size it had."""
    pixels = image(config, sizes).unsqueeze(1).repeat(1, 5, 1, 1, 1)
    side = 2 * pixels.shape[-1]
    return {
        "pixel_values": pixels,
        "image_sizes": torch.tensor([[side, side]] * sizes.batch),
    }


def patches(config: Any, sizes: Sizes) -> Call:
    """Images as a list of patches, with the grid of each."""
    vision = config.vision_config
    grid = torch.tensor([[1, 4, 4]] * sizes.batch)
    width = 3 * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.randn(int(grid.prod(1).sum()), width)
    ids = {"mm_token_type_ids": torch.zeros(sizes.batch, sizes.length, dtype=torch.int)}
    return {"pixel_values": pixels, "image_grid_thw": grid, **ids}


def aspect_ratios(config: Any, sizes: Sizes) -> Call:
    pixels = image(config, sizes)[:, None, None].repeat(1, 1, 4, 1, 1, 1)
    seen = torch.ones(sizes.batch, sizes.length, 1, 4, dtype=torch.long)
    return {
        "pixel_values": pixels,
        "aspect_ratio_ids": torch.ones(sizes.batch, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(sizes.batch, 1, 4, dtype=torch.long),
        "cross_attention_mask": seen,
    }


PINPOINTS = {"image_grid_pinpoints": [[IMAGE, 2 * IMAGE], [2 * IMAGE, 2 * IMAGE]]}
OVERRIDES: dict[str, Override] = {
    "beit": Override(head="BeitForImageClassification"),
    "big_bird": Override(SPARSE, calls=LONG_CALLS),
    "bigbird_pegasus": Override(SPARSE, calls=LONG_CALLS),
    "blip-2": Override({"image_token_index": 90}),
    "clip": Override(head="CLIPModel"),
    "convnext": Override({"patch_size": 4}),
    "dac": Override(inputs=waveform),
    "deformable_detr": DETECTION,
    "detr": DETECTION,
    "encodec": Override(inputs=waveform),
    "esm": Override({"vocab_size": VOCABULARY, "mask_token_id": 6, "pad_token_id": 0}),
    "idefics3": Override(inputs=several_images),
    "informer": Override(SERIES_CONFIG, "InformerForPrediction", series),
    "jamba": Override({"attn_layer_period": 2, "attn_layer_offset": 1}),
    "layoutlmv3": Override(
        {"coordinate_size": 6, "shape_size": 4, "input_size": IMAGE},
        "LayoutLMv3ForTokenClassification",
    ),
    "llava_onevision": Override(PINPOINTS, inputs=tiles),
    "mamba2": Override({"head_dim": 16}),
    "mask2former": Override({"backbone_config": SWIN}, "Mask2FormerModel"),
    "mimi": Override(
        {"upsample_groups": WIDTH, "vector_quantization_hidden_dimension": WIDTH},
        inputs=waveform,
    ),
    "mllama": Override(
        {
            "vision_config": {
                "intermediate_layers_indices": [1],
                "vision_output_dim": 2 * WIDTH,
            },
            "text_config": {"cross_attention_layers": [1]},
        },
        inputs=aspect_ratios,
    ),
    "musicgen": Override(
        inputs=lambda config, sizes: {
            "decoder_input_ids": torch.randint(0, 16, (sizes.batch * HEADS, 7))
        },
        without=("input_values",),
    ),
    "patchtst": Override(head="PatchTSTForPrediction", inputs=channels),
    "perceiver": Override(head="PerceiverForMaskedLM"),
    "qwen2_5_vl": Override({"text_config": {"rope_parameters": ROPE}}, inputs=patches),
    "qwen2_vl": Override({"text_config": {"rope_parameters": ROPE}}, inputs=patches),
    "qwen3_vl": Override(inputs=patches),
    # The third layer is the first one with attention.
    "recurrent_gemma": Override({"num_hidden_layers": 3}),
    "reformer": Override(
        {
            "axial_pos_shape": [8, 8],
            "axial_pos_embds_dim": [8, 24],
            "attention_head_size": 8,
            "lsh_attn_chunk_length": 4,
            "local_attn_chunk_length": 4,
            "is_decoder": True,
        },
        "ReformerModelWithLMHead",
    ),
    "sam": Override(
        {"vision_config": {"output_channels": WIDTH, "num_pos_feats": 16}},
        without=("input_ids",),
    ),
    "swin": Override(SWIN),
    "smolvlm": Override(inputs=several_images),
    "speech_to_text": Override(inputs=frames(48, 80)),
    "time_series_transformer": Override(
        SERIES_CONFIG, "TimeSeriesTransformerForPrediction", series
    ),
    "vits": Override({"upsample_initial_channel": 32, "flow_size": 32}),
    "wav2vec2-bert": Override({"vocab_size": 32}, inputs=frames(48, 160)),
    "whisper": Override(inputs=mel),
}
