"""Compiles a diffusers pipeline for images of any size.

Here with a small model and random weights; yours comes from `from_pretrained`.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)

import torchproof

SIZES = ((16, 24), (16, 16), (32, 16))


def small_pipeline() -> StableDiffusionPipeline:
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(8,),
        cross_attention_dim=8,
        down_block_types=("CrossAttnDownBlock2D",),
        layers_per_block=1,
        norm_num_groups=4,
        up_block_types=("CrossAttnUpBlock2D",),
    )
    vae = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4)
    return StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=None,  # the prompt comes as embeddings
        tokenizer=None,
        unet=unet.eval(),
        scheduler=DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def compile_pipeline(pipeline: Any) -> None:
    """Compiles what takes the time: the denoiser runs at every step.

    Of newer pipelines, it is `pipeline.transformer`. The pipeline calls `vae.decode`,
    which is no forward: what it calls inside, the decoder, is compiled. `dynamic`
    compiles one graph for all sizes, if the first image is not square: of a square one,
    torch assumes that all are.
    """
    torchproof.compile(pipeline.unet, dynamic=True)
    torchproof.compile(pipeline.vae.decoder, dynamic=True)


def image(pipeline: Any, height: int, width: int) -> Any:
    seeded = torch.Generator().manual_seed(1)
    prompt = torch.randn(1, 5, 8, generator=seeded)
    return pipeline(
        prompt_embeds=prompt,
        negative_prompt_embeds=-prompt,
        height=height,
        width=width,
        num_inference_steps=3,
        generator=seeded,
        output_type="np",
    ).images[0]


if __name__ == "__main__":
    pipeline = small_pipeline()
    compile_pipeline(pipeline)
    for height, width in SIZES:
        print(image(pipeline, height, width).shape)
    print(torchproof.status(pipeline.unet))
    print(torchproof.status(pipeline.vae.decoder))
