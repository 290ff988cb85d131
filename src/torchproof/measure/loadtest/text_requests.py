"""The requests to a text model: how long prompts and outputs are, and their tokens.

Lengths are drawn from ranges, with streams of the seed of their own. So every strategy
answers the same prompts, and another rate does not change them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchproof.records import Record, UserError

# Streams of the seed; the timetable uses those below.
_LENGTHS, _TOKENS, _CHANCE = 2, 3, 4
# Prompts are padded to one of a few sizes: compiled code and CUDA graphs exist per
# size, and torch stops compiling after 8 versions.
_MOST_SIZES = 8
_SMALLEST_SIZE = 16
_ALIGNMENT = 64  # of the cache: attention kernels need masks of aligned length
MOST_SLOTS = 1024
LONGEST = 1_000_000
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")


@dataclass(frozen=True)
class TextOptions(Record):
    """How text is requested and served.

    A `temperature` of 0 takes the most likely token. A request that arrives while
    `queue_limit` others wait is rejected. `price` is per hour, in any currency.
    """

    prompt_tokens: tuple[int, ...] = (16, 128)  # from, to
    output_tokens: tuple[int, ...] = (16, 64)
    temperature: float = 0.0
    slots: int = 8
    queue_limit: int | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        _check_range(self.prompt_tokens, "--prompt-tokens")
        _check_range(self.output_tokens, "--output-tokens")
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"--temperature {self.temperature:g}: expected 0 or more")
        if not 0 < self.slots <= MOST_SLOTS:
            raise UserError(f"--slots {self.slots}: expected 1 to {MOST_SLOTS}")
        if self.queue_limit is not None and self.queue_limit < 0:
            raise UserError(f"--queue-limit {self.queue_limit}: expected 0 or more")
        if self.price is not None and not 0 < self.price < math.inf:
            raise UserError(
                f"--price {self.price:g}: expected a price per hour above 0"
            )


def read_range(text: str, flag: str) -> tuple[int, int]:
    """Parses `16-128`, or `64` for one length."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UserError(f"{flag} {text!r}: expected a range of lengths such as 16-128")
    limits = int(match[1]), int(match[2] or match[1])
    _check_range(limits, flag)
    return limits


def _check_range(limits: Sequence[int], flag: str) -> None:
    low, high = limits
    if not 0 < low <= high <= LONGEST:
        raise UserError(
            f"{flag} {low}-{high}: expected two numbers of tokens from 1 to {LONGEST},"
            " the smaller first"
        )


@dataclass(frozen=True)
class TextLengths(Record):
    """The tokens of each request, in order of arrival."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt)


def draw_lengths(options: TextOptions, seed: int, count: int) -> TextLengths:
    """Draws lengths evenly from the ranges; a longer draw begins with the shorter."""
    generator = np.random.default_rng([seed, _LENGTHS])
    uniform = generator.random((count, 2))
    prompt, output = (
        (low + np.floor(uniform[:, column] * (high - low + 1))).astype(int).tolist()
        for column, (low, high) in enumerate(
            (options.prompt_tokens, options.output_tokens)
        )
    )
    return TextLengths(tuple(prompt), tuple(output))


@dataclass(frozen=True)
class TextShape:
    """The length of the cache, and the sizes to which prompts are padded."""

    length: int
    prompt_sizes: tuple[int, ...]

    def size_of(self, prompt_tokens: int) -> int:
        """The number of the smallest size that the prompt fits into."""
        return int(np.searchsorted(self.prompt_sizes, prompt_tokens))


def shape_of(
    prompt_tokens: tuple[int, int], tokens: int, context: int | None = None
) -> TextShape:
    """Powers of two that fit all prompts, and a cache for `tokens` per request.

    `prompt_tokens` are those of the shortest prompt and of the longest.
    """
    if context is not None and tokens > context:
        raise UserError(
            f"a request may have {tokens} tokens, but the model takes {context}: choose"
            " shorter --prompt-tokens or --output-tokens"
        )
    shortest, longest = prompt_tokens
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
        """A number from 0 to 1 for each token, which decides how it is sampled.

        They depend on the request alone, not on what is served beside it.
        """
        generator = np.random.default_rng([self.seed, _CHANCE, self.number])
        return generator.random(self.output_tokens)


def text_request(
    number: int, lengths: TextLengths, *, vocabulary: int, seed: int
) -> TextRequest:
    """The request with random tokens as prompt."""
    generator = np.random.default_rng([seed, _TOKENS, number])
    prompt = generator.integers(vocabulary, size=lengths.prompt[number])
    return TextRequest(number, prompt, lengths.output[number], seed)
