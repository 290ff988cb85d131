"""Times of tokens, tokens per second, capacity and cost, from requests alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchproof.measure.loadtest.text_options import TextOptions
from torchproof.measure.loadtest.text_results import with_capacity, with_generation
from torchproof.records import (
    ColdPhase,
    Generation,
    LoadResult,
    Percentile,
    RateTrial,
    Requests,
)

OPTIONS = TextOptions(price=3.6, slots=2)


def answered(count: int, *, tokens: int = 11) -> Requests:
    """A request a second: 200 ms to the first token, 30 ms for each further one."""
    arrivals = tuple(map(float, range(count)))
    ends = tuple(each + 0.2 + 0.03 * (tokens - 1) for each in arrivals)
    return Requests(
        arrival_s=arrivals,
        begin_s=tuple(each + 0.1 for each in arrivals),
        end_s=ends,
        call=(0,) * count,
        worker=(0,) * count,
        batch=(1,) * count,
        first_token_s=tuple(each + 0.2 for each in arrivals),
        prompt_tokens=(5,) * count,
        output_tokens=(tokens,) * count,
    )


def generation_of(requests: Requests, cold: ColdPhase | None = None) -> Generation:
    result = LoadResult("eager", requests=requests, cold=cold)
    generation = with_generation(result, OPTIONS).generation
    assert generation is not None
    return generation


def test_times_are_from_the_arrival_and_between_tokens() -> None:
    generation = generation_of(answered(10))
    assert generation.first_token[0].value_ms == pytest.approx(200)
    assert generation.per_token[0].value_ms == pytest.approx(30)
    assert generation.first_token[2].value_ms is None  # a p99 needs 459 requests
    assert generation.first_token[2].needed == 459
    assert (generation.output_tokens, generation.prompt_tokens) == (110, 50)


def test_tokens_per_second_and_cost_agree() -> None:
    generation = generation_of(answered(10))
    assert generation.tokens_per_s == pytest.approx(110 / 9.5)
    # 3.6 per hour are 0.001 per second.
    assert generation.cost_per_million == pytest.approx(0.001 / (110 / 9.5) * 1e6)
    assert generation.currency_per_hour == 3.6


def test_the_cold_phase_does_not_count() -> None:
    requests = answered(10)
    slow = replace(requests, end_s=(8.0, *requests.end_s[1:]))
    generation = generation_of(slow, ColdPhase(end_s=1.5, requests=2))
    assert generation.tokens_per_s == pytest.approx(88 / 7.5)


def test_a_cold_phase_that_did_not_end_gives_no_speed() -> None:
    generation = generation_of(answered(10), ColdPhase())
    assert generation.tokens_per_s is None
    assert generation.cost_per_million is None
    assert {each.value_ms for each in generation.first_token} == {None}


def test_one_token_has_no_time_per_token() -> None:
    generation = generation_of(answered(10, tokens=1))
    assert generation.per_token[0].value_ms is None
    assert generation.first_token[0].value_ms == pytest.approx(200)


def test_tokens_of_failed_requests_are_no_answers() -> None:
    generation = generation_of(replace(answered(10), failed=(9,)))
    assert generation.tokens_per_s == pytest.approx(99 / 8.5)


def test_rejected_requests_make_the_first_token_late() -> None:
    requests = answered(10)
    gone: tuple[None, ...] = (None,) * 6
    generation = generation_of(
        replace(
            requests,
            begin_s=(*requests.begin_s[:4], *gone),
            end_s=(*requests.end_s[:4], *gone),
            first_token_s=(*requests.first_token_s[:4], *gone),
            output_tokens=(*requests.output_tokens[:4], *gone),
            rejected=(4, 5, 6, 7, 8, 9),
        )
    )
    assert generation.first_token[0].value_ms is None
    assert generation.prompt_tokens == 20


def test_a_test_without_tokens_has_no_generation() -> None:
    assert with_generation(LoadResult("eager"), OPTIONS).generation is None


def test_the_capacity_is_that_of_the_highest_rate_that_met_the_objective() -> None:
    def trial(rate: float, tokens: float) -> RateTrial:
        verdict = Percentile(99.0)
        return RateTrial(rate, 9, "met", percentile=verdict, tokens_per_s=tokens)

    result = LoadResult(
        "eager",
        generation=Generation(currency_per_hour=3.6, cost_per_million=50.0),
        trials=(trial(4.0, 40.0), trial(8.0, 80.0), trial(16.0, 90.0)),
        highest_rate=8.0,
    )
    found = with_capacity(result).generation
    assert found and found.capacity_tokens_per_s == 80.0
    assert found.cost_per_million == pytest.approx(0.001 / 80 * 1e6)
    none = with_capacity(replace(result, highest_rate=None)).generation
    assert none and none.capacity_tokens_per_s is None
    assert none.cost_per_million == 50.0
