"""Small models of transformers from different families, each with its training samples.

Each function returns a model and a list of samples, as a training script would have
them: text of different lengths, labels, one dictionary a sample. Nothing is downloaded.
`collate` makes a batch of them. benchmarks/library_scripts.py copies the source of
these functions into the programs that it writes, so each stands on its own.
"""

from __future__ import annotations

from typing import Any

import torch

Sample = dict[str, Any]


def collate(samples: list[Sample]) -> Sample:
    """One batch: sequences are padded to the longest, the rest is stacked."""
    batch: Sample = {}
    for key in samples[0]:
        values = [sample[key] for sample in samples]
        if not isinstance(values[0], torch.Tensor):
            batch[key] = values[0]
        elif len({value.shape for value in values}) > 1:
            padding = -100 if key == "labels" else 0
            batch[key] = torch.nn.utils.rnn.pad_sequence(
                values, batch_first=True, padding_value=padding
            )
        else:
            batch[key] = torch.stack(values)
    return batch


def gpt2() -> tuple[Any, list[Sample]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=4, n_positions=64)
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        ids = torch.randint(5, 100, (length,))
        samples.append({"input_ids": ids, "labels": ids.clone()})
    return GPT2LMHeadModel(config), samples


def llama() -> tuple[Any, list[Sample]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        ids = torch.randint(5, 100, (length,))
        mask = torch.ones(length, dtype=torch.long)
        sample = {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}
        samples.append(sample)
    return LlamaForCausalLM(config), samples


def bert() -> tuple[Any, list[Sample]]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        sample = {"input_ids": torch.randint(5, 100, (length,))}
        sample["attention_mask"] = torch.ones(length, dtype=torch.long)
        samples.append({**sample, "labels": torch.tensor(length % 2)})
    return BertForSequenceClassification(config), samples


def t5() -> tuple[Any, list[Sample]]:
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
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        sample = {"input_ids": torch.randint(5, 100, (length,))}
        sample["attention_mask"] = torch.ones(length, dtype=torch.long)
        samples.append({**sample, "labels": torch.randint(5, 100, (length // 2,))})
    return T5ForConditionalGeneration(config), samples


def opt() -> tuple[Any, list[Sample]]:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=100,
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        layerdrop=0.1,
    )
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        ids = torch.randint(5, 100, (length,))
        samples.append({"input_ids": ids, "labels": ids.clone()})
    return OPTForCausalLM(config), samples


def bloom() -> tuple[Any, list[Sample]]:
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(vocab_size=100, hidden_size=32, n_layer=1, n_head=4)
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        ids = torch.randint(5, 100, (length,))
        samples.append({"input_ids": ids, "labels": ids.clone()})
    return BloomForCausalLM(config), samples


def gemma3() -> tuple[Any, list[Sample]]:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=8,
        max_position_embeddings=64,
    )
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        ids = torch.randint(5, 100, (length,))
        mask = torch.ones(length, dtype=torch.long)
        sample = {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}
        samples.append(sample)
    return Gemma3ForCausalLM(config), samples


def mixtral() -> tuple[Any, list[Sample]]:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
    )
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        ids = torch.randint(5, 100, (length,))
        samples.append({"input_ids": ids, "labels": ids.clone()})
    return MixtralForCausalLM(config), samples


def mamba() -> tuple[Any, list[Sample]]:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=100, hidden_size=32, state_size=8, num_hidden_layers=1
    )
    samples = []
    for length in (3, 4, 4, 2, 6, 3, 5, 2):
        ids = torch.randint(5, 100, (length,))
        samples.append({"input_ids": ids, "labels": ids.clone()})
    return MambaForCausalLM(config), samples


def vit() -> tuple[Any, list[Sample]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
    )
    samples = []
    for number in range(8):
        image = torch.randn(3, 32, 32)
        samples.append({"pixel_values": image, "labels": torch.tensor(number % 2)})
    return ViTForImageClassification(config), samples


def swin() -> tuple[Any, list[Sample]]:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
    )
    samples = []
    for number in range(8):
        image = torch.randn(3, 32, 32)
        samples.append({"pixel_values": image, "labels": torch.tensor(number % 2)})
    return SwinForImageClassification(config), samples


def segformer() -> tuple[Any, list[Sample]]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        num_labels=3,
    )
    samples = []
    for _ in range(8):
        image, labels = torch.randn(3, 32, 32), torch.randint(0, 3, (32, 32))
        samples.append({"pixel_values": image, "labels": labels})
    return SegformerForSemanticSegmentation(config), samples


def clip() -> tuple[Any, list[Sample]]:
    from transformers import CLIPConfig, CLIPModel

    text = {
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
        "bos_token_id": 1,
        "eos_token_id": 99,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    }
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        ids, image = torch.randint(5, 100, (length,)), torch.randn(3, 32, 32)
        mask = torch.ones(length, dtype=torch.long)
        sample = {"input_ids": ids, "attention_mask": mask, "pixel_values": image}
        # Contrastive training has no labels: the loss is asked for.
        samples.append({**sample, "return_loss": True})
    return CLIPModel(config), samples


def whisper() -> tuple[Any, list[Sample]]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=100,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
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
    samples = []
    for length in (5, 7, 7, 4, 11, 6, 6, 3):
        audio = torch.randn(8, 60)
        labels = torch.randint(5, 100, (length,))
        samples.append({"input_features": audio, "labels": labels})
    return WhisperForConditionalGeneration(config), samples


def wav2vec2() -> tuple[Any, list[Sample]]:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=[16, 16],
        conv_kernel=[10, 3],
        conv_stride=[5, 2],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    )
    samples = []
    for length in (800, 900, 900, 700, 1200, 800, 1000, 750):
        audio, mask = torch.randn(length), torch.ones(length, dtype=torch.long)
        sample = {"input_values": audio, "attention_mask": mask}
        samples.append({**sample, "labels": torch.randint(1, 32, (length // 200,))})
    return Wav2Vec2ForCTC(config), samples


def llava() -> tuple[Any, list[Sample]]:
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=32,
        patch_size=16,
    )
    text = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=99, image_seq_length=4
    )
    samples = []
    for length in (9, 12, 12, 7, 17, 11, 10, 8):
        ids = torch.randint(5, 99, (length,))
        ids[1:5] = 99
        sample = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        sample["pixel_values"] = torch.randn(3, 32, 32)
        samples.append({**sample, "labels": ids.clone()})
    return LlavaForConditionalGeneration(config), samples


FAMILIES = {
    family.__name__: family
    for family in (
        *(gpt2, llama, bert, t5, opt, bloom, gemma3, mixtral, mamba),
        *(vit, swin, segformer, clip, whisper, wav2vec2, llava),
    )
}
