"""Models as people have them: recurrent, transformers, scripted, switched off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from twins import (
    Net,
    assert_alike,
    assert_compiled,
    assert_trained_alike,
    compiled,
    sample,
    twins,
)

import torchproof

# Dynamo hides it where warnings are shown, not where they are errors.
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


def test_sequential_and_its_parts() -> None:
    made = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    plain, model = twins(made)
    assert_trained_alike(plain, model, sample())
    assert len(model) == 3 and model[0].in_features == 4
    plain.append(nn.Tanh()), model.append(nn.Tanh())
    assert_alike(plain, model, sample())
    assert_compiled(model)
    torch.testing.assert_close(model[:2](sample()), plain[:2](sample()))


def test_a_recurrent_network() -> None:
    plain, model = twins(nn.LSTM(4, 5, batch_first=True))
    x = sample(6).view(2, 3, 4)
    answer, (hidden, cell) = assert_alike(plain, model, x)
    assert_alike(plain, model, x, (hidden.detach(), cell.detach()))
    assert_trained_alike(plain, model, x)
    assert answer.shape == (2, 3, 5)
    # Dynamo compiles none, and that is said.
    told = torchproof.status(model)
    assert told.compiled_share == 0.0
    said = [item.why for item in told.fallbacks] or list(told.notes)
    assert len(said) == 1 and "LSTM" in said[0], str(told)


@pytest.mark.slow
def test_torchs_own_transformer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    plain, model = twins(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    assert_trained_alike(plain, model, x)
    with torch.no_grad():  # another path of eager
        assert_alike(plain.eval(), model.eval(), x, src_key_padding_mask=padding)
    assert_compiled(model)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=49, pad_token_id=49,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
        bos_token_id=0, eos_token_id=49, pad_token_id=49,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpt2, pytest.param(llama, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_language_models_of_transformers(make: Any) -> None:
    pytest.importorskip("transformers")
    plain, model = twins(make().eval())
    tokens = torch.randint(0, 49, (2, 7))
    expected = plain(input_ids=tokens, labels=tokens)
    answer = model(input_ids=tokens, labels=tokens)
    assert type(answer) is type(expected) and list(answer) == list(expected)
    torch.testing.assert_close(answer.logits, expected.logits)
    for loss in (expected.loss, answer.loss):
        loss.backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)
    assert_compiled(model)
    wanted: Any = {"max_new_tokens": 4, "do_sample": False, "use_cache": True}
    torch.testing.assert_close(
        model.generate(tokens, **wanted), plain.generate(tokens, **wanted)
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scripted_modules_stay_what_they_are() -> None:
    scripted = torch.jit.script(nn.Linear(4, 4))
    expected = scripted(sample())
    model = compiled(scripted)
    torch.testing.assert_close(model(sample()), expected)
    told = torchproof.status(model)
    assert told.strategy == "eager" and "TorchScript" in told.why


@pytest.mark.slow
def test_inductor_answers_and_trains_as_eager_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain, model = twins(Net().eval(), backend="inductor")
    assert_trained_alike(plain, model, sample())
    assert_alike(plain, model, sample())
    assert_compiled(model)
    # An error of the caller's does not cost the compiled code.
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(3, 5))
    before = torchproof.status(model).compiled_calls
    assert_alike(plain, model, sample())
    assert torchproof.status(model).compiled_calls == before + 1


SWITCHED_OFF = """
import sys, torch, torchproof
model = torch.nn.Linear(4, 4)
before, loaded = dict(model.__dict__), set(sys.modules)
assert torchproof.compile(model, deadline=5) is model
assert model.__dict__ == before
assert torchproof.compile(len) is len
assert torchproof.compile(strategy="full")(len) is len
gained = set(sys.modules) - loaded - sys.stdlib_module_names
names = "runtime runtime.production records records.lazy records.printable"
names += " records.user_error"
expected = {f"torchproof.{name}" for name in names.split()}
assert gained <= expected, gained
assert "torch._dynamo" not in gained
try:
    torchproof.status(model)
except Exception as error:
    print(error)
"""


def test_switched_off_it_gives_the_plain_model_and_loads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHPROOF_DISABLE", "1")
    done = subprocess.run(
        [sys.executable, "-c", SWITCHED_OFF],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "TORCHPROOF_DISABLE=1" in done.stdout
