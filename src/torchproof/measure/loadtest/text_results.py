"""The results of a text model: times of tokens, tokens per second and cost."""

from __future__ import annotations

import math
from dataclasses import replace

from torchproof.measure.loadtest.dependence import cycle_starts
from torchproof.measure.loadtest.percentiles import percentiles
from torchproof.measure.loadtest.results import first_warm, metric_ms, starts_from
from torchproof.measure.loadtest.text_options import TextOptions
from torchproof.records import Generation, LoadResult, Requests


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
