"""Text models under load: tokens, lengths, flags and results, one request at a time."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_commands import torchproof
from torch import Tensor

from torchproof.measure.loadtest.results import result_of, with_capacity
from torchproof.measure.loadtest.served_strategy import named
from torchproof.measure.loadtest.tail import explain
from torchproof.measure.loadtest.text import (
    TextRequest,
    shape_of,
    text_request,
    with_lengths,
)
from torchproof.measure.loadtest.text_generator import TextGenerator, sample
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import (
    Frame,
    Generation,
    LoadResult,
    Percentile,
    RateTrial,
    Requests,
    Run,
    Stall,
    UserError,
)
from torchproof.records.load_options import LoadOptions, TextOptions
from torchproof.strategies import NotApplicable
from torchproof.targets import Loaded, TextModel, end_tokens, text_model
from torchproof.targets.workloads import gpt

OPTIONS = TextOptions(prompt_tokens=(1, 20), output_tokens=(1, 9), price=3.6)
SMALL = gpt.Size(layers=2, dim=32, heads=4, vocabulary=64)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    torch.compiler.reset()


# -- tokens ----------------------------------------------------------------------------


@dataclass
class Subject:
    """A text model, and the same model without a cache."""

    model: TextModel
    logits: Callable[[Tensor], Tensor]  # (1, sequence) -> (1, sequence, vocabulary)
    device: str = "cpu"


def _loaded(fn: Any, served: Any = None) -> Loaded:
    return Loaded(
        fn, [], before_call=None, place=Frame("x.py", 1, "make"), served=served
    )


def small_gpt(window: int | None = None, device: str = "cpu") -> Subject:
    torch.manual_seed(0)
    model = gpt.GPT(SMALL, window=window).eval().requires_grad_(False).to(device)
    return Subject(text_model(_loaded(model, gpt.served)), model, device)


def llama() -> Subject:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,  # large weights, so that tokens vary
    )
    model: Any = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    subject = text_model(_loaded(model))
    return Subject(subject, lambda tokens: model(tokens, use_cache=False).logits)


def generator_of(model: TextModel, temperature: float = 0.0) -> TextGenerator:
    shape = shape_of(OPTIONS, model.context)
    return TextGenerator(model, shape, temperature=temperature)


def drawn(seed: int, count: int, options: TextOptions = OPTIONS) -> Timetable:
    times = tuple(map(float, range(count)))
    return with_lengths(Timetable(times, (0,) * count, count), options, seed)


def requests_of(model: TextModel, seed: int) -> list[TextRequest]:
    table, vocabulary = drawn(seed, 12), model.vocabulary
    return [
        text_request(number, table, vocabulary=vocabulary, seed=seed)
        for number in range(len(table))
    ]


def generated(
    generator: TextGenerator, seed: int, ends: frozenset[int] = frozenset()
) -> list[list[int]]:
    requests = requests_of(generator.model, seed)
    return [generator.generate(request, end_tokens=ends) for request in requests]


@torch.no_grad()
def expected(subject: Subject, seed: int) -> list[list[int]]:
    """Greedy tokens, each from a forward of everything before it."""
    answers = []
    for request in requests_of(subject.model, seed):
        tokens: list[int] = request.prompt.tolist()
        for _ in request.chances:
            before = torch.tensor([tokens], device=subject.device)
            tokens.append(int(subject.logits(before)[0, -1].argmax()))
        answers.append(tokens[len(request.prompt) :])
    # Tokens that repeat would not show a wrong position.
    assert len({token for tokens in answers for token in tokens}) > 12
    return answers


@pytest.mark.parametrize(
    "make",
    [small_gpt, functools.partial(small_gpt, 5), llama],
    ids=["gpt", "window", "llama"],
)
def test_tokens_are_those_of_the_model_without_a_cache(
    make: Callable[[], Subject],
) -> None:
    subject = make()
    assert generated(generator_of(subject.model), 1) == expected(subject, 1)


@pytest.mark.parametrize(
    "name", ["full:fullgraph", pytest.param("core:decode", marks=pytest.mark.slow)]
)
def test_compiled_tokens_are_those_of_the_model_without_a_cache(name: str) -> None:
    subject = small_gpt()
    generator = generator_of(subject.model)
    generator.compile(named(name, {"backend": "eager"}))
    generator.warm_up()
    assert generated(generator, 7) == expected(subject, 7)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["full:reduce-overhead", "eager+graph", "full+graph", "graph:nowait"]
)
def test_recorded_tokens_are_those_of_the_model_without_a_cache(name: str) -> None:
    subject = small_gpt(device="cuda")
    generator = generator_of(subject.model)
    generator.compile(named(name))
    for seed in (7, 8):  # the second time, the graphs are replayed
        assert generated(generator, seed) == expected(subject, seed)


def test_an_answer_ends_with_an_end_token_of_the_model() -> None:
    subject = llama()
    whole = expected(subject, 3)
    end = max(whole, key=len)[2]
    model: Any = subject.model
    model.model.generation_config.eos_token_id = [end, 99]
    ended = text_model(_loaded(model.model))
    assert end in end_tokens(ended)
    answers = generated(generator_of(ended), 3, end_tokens(ended))
    for answer, tokens in zip(answers, whole, strict=True):
        until = tokens.index(end) + 1 if end in tokens else len(tokens)
        assert answer == tokens[:until]
    plain: Any = small_gpt().model
    assert end_tokens(plain) == frozenset()
    plain.end_tokens = "</s>"
    with pytest.raises(UserError):
        end_tokens(plain)


def test_each_token_is_sampled_with_its_probability() -> None:
    logits = torch.tensor([[0.0, 1.0, -2.0, 3.0]])
    temperature, draws = 1.5, 20_000
    chances = (torch.arange(draws) + 0.5) / draws
    tokens = sample(logits.expand(draws, -1), chances, temperature)
    shares = torch.bincount(tokens, minlength=4) / draws
    assert torch.allclose(
        shares, torch.softmax(logits[0] / temperature, -1), atol=2 / draws
    )
    ends = sample(torch.tensor([[-30.0, 0.0, -30.0]] * 2), torch.tensor([0.0, 1.0]), 1)
    assert int(ends.max()) < 3
    model = small_gpt().model
    first, again, greedy = (
        generated(generator_of(model, each), 3) for each in (0.8, 0.8, 0.0)
    )
    assert first == again != greedy


@pytest.mark.parametrize("name", ["eager+graph", "core+graph:decode", "pack:."])
def test_strategies_that_cannot_serve_text_are_not_applicable(name: str) -> None:
    with pytest.raises(NotApplicable):
        generator_of(small_gpt().model).compile(named(name))


def test_models_that_cannot_be_served_are_refused() -> None:
    import transformers

    config = transformers.MistralConfig(
        num_hidden_layers=1,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        sliding_window=8,
    )
    mistral: Any = transformers.MistralForCausalLM
    for model in (torch.nn.Linear(2, 2), mistral(config)):
        with pytest.raises(UserError):
            text_model(_loaded(model))


# -- lengths and options ---------------------------------------------------------------


def test_lengths_are_drawn_from_the_whole_ranges_and_padded() -> None:
    table, shape = drawn(1, 2000), shape_of(OPTIONS)
    assert {*table.prompt_tokens} == {*range(1, 21)}
    assert {*table.output_tokens} == {*range(1, 10)}
    assert {*table.call} == {*range(len(shape.prompt_sizes))}
    pairs = zip(table.call, table.prompt_tokens, strict=True)
    assert all(tokens <= shape.prompt_sizes[call] for call, tokens in pairs)
    assert drawn(1, 50).until(4.0) == replace(drawn(1, 5), length_s=4.0)
    assert drawn(2, 5) != drawn(1, 5)


def test_a_prompt_depends_on_its_number_and_seed_alone() -> None:
    table = replace(drawn(1, 9), prompt_tokens=(20,) * 9)
    drawn_at = ((4, 1), (4, 1), (5, 1), (4, 2))
    first, again, *others = (
        text_request(number, table, vocabulary=50, seed=seed).prompt.tolist()
        for number, seed in drawn_at
    )
    assert first == again and first not in others and others[0] != others[1]
    assert len(first) == 20 and max(first) < 50


@pytest.mark.parametrize(
    ("prompts", "outputs", "context", "sizes", "length"),
    [
        ((1, 10), 10, None, (16,), 64),
        ((16, 64), 16, None, (16, 32, 64), 128),
        ((17, 64), 16, None, (32, 64), 128),
        ((1, 100), 10, 120, (16, 32, 64, 120), 120),
        ((1, 16384), 16, None, tuple(128 << n for n in range(8)), 16448),
    ],
)
def test_prompts_are_padded_to_a_few_sizes(
    prompts: tuple[int, int],
    outputs: int,
    context: int | None,
    sizes: tuple[int, ...],
    length: int,
) -> None:
    options = TextOptions(prompt_tokens=prompts, output_tokens=(1, outputs))
    shape = shape_of(options, context)
    assert (shape.prompt_sizes, shape.length) == (sizes, length)
    with pytest.raises(UserError):
        shape_of(options, prompts[1] + outputs - 1)


# -- the command -----------------------------------------------------------------------

TARGETS = """
import torch

