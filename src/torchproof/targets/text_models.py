"""Text models as a server runs them: a prompt, then one token at a time.

Takes a loaded target, returns a `TextModel`: the target's own, or a transformers model
with a static cache.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Protocol

from torchproof.records import UserError
from torchproof.targets.target import Loaded, is_text_model


class TextModel(Protocol):
    """A model with a key-value cache for one sequence at a time.

    All arguments are int64 tensors on the device of the model, so that compiled code
    has one version for every length and position. Results are logits.
    """

    vocabulary: int
    context: int | None  # the longest sequence, of prompt and output; None: any

    def allocate(self, slots: int, length: int) -> None:
        """Creates the cache, for a sequence of up to `length` tokens.

        Called once; `slots` is 1, the rows of the cache.
        """

    def prefill(self, tokens: Any, length: Any, slot: Any) -> Any:
        """Starts a sequence with a prompt: (1, padded), (1,), (1,) -> (1, vocabulary).

        `tokens` has padding on the right; `length` counts the tokens of the prompt. The
        result predicts the token after it. The sequence before is lost; `slot` is 0.
        """

    def decode(self, tokens: Any, positions: Any) -> Any:
        """Adds a token at its position: (1, 1), (1,) -> (1, vocabulary)."""


def text_model(loaded: Loaded) -> TextModel:
    """The served form of a target; raises a `UserError` if it has none."""
    if loaded.served is not None:
        model: TextModel = loaded.served(loaded.fn)
        return model
    if is_text_model(loaded.fn):
        return loaded.fn  # type: ignore[return-value]
    if _generates(loaded.fn):
        from torchproof.targets.transformers_text import TransformersText

        return TransformersText(loaded.fn)
    raise UserError(
        f"{type(loaded.fn).__name__} does not generate text: return an object with"
        " allocate, prefill and decode, or a transformers model with generate"
    )


def end_tokens(model: TextModel) -> frozenset[int]:
    """The tokens that end an answer: `end_tokens` of the model, if it has that."""
    tokens = getattr(model, "end_tokens", ())
    try:
        return frozenset(int(token) for token in tokens)
    except (TypeError, ValueError):
        raise UserError(
            f"end_tokens of {type(model).__name__} is {tokens!r}: give the numbers of"
            " the tokens that end an answer, such as (2,)"
        ) from None


def _generates(fn: Any) -> bool:
    """Whether this is a transformers model that generates text."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(fn, transformers.PreTrainedModel):
        return False
    takes_tokens = "input_ids" in inspect.signature(fn.forward).parameters
    return bool(fn.can_generate()) and takes_tokens
