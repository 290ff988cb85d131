"""Compiled programs judged by their reference: real wrong answers and real rounding."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchproof.measure.numerics import reference
from torchproof.targets.calls import answers, seed
from torchproof.targets.target import Loaded
from torchproof.torch_private.comparison import Comparison, compare


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()


Make = Callable[[], tuple[Any, list[Any]]]


def verdicts(make: Make, *, train: bool = False, **how: Any) -> dict[str, Comparison]:
    """What judging each answer of a compiled target gives, and all of them together.

    `how` goes to torch.compile.
    """

    def load() -> Loaded:
        seed()
        return Loaded(*make(), None, SimpleNamespace())

    told = reference(load, lambda made: answers(made, made.fn, train=train))
    made = load()
    found = answers(made, torch.compile(made.fn, **how), train=train)
    assert told.exact is not None
    each = {
        name: compare({name: value}, {name: told.eager[name]}, {name: told.exact[name]})
        for name, value in found.items()
        if isinstance(value, torch.Tensor)
    }
    return each | {"all": told.compare(found)}


def verdict(make: Make, **how: Any) -> Comparison:
    return verdicts(make, **how)["all"]


# -- wrong -----------------------------------------------------------------------------


@pytest.mark.slow
def test_edges_that_inductor_gets_wrong_and_roundings_that_it_may_do() -> None:
    def fn(x: torch.Tensor, short: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "acosh": torch.acosh(x.abs() * 1e20 + 2),
            "remainder": x % float("inf"),
            "byte": (x * 9).to(torch.uint8),
            "masked": torch.softmax(x.where(x > 0, float("-inf")), 0) * x,
            "fused": (short * 3.1 + 1.7).sin() * short - short.cos(),
        }

    x, short = torch.linspace(-3.0, 3.0, 40), torch.randn(4096, dtype=torch.bfloat16)
    told = verdicts(lambda: (fn, [(x, short)]))
    told = {name.rpartition(".")[2]: answer for name, answer in told.items()}
    assert told["remainder"].verdict == "wrong"
    mended = torch.__version__ >= (2, 15)
    for name in ("acosh", "byte"):
        expected = "same" if mended else "wrong"
        assert told[name].verdict == expected, name
    assert told["masked"].verdict in ("same", "rounding")
    assert told["fused"].verdict == "rounding"
    assert told["fused"].reference == "float64"
    assert told["all"].verdict == "wrong"


@torch.library.custom_op("test_answers::secretly_add", mutates_args=())
def secretly_add(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.clone()


@secretly_add.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_undeclared_mutation_is_wrong_from_aot_autograd_on() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        secretly_add(y)
        return y

    def make() -> Any:
        return fn, [(torch.randn(8),)]

    assert verdict(make, backend="eager").verdict == "same"
    assert verdict(make, backend="aot_eager").verdict == "wrong"


@pytest.mark.slow
def test_a_gather_through_an_unbacked_batch() -> None:
    from torch._dynamo.decorators import mark_unbacked, maybe_mark_dynamic

    def fn(tokens: Any, entries: Any, logits: Any) -> Any:
        rows = entries.flatten(0, 1) * 1
        ends = rows.clamp(max=191).unflatten(0, (-1, 3)).flatten(1)
        targets = tokens.gather(1, ends).view_as(rows)
        flat = targets.flatten()
        return F.cross_entropy(logits.flatten(0, 1), flat, reduction="none")

    def make(marked: bool) -> Any:
        tokens = torch.randint(256, (2, 192))
        entries = torch.randint(192, (2, 3, 171))
        if marked:
            mark_unbacked(tokens, 0, shape_id="b")
            mark_unbacked(entries, 0, shape_id="b")
            maybe_mark_dynamic(entries, 2)
        return fn, [(tokens, entries, torch.randn(6, 171, 256))]

    assert verdict(lambda: make(False)).verdict in ("same", "rounding")
    torch.compiler.reset()
    assert verdict(lambda: make(True)).verdict == "wrong"


# -- rounding --------------------------------------------------------------------------


def model(name: str, kind: torch.dtype, train: bool) -> tuple[nn.Module, list[Any]]:
    """A small model of a kind that people compile, dropout off."""
    import transformers

    small = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 500,
    }
    tokens = torch.randint(500, (2, 24))
    call = {"input_ids": tokens, "labels": tokens}
    if name == "llama":
        config = transformers.LlamaConfig(num_key_value_heads=2, **small)
        built = transformers.LlamaForCausalLM(config)
    elif name == "bert":
        built = transformers.BertForMaskedLM(transformers.BertConfig(**small))
    else:
        sizes = {"image_size": 32, "patch_size": 8, **small}
        built = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))
        call = {
            "pixel_values": torch.randn(2, 3, 32, 32).to(kind),
            "labels": torch.tensor([0, 1]),
        }
    for module in built.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return built.to(kind).train(train), [call]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "vit"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_real_models_are_right(name: str, kind: torch.dtype, train: bool) -> None:
    told = verdict(lambda: model(name, kind, train), train=train)
    assert told.verdict in ("same", "rounding"), told
    assert told.reference == "float64"
