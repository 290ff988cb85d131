"""The lengths, prompts and padded sizes of requests to a text model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchproof.measure.loadtest.text_options import TextOptions, read_range
from torchproof.measure.loadtest.text_requests import (
    shape_of,
    text_request,
    with_lengths,
)
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import UserError

OPTIONS = TextOptions(prompt_tokens=(3, 40), output_tokens=(1, 9))


def drawn(seed: int, count: int) -> Timetable:
    times = tuple(map(float, range(count)))
    return with_lengths(Timetable(times, (0,) * count, count), OPTIONS, seed)


def test_lengths_are_drawn_from_the_whole_ranges() -> None:
    table = drawn(1, 5000)
    assert {*table.prompt_tokens} == {*range(3, 41)}
    assert {*table.output_tokens} == {*range(1, 10)}


def test_the_call_of_a_request_is_the_size_of_its_prompt() -> None:
    table, shape = drawn(1, 300), shape_of(OPTIONS)
    assert {*table.call} == {*range(len(shape.prompt_sizes))}
    for call, tokens in zip(table.call, table.prompt_tokens, strict=True):
        assert tokens <= shape.prompt_sizes[call]


def test_a_longer_draw_begins_with_the_shorter() -> None:
    short, long = drawn(1, 5), drawn(1, 50)
    assert long.until(4.0) == replace(short, length_s=4.0)
    assert drawn(2, 5) != short


def test_a_prompt_depends_on_its_number_and_seed_alone() -> None:
    table = drawn(1, 9)
    first, again, other, seeded = (
        text_request(number, table, vocabulary=50, seed=seed)
        for number, seed in ((4, 1), (4, 1), (5, 1), (4, 2))
    )
    assert first.prompt.tolist() == again.prompt.tolist()
    assert first.chances().tolist() == again.chances().tolist()
    assert first.prompt.tolist() != other.prompt.tolist()[: len(first.prompt)]
    assert first.prompt.tolist() != seeded.prompt.tolist()
    assert len(first.prompt) == table.prompt_tokens[4]
    assert max(first.prompt) < 50
    assert len(first.chances()) == table.output_tokens[4]


@pytest.mark.parametrize(
    ("prompts", "outputs", "context", "sizes", "length"),
    [
        ((1, 10), 10, None, (16,), 64),
        ((16, 64), 16, None, (16, 32, 64), 128),
        ((17, 64), 16, None, (32, 64), 128),
        ((100, 100), 100, None, (128,), 256),
        ((1, 100), 10, 120, (16, 32, 64, 120), 120),
        (
            (1, 16384),
            16,
            None,
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384),
            16448,
        ),
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
    for prompt in {*prompts, sum(prompts) // 2}:
        index = shape.size_of(prompt)
        assert prompt <= sizes[index]
        assert index == 0 or sizes[index - 1] < prompt


def test_a_request_must_fit_into_the_context() -> None:
    options = TextOptions(prompt_tokens=(1, 100), output_tokens=(1, 30))
    assert shape_of(options, 130).length == 130
    with pytest.raises(UserError):
        shape_of(options, 129)


def test_ranges() -> None:
    assert read_range("16-128", "--prompt-tokens") == (16, 128)
    assert read_range(" 7 ", "--prompt-tokens") == (7, 7)
    for text in ("", "a", "0-4", "5-4", "1-", "-3", "1-2-3", "1.5", "1-9999999"):
        with pytest.raises(UserError) as error:
            read_range(text, "--prompt-tokens")
        assert "--prompt-tokens" in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("inf")},
        {"slots": 0},
        {"slots": 5000},
        {"queue_limit": -1},
        {"price": 0.0},
        {"prompt_tokens": (4, 2)},
        {"output_tokens": (0, 2)},
    ],
)
def test_wrong_options_name_their_flag(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError) as error:
        TextOptions(**wrong)  # type: ignore[arg-type]
    flag = next(iter(wrong)).replace("_", "-")
    assert str(error.value).startswith(f"--{flag}")
