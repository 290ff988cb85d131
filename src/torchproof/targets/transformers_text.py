"""Serves a transformers model with a static cache.

transformers' own `StaticCache` counts its tokens. Here positions are arguments of each
call, so `CallCache` writes into the tensors of a `StaticCache`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, StaticCache
from transformers.cache_utils import Cache, StaticLayer

from torchproof.records import UserError


class CallCache(Cache):
    """The cache of one call: writes at these positions of the static tensors.

    If `whole`, attention sees all of them, otherwise only what the call computes.
    """

    def __init__(self, storage: StaticCache, positions: Tensor, *, whole: bool) -> None:
        super().__init__(layers=storage.layers)
        self.positions, self.whole = positions, whole

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, Tensor]:
        layer: Any = self.layers[layer_idx]  # (1, heads, length, head_dim)
        layer.keys[:, :, self.positions] = key_states
        layer.values[:, :, self.positions] = value_states
        return (layer.keys, layer.values) if self.whole else (key_states, value_states)


class TransformersText(nn.Module):
    """The text model. It passes masks and positions, so the cache has no state."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        config = model.config.get_text_config(decoder=True)
        self.vocabulary = int(config.vocab_size)
        self.context = getattr(config, "max_position_embeddings", None)
        parameters = inspect.signature(model.forward).parameters
        self.end_tokens = _end_tokens(model)
        self._keeps_logits = "logits_to_keep" in parameters
        self.length = 0
        self._assert_supported()

    def _assert_supported(self) -> None:
        name = type(self.model).__name__
        layers = StaticCache(config=self.model.config, max_cache_len=1).layers
        kinds = {type(layer) for layer in layers} - {StaticLayer}
        if kinds or self.model.config.is_encoder_decoder:
            raise UserError(
                f"{name}: only decoders with full attention in every layer can be"
                " served; return an object with allocate, prefill and decode"
            )
        attention = self.model.config._attn_implementation
        if attention not in {"sdpa", "eager"}:
            raise UserError(
                f"{name}: attention {attention!r} takes no mask of positions: build the"
                ' model with attn_implementation="sdpa"'
            )

    def allocate(self, slots: int, length: int) -> None:
        self.length = length
        config = self.model.config.get_text_config(decoder=True)
        heads = config.num_attention_heads
        self.cache = StaticCache(config=self.model.config, max_cache_len=length)
        self.cache.early_initialization(
            batch_size=1,
            num_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=self.model.dtype,
            device=self.model.device,
        )

    def prefill(self, tokens: Tensor, length: Tensor, slot: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        last = length - 1
        keep = {"logits_to_keep": last} if self._keeps_logits else {}
        # A causal mask hides the padding, which comes after the prompt.
        logits = self._logits(tokens, positions, positions, whole=False, **keep)
        return logits[:, 0] if keep else logits.index_select(1, last)[:, 0]

    def decode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        places = torch.arange(self.length, device=tokens.device)
        return self._logits(tokens, positions, places, whole=True)[:, 0]

    def _logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        keys: Tensor,
        *,
        whole: bool,
        **keep: Any,
    ) -> Tensor:
        """The logits (1, tokens, vocabulary); a query sees keys until its position."""
        dtype = self.model.dtype
        # Eager attention takes no booleans: this is added to its scores.
        mask = (positions[:, None] < keys).to(dtype) * torch.finfo(dtype).min
        output = self.model(
            input_ids=tokens,
            position_ids=positions[None],
            past_key_values=CallCache(self.cache, positions, whole=whole),
            attention_mask=mask[None, None],
            use_cache=True,
            **keep,
        )
        logits: Tensor = output.logits
        return logits


def _end_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """The tokens at which `generate` ends: none, one, or several."""
    generation: Any = model.generation_config
    tokens = generation.eos_token_id if generation is not None else None
    if tokens is None:
        return ()
    return (tokens,) if isinstance(tokens, int) else tuple(tokens)
