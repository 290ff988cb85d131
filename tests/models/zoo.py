"""Small, randomly initialised transformers models.

Each factory returns ``(model, calls)``: the model in eval mode and a list of keyword-argument dicts. The first two
calls are alike, the later ones have another sequence length, batch or image size, so that recompilations show.
Nothing is downloaded. TRUTH says what torch.compile makes of each.
"""

from dataclasses import dataclass

import torch


def _ids(batch, length, vocab=100):
    return torch.randint(5, vocab, (batch, length))


def _text(*shapes):
    return [{"input_ids": _ids(b, s)} for b, s in shapes]


def _masked(*shapes):
    calls = []
    for b, s in shapes:
        mask = torch.ones(b, s, dtype=torch.long)
        mask[-1, -2:] = 0
        calls.append({"input_ids": _ids(b, s), "attention_mask": mask})
    return calls


def _images(*shapes):
    return [{"pixel_values": torch.randn(b, 3, h, w)} for b, h, w in shapes]


def _fixed_routing(model):
    """Zero router weights: which expert gets how many tokens no longer depends on the seed."""
    for name, parameter in model.named_parameters():
        if name.endswith("mlp.gate.weight") or "router" in name:
            torch.nn.init.zeros_(parameter)
    return model


_DECODER = dict(
    vocab_size=100,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    )
    return model.eval(), _text((2, 12), (2, 12), (2, 17), (3, 20))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_DECODER)).eval(), _masked(
        (2, 12), (2, 12), (2, 17), (3, 20)
    )


def phi3_longrope():
    from transformers import Phi3Config, Phi3ForCausalLM

    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 16,
    }
    config = Phi3Config(
        **_DECODER,
        pad_token_id=0,
        original_max_position_embeddings=16,
        rope_parameters=rope,
    )
    return Phi3ForCausalLM(config).eval(), _text((2, 12), (2, 12), (2, 14), (2, 24))


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return BertForSequenceClassification(config).eval(), _masked(
        (2, 12), (2, 12), (2, 17), (3, 20)
    )


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    return ViTForImageClassification(config).eval(), _images(
        (2, 32, 32), (2, 32, 32), (3, 32, 32), (5, 32, 32)
    )


def swin():
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    )
    return SwinModel(config).eval(), _images(
        (2, 32, 32), (2, 32, 32), (3, 32, 32), (5, 32, 32)
    )


def convnext():
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    return ConvNextForImageClassification(config).eval(), _images(
        (2, 32, 32), (2, 32, 32), (3, 32, 32), (2, 48, 48)
    )


def detr():
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        use_pretrained_backbone=False,
        backbone=None,
        num_queries=5,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
    )
    return DetrForObjectDetection(config).eval(), _images(
        (1, 64, 64), (1, 64, 64), (2, 64, 64)
    )


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=100,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=30,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )
    calls = [
        {"input_features": torch.randn(b, 8, 60), "decoder_input_ids": _ids(b, s)}
        for b, s in ((2, 4), (2, 4), (2, 7))
    ]
    return WhisperForConditionalGeneration(config).eval(), calls


def wav2vec2():
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=[16, 16],
        conv_kernel=[10, 3],
        conv_stride=[5, 2],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    )
    calls = []
    for samples in (800, 800, 1000, 1200):
        mask = torch.ones(2, samples, dtype=torch.long)
        mask[1, samples - 200 :] = 0
        calls.append({"input_values": torch.randn(2, samples), "attention_mask": mask})
    return Wav2Vec2ForCTC(config).eval(), calls


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_DECODER, num_local_experts=4, num_experts_per_tok=2)
    return MixtralForCausalLM(config).eval(), _text((2, 12), (2, 12), (2, 17), (3, 20))


def recurrent_gemma():
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    config = RecurrentGemmaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        lru_width=32,
        attention_window_size=16,
    )
    return RecurrentGemmaForCausalLM(config).eval(), _text(
        (2, 6), (2, 6), (2, 9), (2, 12)
    )


def clip():
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config=dict(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=32,
            bos_token_id=1,
            eos_token_id=99,
        ),
        vision_config=dict(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        ),
        projection_dim=16,
    )
    calls = [
        {"input_ids": _ids(b, s), "pixel_values": torch.randn(b, 3, 32, 32)}
        for b, s in ((2, 8), (2, 8), (2, 11), (3, 13))
    ]
    return CLIPModel(config).eval(), calls


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=100,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
    )
    calls = [
        {"input_ids": _ids(2, s), "decoder_input_ids": _ids(2, 7)} for s in (12, 12, 17)
    ]
    return T5ForConditionalGeneration(config).eval(), calls


def longt5_without_mask():
    # Runs eagerly, raises under torch.compile: transformers builds the default mask only when not compiling.
    from transformers import LongT5Config, LongT5Model

    config = LongT5Config(
        vocab_size=100,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        local_radius=3,
        global_block_size=4,
        encoder_attention_type="transient-global",
        decoder_start_token_id=0,
    )
    calls = [
        {"input_ids": _ids(2, s), "decoder_input_ids": _ids(2, 5)} for s in (12, 12, 17)
    ]
    return LongT5Model(config).eval(), calls