class Counter:
    '''Its cache holds the last token, and the next one is one more.'''
    vocabulary, context = 100, 64

    def allocate(self, slots, length):
        self.last = torch.zeros(slots, dtype=torch.int64)

    def prefill(self, tokens, length, slot):
        self.last[slot] = tokens[0, length - 1]
        return self.logits(self.last[slot])

    def decode(self, tokens, positions):
        self.last[:] = tokens[:, 0]
        return self.logits(self.last)

    def logits(self, tokens):
        return torch.nn.functional.one_hot((tokens + 1) % 100, 100).float()

class Failing(Counter):
    def decode(self, tokens, positions):
        raise RuntimeError("no memory")

def make():
    return Counter()

def failing():
    return Failing()
"""


def test_text_is_generated_and_reported(tmp_path: Path) -> None:
    """Of 33 requests that arrive at once, two find the queue full."""
    (tmp_path / "text.py").write_text(TARGETS)
    times = [0.0] * 33 + [1 + 0.02 * number for number in range(29)]
    (tmp_path / "times").write_text("\n".join(map(str, times)))
    load = ["--arrivals", "times", "--queue-limit", "30", "--strategies", "eager"]
    text = ["--prompt-tokens", "1-30", "--output-tokens", "2-6", "--price", "2"]
    flags = [*load, *text, "--temperature", "0.5", "--slo", "first_token:p50=20s"]
    command = ("loadtest", "text.py:make", *flags, "-q", "--format", "json")
    done = torchproof(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    test = Run.from_json(json.loads(done.stdout)).load_test
    assert test is not None and test.text is not None
    assert (test.workers, test.text.prompt_tokens) == (1, (1, 30))
    assert len(test.calls) == 2  # prompts are padded to 16 or 32 tokens
    (result,) = test.results
    assert (result.answered, result.verdict) == (60, "met")
    requests, generation = result.requests, result.generation
    assert requests.rejected == (31, 32)
    assert {*requests.output_tokens} == {*range(2, 7), None}
    rows = zip(requests.begin_s, requests.first_token_s, requests.end_s, strict=True)
    spans = [row for row in rows if row[0] is not None]
    assert all(begin < first < end for begin, first, end in spans)  # type: ignore[operator]
    assert generation is not None and generation.currency_per_hour == 2
    assert generation.output_tokens == sum(n or 0 for n in requests.output_tokens)


def test_a_decode_that_always_fails_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / "text.py").write_text(TARGETS)
    load = ("--rate", "300", "--requests", "9", "-q", "--strategies", "eager")
    lengths = ("--prompt-tokens", "4", "--output-tokens", "3")
    command = ("loadtest", "text.py:failing", *load, *lengths)
    done = torchproof(*command, cwd=tmp_path)
    assert done.returncode == 2 and "no memory" in done.stderr


# -- results ---------------------------------------------------------------------------


def answered(count: int, *, tokens: int = 11, served: int | None = None) -> Requests:
    """A request a second: 200 ms to the first token, 30 ms for each further one.

    All after the first `served` are rejected.
    """
    arrivals = tuple(map(float, range(count)))
    taken = count if served is None else served

    def times(seconds: float) -> tuple[float | None, ...]:
        return tuple(at + seconds if at < taken else None for at in arrivals)

    return Requests(
        arrival_s=arrivals,
        begin_s=times(0.1),
        end_s=times(0.2 + 0.03 * (tokens - 1)),
        call=(0,) * count,
        first_token_s=times(0.2),
        prompt_tokens=(5,) * count,
        output_tokens=tuple(tokens if at < taken else None for at in arrivals),
        rejected=tuple(range(taken, count)),
    )


def generation_of(requests: Requests, cold: bool = False) -> Generation:
    options, length_s = LoadOptions(rate=1, cold=cold, text=OPTIONS), 10.0
    generation = result_of("eager", requests, length_s, options).generation
    assert generation is not None
    return generation


def test_times_are_from_the_arrival_and_between_tokens() -> None:
    generation = generation_of(answered(10))
    assert generation.first_token[0].value_ms == pytest.approx(200)
    assert generation.per_token[0].value_ms == pytest.approx(30)
    assert generation.first_token[2].value_ms is None  # a p99 needs 459 requests
    assert (generation.output_tokens, generation.prompt_tokens) == (110, 50)
    assert generation.tokens_per_s == pytest.approx(110 / 9.5)
    # 3.6 per hour are 0.001 per second.
    assert generation.cost_per_million == pytest.approx(0.001 / (110 / 9.5) * 1e6)
    one = generation_of(answered(10, tokens=1))
    assert one.per_token[0].value_ms is None


def test_cold_failed_and_rejected_requests_are_no_answers() -> None:
    requests = answered(10)
    cold = replace(requests, end_s=(1.5, *requests.end_s[1:]))
    assert generation_of(cold, cold=True).tokens_per_s == pytest.approx(88 / 7.5)
    waiting = replace(requests, begin_s=(*requests.begin_s[:9], None))
    never_warm = generation_of(replace(waiting, end_s=(9.5, *[None] * 9)), cold=True)
    assert never_warm.tokens_per_s is None and never_warm.cost_per_million is None
    failed = generation_of(replace(requests, failed=(9,)))
    assert failed.tokens_per_s == pytest.approx(99 / 8.5)
    rejected = generation_of(answered(10, served=4))
    assert rejected.first_token[0].value_ms is None and rejected.prompt_tokens == 20


def test_the_capacity_is_that_of_the_highest_rate_that_met_the_objective() -> None:
    def trial(rate: float, tokens: float) -> RateTrial:
        return RateTrial(
            rate, 9, "met", percentile=Percentile(99.0), tokens_per_s=tokens
        )

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


def test_a_long_answer_is_not_slow_and_a_stalled_one_is() -> None:
    counts = [5 if number % 2 else 40 for number in range(60)]
    ends = [n + 0.2 + 0.01 * (count - 1) for n, count in enumerate(counts)]
    ends[30] += 0.3
    plain = answered(60)
    requests = replace(
        plain,
        begin_s=plain.arrival_s,
        end_s=tuple(ends),
        output_tokens=tuple(counts),
    )
    stall = Stall("compile", 30.25, 30.55, "recompile", request=30, thread="w")
    tail = explain(requests, [stall], 0).warm
    assert tail is not None and tail.slow == (30,) and tail.threshold_ms is None
    assert tail.causes[0].share == pytest.approx(1.0, abs=0.05)
