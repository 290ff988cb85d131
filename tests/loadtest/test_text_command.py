"""`torchproof loadtest` of text models as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Done
from forked_commands import torchproof

from torchproof.measure.comparison.load_tests import assert_same_load
from torchproof.measure.loadtest.options import LoadOptions, read_objective
from torchproof.measure.loadtest.session import LoadPlan
from torchproof.measure.loadtest.text_options import TextOptions
from torchproof.records import LoadTest, Run, UserError
from torchproof.targets import parse

TARGETS = """
import torch


class Counter:
    '''Its cache holds the last token of each slot, and the next one is one more.'''

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


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=2, vocab_size=32)
    return LlamaForCausalLM(config).eval()


def linear():
    return torch.nn.Linear(2, 2), [(torch.ones(1, 2),)]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("text")
    (root / "text.py").write_text(TARGETS)
    return root


def loadtest(folder: Path, factory: str, *arguments: str) -> Done:
    line = ["loadtest", f"text.py:{factory}", "--strategies", "eager", "-q"]
    load = ["--rate", "300", "--requests", "60", "--format", "json"]
    return torchproof(*line, *load, *arguments, cwd=folder)


def test_text_is_generated_and_reported(folder: Path) -> None:
    ranges = ("--prompt-tokens", "1-30", "--output-tokens", "2-6")
    served = ("--slots", "3", "--temperature", "0.5", "--price", "2")
    done = loadtest(folder, "make", *ranges, *served, "--slo", "first_token:p50=20s")
    assert done.returncode == 0, done.stderr
    test = Run.from_json(json.loads(done.stdout)).load_test
    assert test is not None and test.text is not None
    assert (test.workers, test.text.prompt_tokens) == (3, (1, 30))
    assert test.text.temperature == 0.5
    assert len(test.calls) == 2  # prompts are padded to 16 or 32 tokens
    (result,) = test.results
    assert (result.answered, result.verdict) == (60, "met")
    requests, generation = result.requests, result.generation
    assert {*requests.prompt_tokens} <= {*range(1, 31)}
    assert {*requests.output_tokens} == {*range(2, 7)}
    assert {*requests.worker} <= {0, 1, 2}
    assert generation is not None
    assert generation.output_tokens == sum(n or 0 for n in requests.output_tokens)
    assert generation.currency_per_hour == 2


def test_a_factory_may_return_a_transformers_model_alone(folder: Path) -> None:
    lengths = ("--prompt-tokens", "4", "--output-tokens", "3")
    done = loadtest(folder, "llama", *lengths)
    assert done.returncode == 0, done.stderr
    test = Run.from_json(json.loads(done.stdout)).load_test
    assert test is not None
    assert test.results[0].answered == 60


def test_a_step_that_always_fails_fails_the_test(folder: Path) -> None:
    lengths = ("--prompt-tokens", "4", "--output-tokens", "3")
    done = loadtest(folder, "failing", *lengths)
    assert done.returncode == 2
    assert "no memory" in done.stderr


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        ("make", ()),
        ("linear", ("--output-tokens", "4")),
        ("make", ("--output-tokens", "90")),
    ],
)
def test_targets_that_do_not_fit(
    folder: Path, factory: str, arguments: tuple[str, ...]
) -> None:
    done = loadtest(folder, factory, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--prompt-tokens", "9-3"),
        ("--output-tokens", "many"),
        ("--slots", "4"),
        ("--price", "2"),
        ("--output-tokens", "4", "--workers", "2"),
        ("--output-tokens", "4", "--slots", "0"),
        ("--output-tokens", "4", "--temperature", "-1"),
        ("--output-tokens", "4", "--batch-window", "5ms", "--max-batch", "4"),
        ("--slo", "first_token:p99=1s"),
    ],
)
def test_wrong_flags_are_one_line(folder: Path, arguments: tuple[str, ...]) -> None:
    done = loadtest(folder, "make", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert arguments[-2] in done.stderr


def planned(path: Path, lines: str) -> LoadPlan:
    (path / "trace.txt").write_text(lines)
    options = LoadOptions(arrivals=str(path / "trace.txt"), text=TextOptions())
    return LoadPlan.of(parse("workload:gpt"), options)


def test_a_file_gives_times_of_text_and_nothing_else(tmp_path: Path) -> None:
    plan = planned(tmp_path, "0.5\n0.75\n")
    assert plan.trace is not None and plan.trace.arrival_s == (0.0, 0.25)
    for line in ("0.9,1", '{"time": 0.9, "sizes": {"batch": 2}}'):
        with pytest.raises(UserError) as error:
            planned(tmp_path, f"0.5\n{line}\n")
        assert "trace.txt:2" in str(error.value)


def test_objectives_of_tokens() -> None:
    objective = read_objective("token:p90=30ms")
    assert (objective.metric, objective.limit_ms) == ("token", 30)
    options = LoadOptions(rate=1.0, objective=objective, text=TextOptions(slots=5))
    assert options.at_once == 5


def test_tests_with_other_lengths_are_not_compared() -> None:
    short, long = (
        LoadTest(1.0, "poisson", 0, planned=9, text=TextOptions((1, most)).load)
        for most in (10, 20)
    )
    assert_same_load(short, short)
    with pytest.raises(UserError):
        assert_same_load(short, long)
