"""Requests for text: how long prompts and outputs are, and their tokens.

Lengths are drawn from ranges, with streams of the seed of their own. So every strategy
answers the same prompts, and another rate does not change them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import UserError
from torchproof.records.load_options import TextOptions

# Streams of the seed; the timetable uses those below.
_LENGTHS, _TOKENS, _CHANCE = 2, 3, 4
# Prompts are padded to one of a few sizes: compiled code and CUDA graphs exist per
# size, and torch stops compiling after 8 versions.
_MOST_SIZES = 8
_SMALLEST_SIZE = 16
_ALIGNMENT = 64  # of the cache: attention kernels need masks of aligned length


def with_lengths(timetable: Timetable, options: TextOptions, seed: int) -> Timetable:
    """Adds lengths, drawn evenly from the ranges; a longer draw begins with a shorter.

    The kind of call of a request is then the size that its prompt is padded to.
    """
    generator = np.random.default_rng([seed, _LENGTHS])
    uniform = generator.random((len(timetable), 2))
    prompt, output = (
        (low + np.floor(uniform[:, column] * (high - low + 1))).astype(int).tolist()
        for column, (low, high) in enumerate(
            (options.prompt_tokens, options.output_tokens)
        )
    )
    # The context of the model may only change the largest size, not the number of it.
    shape = shape_of(options)
    return replace(
        timetable,
        call=tuple(shape.size_of(tokens) for tokens in prompt),
        prompt_tokens=tuple(prompt),
        output_tokens=tuple(output),
    )


@dataclass(frozen=True)
class TextShape:
    """The length of the cache, and the sizes to which prompts are padded."""

    length: int
    prompt_sizes: tuple[int, ...]

    def size_of(self, prompt_tokens: int) -> int:
        """The number of the smallest size that the prompt fits into."""
        return int(np.searchsorted(self.prompt_sizes, prompt_tokens))


def shape_of(options: TextOptions, context: int | None = None) -> TextShape:
    """Powers of two that fit all prompts, and a cache that fits every request."""
    shortest, longest = options.prompt_tokens
    tokens = longest + options.output_tokens[1]
    if context is not None and tokens > context:
        raise UserError(
            f"a request may have {tokens} tokens, but the model takes {context}: choose"
            " shorter --prompt-tokens or --output-tokens"
        )
    size = max(_SMALLEST_SIZE, 1 << (longest - 1).bit_length())
    length = -(-max(tokens, size) // _ALIGNMENT) * _ALIGNMENT
    length = length if context is None else min(length, context)
    sizes = [min(size, length)]
    while len(sizes) < _MOST_SIZES and size // 2 >= max(_SMALLEST_SIZE, shortest):
        size //= 2
        sizes.append(size)
    return TextShape(length, tuple(sorted(sizes)))


@dataclass(frozen=True)
class TextRequest:
    """One request: its prompt, and a number from 0 to 1 for each token of its answer.

    The number decides how the token is sampled.
    """

    prompt: Any  # int64 array
    chances: Any  # float64 array


def text_request(
    number: int, timetable: Timetable, *, vocabulary: int, seed: int
) -> TextRequest:
    """The request with random tokens as prompt."""
    tokens, chances = (
        np.random.default_rng([seed, stream, number]) for stream in (_TOKENS, _CHANCE)
    )
    return TextRequest(
        tokens.integers(vocabulary, size=timetable.prompt_tokens[number]),
        chances.random(timetable.output_tokens[number]),
    )
