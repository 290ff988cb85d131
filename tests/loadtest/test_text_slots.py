"""Tokens of text models in slots, against generation one by one without a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchproof.measure.loadtest.generation import TextSource, serve_generation
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.served_strategy import named
from torchproof.measure.loadtest.text_options import TextOptions
from torchproof.measure.loadtest.text_requests import (
    shape_of,
    text_request,
    with_lengths,
)
from torchproof.measure.loadtest.text_slots import TextSlots, sample
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import Frame, UserError
from torchproof.strategies import NotApplicable
from torchproof.targets import Loaded, TextModel, end_tokens, text_model
from torchproof.targets.workloads import gpt

PROMPTS, OUTPUTS = (1, 20), (1, 9)
SMALL = gpt.Size(layers=2, dim=32, heads=4, vocabulary=64)
Logits = Callable[[Tensor], Tensor]


@dataclass
class Subject:
    """A text model, and the same model without a cache."""

    model: TextModel
    logits: Logits  # (1, sequence) -> (1, sequence, vocabulary)
    device: str = "cpu"

    def one_by_one(self, prompt: Any, count: int) -> list[int]:
        """Greedy tokens, each from a forward of everything before it."""
        tokens: list[int] = prompt.tolist()
        with torch.no_grad():
            for _ in range(count):
                before = torch.tensor([tokens], device=self.device)
                tokens.append(int(self.logits(before)[0, -1].argmax()))
        return tokens[len(prompt) :]


def _loaded(fn: Any, served: Any = None) -> Loaded:
    return Loaded(
        fn, [], before_call=None, place=Frame("x.py", 1, "make"), served=served
    )


def small_gpt(window: int | None = None, device: str = "cpu") -> Subject:
    torch.manual_seed(0)
    model = gpt.GPT(SMALL, window=window).eval().requires_grad_(False).to(device)
    return Subject(text_model(_loaded(model, gpt.served)), model, device)


def _transformers(kind: Any, config: Any) -> Subject:
    model = kind(config).eval().requires_grad_(False)

    def logits(tokens: Tensor) -> Tensor:
        output: Tensor = model(tokens, use_cache=False).logits
        return output

    return Subject(text_model(_loaded(model)), logits)


def gpt2(**settings: Any) -> Subject:
    import transformers

    torch.manual_seed(0)
    small: dict[str, Any] = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 64}
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    # Large weights, so that tokens vary.
    config = transformers.GPT2Config(
        **small, **ends, n_positions=64, initializer_range=0.5, **settings
    )
    return _transformers(transformers.GPT2LMHeadModel, config)


def gpt2_eager_attention() -> Subject:
    return gpt2(attn_implementation="eager")


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
        initializer_range=0.3,
    )
    return _transformers(transformers.LlamaForCausalLM, config)


def windowed_gpt() -> Subject:
    return small_gpt(window=5)


SUBJECTS = [small_gpt, windowed_gpt, gpt2]
SUBJECTS += [
    pytest.param(m, marks=pytest.mark.slow) for m in (gpt2_eager_attention, llama)
]


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    torch.compiler.reset()


OPTIONS = TextOptions(prompt_tokens=PROMPTS, output_tokens=OUTPUTS)


def at_once(count: int, seed: int) -> Timetable:
    """Requests that all arrive at the start."""
    table = Timetable((0.0,) * count, (0,) * count, 100.0)
    return with_lengths(table, OPTIONS, seed)


def generated(
    slots: TextSlots,
    table: Timetable,
    path: Path,
    *,
    seed: int,
    ends: frozenset[int] = frozenset(),
) -> dict[int, list[int]]:
    """The tokens of all requests."""
    tokens: dict[int, list[int]] = {}
    source = TextSource(
        lambda number: text_request(
            number, table, vocabulary=slots.model.vocabulary, seed=seed
        ),
        receive=tokens.__setitem__,
        end_tokens=ends,
    )
    log = RequestLog(path / f"log-{seed}-{slots.count}", len(table), create=True)
    served = serve_generation(slots, source, table, log)
    assert not served.errors
    return tokens


def slots_of(model: TextModel, count: int, temperature: float = 0.0) -> TextSlots:
    shape = shape_of(OPTIONS, model.context)
    return TextSlots(model, shape, slots=count, temperature=temperature)


def assert_as_one_by_one(
    subject: Subject, slots: TextSlots, path: Path, *, seed: int, count: int = 12
) -> None:
    table = at_once(count, seed)
    answers = generated(slots, table, path, seed=seed)
    vocabulary = subject.model.vocabulary
    expected = {}
    for number in range(count):
        request = text_request(number, table, vocabulary=vocabulary, seed=seed)
        expected[number] = subject.one_by_one(request.prompt, request.output_tokens)
    assert answers == expected
    # Tokens that repeat would not show a wrong position.
    assert len({token for tokens in answers.values() for token in tokens}) > count


@pytest.mark.parametrize("make", SUBJECTS)
def test_tokens_in_slots_are_those_of_one_by_one(
    make: Callable[[], Subject], tmp_path: Path
) -> None:
    subject = make()
    for seed, count in enumerate((1, 3, 5)):
        slots = slots_of(subject.model, count)
        assert_as_one_by_one(subject, slots, tmp_path, seed=seed)


@pytest.mark.parametrize("several", [False, True])
def test_an_answer_of_transformers_ends_with_its_end_token(
    tmp_path: Path, several: bool
) -> None:
    subject, table = gpt2(), at_once(12, 3)
    requests = [
        text_request(number, table, vocabulary=64, seed=3) for number in range(12)
    ]
    whole = [subject.one_by_one(each.prompt, each.output_tokens) for each in requests]
    planted = max(whole, key=len)[2]
    model: Any = subject.model
    model.model.generation_config.eos_token_id = [planted, 99] if several else planted
    ended = text_model(_loaded(model.model))
    ends = end_tokens(ended)
    assert planted in ends
    answers = generated(slots_of(ended, 3), table, tmp_path, seed=3, ends=ends)
    for number, tokens in enumerate(whole):
        until = tokens.index(planted) + 1 if planted in tokens else len(tokens)
        assert answers[number] == tokens[:until]
    assert sum(map(len, answers.values())) < sum(map(len, whole))


def test_end_tokens_are_optional_and_numbers() -> None:
    model: Any = small_gpt().model
    assert end_tokens(model) == frozenset()
    model.end_tokens = (2, 5)
    assert end_tokens(model) == {2, 5}
    model.end_tokens = "</s>"
    with pytest.raises(UserError):
        end_tokens(model)


def _variant(make: Callable[[], Subject], name: str) -> Any:
    return pytest.param(make, name, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (small_gpt, "full:fullgraph"),
        _variant(small_gpt, "regional"),
        _variant(small_gpt, "core:decode"),
        _variant(windowed_gpt, "full:fullgraph"),
        _variant(gpt2, "full:fullgraph"),
        _variant(llama, "full:fullgraph"),
        _variant(llama, "regional"),
    ],
)
def test_compiled_tokens_are_those_of_one_by_one(
    make: Callable[[], Subject], name: str, tmp_path: Path
) -> None:
    subject = make()
    slots = slots_of(subject.model, 3)
    slots.compile(named(name, {"backend": "eager"}))
    assert_as_one_by_one(subject, slots, tmp_path, seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "full:dynamic", "full:marks", "regional"])
def test_inductor_tokens_are_those_of_one_by_one(name: str, tmp_path: Path) -> None:
    subject = small_gpt()
    slots = slots_of(subject.model, 3)
    slots.compile(named(name))
    slots.warm_up()
    assert_as_one_by_one(subject, slots, tmp_path, seed=7)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "full:reduce-overhead",
        "eager+graph",
        "full+graph",
        "regional+graph",
        "graph:nowait",
    ],
)
def test_recorded_tokens_are_those_of_one_by_one(name: str, tmp_path: Path) -> None:
    subject = small_gpt(device="cuda")
    slots = slots_of(subject.model, 3)
    slots.compile(named(name))
    # The second time, the graphs are replayed.
    for seed in (7, 8):
        assert_as_one_by_one(subject, slots, tmp_path, seed=seed)


def test_sampled_tokens_do_not_depend_on_the_other_slots(tmp_path: Path) -> None:
    table = at_once(10, 3)
    alone, together, greedy = (
        generated(slots_of(small_gpt().model, *how), table, tmp_path, seed=3)
        for how in ((1, 0.8), (4, 0.8), (4, 0.0))
    )
    assert alone == together
    assert alone != greedy


def test_each_token_is_sampled_with_its_probability() -> None:
    logits = torch.tensor([[0.0, 1.0, -2.0, 3.0]])
    temperature, draws = 1.5, 20_000
    chances = (torch.arange(draws) + 0.5) / draws
    tokens = sample(logits.expand(draws, -1), chances, temperature)
    shares = torch.bincount(tokens, minlength=4) / draws
    expected = torch.softmax(logits[0] / temperature, -1)
    assert torch.allclose(shares, expected, atol=2 / draws)


def test_chances_at_the_ends_give_tokens_of_the_vocabulary() -> None:
    logits = torch.tensor([[-30.0, 0.0, 0.0, -30.0]]).expand(2, -1)
    tokens = sample(logits, torch.tensor([0.0, 1.0]), 1.0)
    assert int(tokens.max()) < 4


@pytest.mark.parametrize("name", ["eager+graph", "core+graph:decode"])
def test_graphs_are_not_applicable_on_the_cpu(name: str) -> None:
    with pytest.raises(NotApplicable):
        slots_of(small_gpt().model, 2).compile(named(name))


def test_a_pack_has_no_text_model(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable):
        slots_of(small_gpt().model, 2).compile(named(f"pack:{tmp_path}"))


def test_a_model_that_generates_nothing_is_refused() -> None:
    with pytest.raises(UserError):
        text_model(_loaded(torch.nn.Linear(2, 2)))


def test_a_model_with_sliding_windows_is_refused() -> None:
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
    model: Any = transformers.MistralForCausalLM
    with pytest.raises(UserError):
        text_model(_loaded(model(config)))
