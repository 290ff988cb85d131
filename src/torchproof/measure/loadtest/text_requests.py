"""The requests to a text model: how long prompts and outputs are, and their tokens.

Lengths are drawn from ranges, with streams of the seed of their own. So every strategy
answers the same prompts, and another rate does not change them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchproof.measure.loadtest.text_options import TextOptions
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import UserError

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
    return dataclasses.replace(
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
    """One request: its prompt, and how many tokens to answer with."""

    number: int
    prompt: Any  # int64 array
    output_tokens: int
    seed: int

    def chances(self) -> Any:
        """A number from 0 to 1 for each token, which decides how it is sampled."""
        generator = np.random.default_rng([self.seed, _CHANCE, self.number])
        return generator.random(self.output_tokens)


def text_request(
    number: int, timetable: Timetable, *, vocabulary: int, seed: int
) -> TextRequest:
    """The request with random tokens as prompt."""
    generator = np.random.default_rng([seed, _TOKENS, number])
    prompt = generator.integers(vocabulary, size=timetable.prompt_tokens[number])
    return TextRequest(number, prompt, timetable.output_tokens[number], seed)