def led():
    from transformers import LEDConfig, LEDForConditionalGeneration

    config = LEDConfig(
        vocab_size=100,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
        attention_window=4,
    )
    return LEDForConditionalGeneration(config).eval(), _text((2, 12), (2, 12), (2, 14))


def _longformer():
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        attention_window=[4],
    )
    return LongformerModel(config).eval()


def _global_calls(*lengths_and_tokens):
    calls = []
    for length, tokens in lengths_and_tokens:
        mask = torch.zeros(2, length, dtype=torch.long)
        mask[:, :tokens] = 1
        calls.append({"input_ids": _ids(2, length), "global_attention_mask": mask})
    return calls


def longformer():
    # The third call has the same shapes but no token with global attention.
    return _longformer(), _global_calls((12, 1), (12, 1), (12, 0))


def longformer_global_tokens():
    # One more token with global attention in the third call: it runs eagerly, and compiled on torch 2.13 it raises an
    # AssertionError of Dynamo's own.
    return _longformer(), _global_calls((12, 1), (12, 1), (12, 2))


def big_bird():
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=256,
        attention_type="block_sparse",
        block_size=4,
        num_random_blocks=2,
    )
    return BigBirdModel(config).eval(), _text((1, 48), (1, 48), (1, 20))


def reformer():
    from transformers import ReformerConfig, ReformerModel

    config = ReformerConfig(
        vocab_size=100,
        attention_head_size=8,
        attn_layers=["lsh"],
        axial_pos_embds=False,
        hidden_size=32,
        num_attention_heads=4,
        feed_forward_size=64,
        is_decoder=False,
        lsh_attn_chunk_length=8,
        num_buckets=4,
        num_hashes=1,
        max_position_embeddings=128,
    )
    return ReformerModel(config).eval(), _text((2, 32), (2, 32), (2, 30))


def superpoint():
    from transformers import SuperPointConfig, SuperPointForKeypointDetection

    config = SuperPointConfig(
        encoder_hidden_sizes=[8, 8, 16, 16],
        decoder_hidden_size=16,
        keypoint_decoder_dim=65,
        descriptor_decoder_dim=16,
    )
    return SuperPointForKeypointDetection(config).eval(), _images(
        (1, 32, 32), (1, 32, 32), (2, 32, 32), (2, 48, 48)
    )


def fastspeech2_conformer():
    from transformers import FastSpeech2ConformerConfig, FastSpeech2ConformerModel

    config = FastSpeech2ConformerConfig(
        hidden_size=16,
        vocab_size=38,
        num_mel_bins=8,
        encoder_num_attention_heads=2,
        encoder_layers=1,
        encoder_linear_units=16,
        decoder_layers=1,
        decoder_num_attention_heads=2,
        decoder_linear_units=16,
        speech_decoder_postnet_layers=2,
        speech_decoder_postnet_units=8,
        duration_predictor_layers=1,
        duration_predictor_channels=8,
        energy_predictor_layers=1,
        energy_predictor_channels=8,
        pitch_predictor_layers=1,
        pitch_predictor_channels=8,
    )
    model = FastSpeech2ConformerModel(config).eval()
    # Every phoneme lasts three frames, whatever the seed.
    for name, parameter in model.named_parameters():
        if name.startswith("duration_predictor.linear"):
            torch.nn.init.constant_(parameter, 1.4 if name.endswith("bias") else 0.0)
    return model, [{"input_ids": _ids(1, s, 38)} for s in (6, 6, 9)]


def encodec():
    from transformers import EncodecConfig, EncodecModel

    config = EncodecConfig(
        num_filters=4,
        hidden_size=8,
        codebook_size=16,
        codebook_dim=8,
        num_lstm_layers=1,
        upsampling_ratios=[4, 2],
        target_bandwidths=[24.0],
        num_residual_layers=1,
    )
    return EncodecModel(config).eval(), [
        {"input_values": torch.randn(1, 1, n)} for n in (320, 320, 480)
    ]


def qwen3_moe_eager_experts():
    # Nine layers: the decoder layer is compiled once for each, so the first call already hits the recompile limit.
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    config = Qwen3MoeConfig(
        **{**_DECODER, "num_hidden_layers": 9},
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        decoder_sparse_step=1,
    )
    model = Qwen3MoeModel(config).eval()
    model.set_experts_implementation("eager")
    return _fixed_routing(model), _text((2, 12), (2, 12), (2, 17))


def switch_transformers():
    from transformers import SwitchTransformersConfig, SwitchTransformersEncoderModel

    config = SwitchTransformersConfig(
        vocab_size=100,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_sparse_encoder_layers=1,
        num_heads=4,
        num_experts=4,
        expert_capacity=64,
    )
    return _fixed_routing(SwitchTransformersEncoderModel(config).eval()), _text(
        (2, 12), (2, 12), (2, 17)
    )


def mamba():
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=100, hidden_size=32, state_size=8, num_hidden_layers=1
    )
    return MambaForCausalLM(config).eval(), _text((2, 2), (2, 2), (2, 4), (2, 5))


