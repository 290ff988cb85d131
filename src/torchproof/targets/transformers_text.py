"""Serves a transformers model with a static cache, whose slots are filled separately.

transformers' own `StaticCache` has one length for all rows. Continuous batching needs a
position per row, so `SlotCache` writes into the tensors of a `StaticCache`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, StaticCache
from transformers.cache_utils import Cache, StaticLayer

from torchproof.records import UserError


class SlotCache(Cache):
    """The cache of one call: writes at (rows, positions) of the static tensors.

    If `whole`, attention sees the whole rows, otherwise only what the call computes.
    """

    def __init__(
        self, storage: StaticCache, rows: Tensor, positions: Tensor, *, whole: bool
    ) -> None:
        super().__init__(layers=storage.layers)
        self.rows, self.positions, self.whole = rows, positions, whole

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, Tensor]:
        layer: Any = self.layers[layer_idx]
        # (rows, heads, new tokens, head_dim) -> (rows, new tokens, heads, head_dim)
        for stored, new in (
            (layer.keys, key_states),
            (layer.values, value_states),
        ):
            stored.transpose(1, 2)[self.rows, self.positions] = new.transpose(1, 2)
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
        self.slots = self.length = 0
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
        self.slots, self.length = slots, length
        config = self.model.config.get_text_config(decoder=True)
        heads = config.num_attention_heads
        self.cache = StaticCache(config=self.model.config, max_cache_len=length)
        self.cache.early_initialization(
            batch_size=slots,
            num_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=self.model.dtype,
            device=self.model.device,
        )

    def prefill(self, tokens: Tensor, length: Tensor, slot: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        cache = SlotCache(self.cache, slot[:, None], positions, whole=False)
        # A causal mask hides the padding, which comes after the prompt.
        mask = self._mask(positions[0], positions[0])[None, None]
        last = length - 1
        keep = {"logits_to_keep": last} if self._keeps_logits else {}
        logits = self._logits(tokens, positions, cache, mask=mask, **keep)
        return logits[:, 0] if keep else logits.index_select(1, last)[:, 0]

    def decode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        rows = torch.arange(self.slots, device=tokens.device)[:, None]
        places = torch.arange(self.length, device=tokens.device)
        cache = SlotCache(self.cache, rows, positions[:, None], whole=True)
        # (slots, heads, one query, length)
        mask = self._mask(positions, places)[:, None, None]
        return self._logits(tokens, positions[:, None], cache, mask=mask)[:, 0]

    def _mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        """What to add to attention scores; eager attention takes no booleans."""
        hidden = queries[:, None] < keys[None]
        lowest = torch.finfo(self.model.dtype).min
        return hidden.to(self.model.dtype) * lowest

    def _logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Cache,
        *,
        mask: Tensor,
        **keep: Any,
    ) -> Tensor:
        """The logits (batch, sequence, vocabulary)."""
        output = self.model(
            input_ids=tokens,
            position_ids=positions,
            past_key_values=cache,
            attention_mask=mask,
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
