"""Compiled programs judged by their reference: real wrong answers and real rounding."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchproof.measure.numerics import reference
from torchproof.targets.calls import answers, seed
from torchproof.targets.target import Loaded
from torchproof.torch_private.comparison import Comparison, compare


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()


Make = Callable[[], tuple[Any, list[Any]]]


def verdicts(make: Make, **arguments: Any) -> dict[str, Comparison]:
    """What judging each answer of a compiled target gives, and all of them together.

    `arguments` are those of torch.compile.
    """

    def load() -> Loaded:
        seed()
        return Loaded(*make(), None, SimpleNamespace())

    judge = reference(load, lambda made: answers(made, made.fn, train=False))
    made = load()
    found = answers(made, torch.compile(made.fn, **arguments), train=False)
    assert judge.exact is not None
    each = {
        name: compare(
            {name: value}, {name: judge.eager[name]}, {name: judge.exact[name]}
        )
        for name, value in found.items()
        if isinstance(value, torch.Tensor)
    }
    return each | {"all": judge.compare(found)}


@pytest.mark.slow
def test_real_wrong_answers_are_wrong_and_real_rounding_is_not() -> None:
    def fn(x: torch.Tensor, short: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "acosh": torch.acosh(x.abs() * 1e20 + 2),
            "remainder": x % float("inf"),
            "masked": torch.softmax(x.where(x > 0, float("-inf")), 0) * x,
            "fused": (short * 3.1 + 1.7).sin() * short - short.cos(),
        }

    x, short = torch.linspace(-3.0, 3.0, 40), torch.randn(4096, dtype=torch.bfloat16)
    found = verdicts(lambda: (fn, [(x, short)]))
    found = {name.rpartition(".")[2]: answer for name, answer in found.items()}
    assert found["remainder"].verdict == "wrong"
    is_mended = torch.__version__ >= (2, 15)
    assert found["acosh"].verdict == ("same" if is_mended else "wrong")
    assert found["masked"].verdict in ("same", "rounding")
    assert found["fused"].verdict == "rounding"
    assert found["fused"].reference == "float64"
    assert found["all"].verdict == "wrong"


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

    assert verdicts(make, backend="eager")["all"].verdict == "same"
    assert verdicts(make, backend="aot_eager")["all"].verdict == "wrong"