def rwkv():
    from transformers import RwkvConfig, RwkvForCausalLM

    config = RwkvConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        attention_hidden_size=32,
        intermediate_size=64,
        context_length=64,
    )
    return RwkvForCausalLM(config).eval(), _text((2, 6), (2, 6), (2, 8), (2, 9))


def llava():
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            image_size=32,
            patch_size=16,
        ),
        text_config=LlamaConfig(**{**_DECODER, "num_hidden_layers": 1}),
        image_token_index=99,
        image_seq_length=4,
    )
    calls = []
    for batch, length in ((2, 12), (2, 12), (2, 17)):
        ids = _ids(batch, length, 99)
        ids[:, 1:5] = 99
        calls.append({"input_ids": ids, "pixel_values": torch.randn(batch, 3, 32, 32)})
    return LlavaForConditionalGeneration(config).eval(), calls


def vilt():
    from transformers import ViltConfig, ViltModel

    config = ViltConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        max_position_embeddings=40,
    )
    calls = [
        {"input_ids": _ids(2, s), "pixel_values": torch.randn(2, 3, 32, 32)}
        for s in (8, 8, 11, 13)
    ]
    return ViltModel(config).eval(), calls


def timesfm():
    from transformers import TimesFmConfig, TimesFmModelForPrediction

    config = TimesFmConfig(
        patch_length=8,
        context_length=32,
        horizon_length=8,
        freq_size=3,
        num_hidden_layers=1,
        hidden_size=16,
        intermediate_size=32,
        head_dim=8,
        num_attention_heads=2,
    )
    calls = [
        {
            "past_values": [torch.randn(n) for n in lengths],
            "freq": torch.zeros(len(lengths), dtype=torch.long),
        }
        for lengths in ((32, 32), (32, 32), (32, 24), (32, 24, 16))
    ]
    return TimesFmModelForPrediction(config).eval(), calls


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
    "llama": Truth(0, 0, 2, 3),
    "phi3_longrope": Truth(0, 0, 2, 3),
    "bert": Truth(0, 0, 2, 3),
    "vit": Truth(0, 0, 1, 2),
    "swin": Truth(0, 0, 1, 2),
    "convnext": Truth(0, 0, 2, 3),
    "detr": Truth(0, 0, 1, 2),
    "whisper": Truth(0, 0, 1, 2),
    "wav2vec2": Truth(0, 0, 1, 2),
    "mixtral": Truth(0, 0, 2, 3),
    "recurrent_gemma": Truth(0, 0, 2, 3),
    "clip": Truth(0, 0, 2, 3),
    "t5": Truth(0, 0, 1, 2),
    "longt5_without_mask": Truth(0, 0, 0, 0, raises=True),
    "led": Truth(
        3, 1, 5, 13,
        places=(
            'modeling_led.py: is_global_attn = is_index_global_attn.flatten().any().item()',
            'modeling_led.py: logger.warning_once(',
            'modeling_led.py: hidden_states = hidden_states.view(',
        ),
    ),
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
    "longformer_global_tokens": Truth(
        7, 1, 6, 22, raises=True,
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
    "superpoint": Truth(
        2, 1, 10, 18,
        places=(
            'modeling_superpoint.py: keypoints = torch.nonzero(scores[0] > self.keypoint_threshold)',
            'modeling_superpoint.py: return keypoints[mask], scores[mask]',
        ),
    ),
    "fastspeech2_conformer": Truth(
        3, 1, 4, 8,
        places=(
            'modeling_fastspeech2_conformer.py: if duration_labels.sum() == 0:',
            'modeling_fastspeech2_conformer.py: hidden_states = torch.zeros(',
            'modeling_fastspeech2_conformer.py: repeated = torch.repeat_interleave(encoded_embedding, target_duration, dim=0)',
        ),
    ),
    "encodec": Truth(
        2, 5, 35, 42, limit_hit=True,
        places=(
            'modeling_encodec.py: if length <= max_pad:',
            'modeling_encodec.py: hidden_states = self.lstm(hidden_states)[0] + hidden_states',
        ),
    ),
    "qwen3_moe_eager_experts": Truth(
        3, 5, 12, 18, limit_hit=True,
        places=(
            'modeling_qwen3_moe.py: expert_hit = torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero()',
            'output_capturing.py: recordable_keys = {',
            'modeling_qwen3_moe.py: if expert_idx == self.num_experts:',
        ),
    ),
    "switch_transformers": Truth(
        5, 7, 10, 16,
        places=(
            'output_capturing.py: _active_collector.reset(output_token)',
            'output_capturing.py: recordable_keys = {',
            'modeling_switch_transformers.py: causal_mask = attention_mask[:, None, None, :]',
            'modeling_switch_transformers.py: expert_hit = torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero()',
            'modeling_switch_transformers.py: idx, top_x = torch.where(expert_mask[expert_idx].squeeze(0))',
        ),
    ),
    "mamba": Truth(0, 0, 2, 3),
    "rwkv": Truth(0, 0, 3, 4),
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
