"""Requests for text: how long prompts and outputs are, their tokens, and the results.

Lengths are drawn from ranges, with streams of the seed of their own. So every strategy
answers the same prompts, and another rate does not change them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchproof.measure.loadtest.options import TextOptions
from torchproof.measure.loadtest.percentiles import cycle_starts, percentiles
from torchproof.measure.loadtest.results import first_warm, metric_ms, starts_from
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import Generation, LoadResult, Requests, UserError

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


# -- results ---------------------------------------------------------------------------


def with_generation(result: LoadResult, options: TextOptions) -> LoadResult:
    """Adds the times of tokens, of the requests after the cold phase.

    The counts of tokens are those of all requests.
    """
    requests = result.requests
    if not requests.first_token_s:  # not one token was made
        return result
    first = first_warm(result.cold, requests)
    starts = starts_from(first, cycle_starts(requests))
    tokens_per_s = _tokens_per_s(requests, first)
    generation = Generation(
        first_token=percentiles(metric_ms(requests, "first_token")[first:], starts),
        per_token=percentiles(_per_token_ms(requests, first)),
        output_tokens=sum(count or 0 for count in requests.output_tokens),
        prompt_tokens=sum(
            count
            for count, end in zip(requests.prompt_tokens, requests.end_s, strict=True)
            if end is not None
        ),
        tokens_per_s=tokens_per_s,
        cost_per_million=_cost(options.price, tokens_per_s),
        currency_per_hour=options.price,
    )
    return replace(result, generation=generation)


def with_capacity(result: LoadResult) -> LoadResult:
    """Adds the tokens per second of the highest rate that meets the objective.

    The cost is then that of tokens at this rate.
    """
    generation = result.generation
    trials = [t for t in result.trials if t.rate == result.highest_rate]
    if generation is None or not trials:
        return result
    capacity = trials[-1].tokens_per_s
    generation = replace(
        generation,
        capacity_tokens_per_s=capacity,
        cost_per_million=_cost(generation.currency_per_hour, capacity),
    )
    return replace(result, generation=generation)


def _per_token_ms(requests: Requests, first: int) -> list[float]:
    """The time per token after the first, of requests that have more than one."""
    values = metric_ms(requests, "token")[first:]
    pairs = zip(values, requests.output_tokens[first:], strict=True)
    return [value for value, count in pairs if math.isfinite(value) and count != 1]


def _tokens_per_s(requests: Requests, first: int) -> float | None:
    """The output tokens of answers, from the first arrival to the last token."""
    failed = {*requests.failed}
    tokens, last_s = 0, 0.0
    for number in range(first, len(requests.arrival_s)):
        count, end = requests.output_tokens[number], requests.end_s[number]
        if count is not None and end is not None and number not in failed:
            tokens, last_s = tokens + count, max(last_s, end)
    if not tokens:
        return None
    return tokens / (last_s - requests.arrival_s[first])


def _cost(price_per_hour: float | None, tokens_per_s: float | None) -> float | None:
    """The cost of a million output tokens."""
    if price_per_hour is None or not tokens_per_s:
        return None
    return price_per_hour / 3600 / tokens_per_s * 1e6
