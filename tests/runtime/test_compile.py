"""What torchproof.compile takes, decides, and says about it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torchproof
from torchproof.records.run import UserError
from torchproof.runtime import production
from torchproof.runtime.compiled_forward import CompiledForward


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TORCHPROOF_DEADLINE_S", "TORCH_COMPILE_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](x)


def compiled(model: Any, **settings: Any) -> Any:
    return torchproof.compile(model, backend="aot_eager", **settings)


# -- what is asked for -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "variables", "expected"),
    [
        (None, {}, 600.0),
        (5, {"TORCHPROOF_DEADLINE_S": "7"}, 5.0),
        (None, {"TORCHPROOF_DEADLINE_S": "7", "TORCH_COMPILE_TIMEOUT": "8"}, 7.0),
        (None, {"TORCH_COMPILE_TIMEOUT": "8.5"}, 8.5),
        (None, {"TORCHPROOF_DEADLINE_S": ""}, 600.0),
    ],
)
def test_deadline_comes_from_argument_environment_default(
    given: float | None,
    variables: dict[str, str],
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    model = compiled(nn.Linear(2, 2), deadline=given)
    assert torchproof.status(model).deadline_s == expected


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"deadline": 0}, "deadline=0"),
        ({"verify": "always"}, "verify='always' 'first' False"),
        ({"verify": True}, "verify=True 'first' False"),
        ({"min_gain": 0.1}, "min_gain example="),
        ({"modes": "default"}, "'modes' mode?"),
        ({"strategy": "fulll"}, "'fulll' full?"),
        ({"strategy": "core"}, "core:encode"),
        ({"strategy": "full:marks"}, "full:marks"),
    ],
)
def test_bad_arguments_are_one_clear_line(settings: dict[str, Any], says: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(UserError) as error:
        compiled(model, **settings)
    assert all(token in str(error.value) for token in says.split())
    assert "\n" not in str(error.value)
    assert "forward" not in model.__dict__


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"\bint\b"):
        torchproof.compile(3)
    with pytest.raises(UserError, match="'regional'"):
        torchproof.compile(torch.sin, strategy="regional")
    with pytest.raises(UserError, match="Linear"):
        torchproof.status(nn.Linear(2, 2))


def test_a_method_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"Blocks\b.*\bencoder"):
        compiled(Blocks(), strategy="core:encoder")


# -- strategies ------------------------------------------------------------------------


def test_blocks_of_a_region_share_what_is_compiled() -> None:
    model, x = Blocks(), torch.randn(5, 4)
    expected = model(x)
    compiled(model, strategy="regional")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(model(x), expected)
    status = torchproof.status(model)
    assert status.strategy == "regional"
    [only] = status.compilations
    assert (only.function, only.shapes) == ("Sequential.forward", {"args[0]": (5, 4)})
    # The first call shows where the blocks are, and runs eager.
    assert (status.calls, status.compiled_calls) == (3, 2)


def test_without_blocks_the_whole_is_compiled() -> None:
    model = compiled(nn.Linear(3, 3), strategy="regional")
    for _ in range(2):
        model(torch.ones(1, 3))
    status = torchproof.status(model)
    assert status.strategy == "full"
    assert "blocks" in status.why


def test_a_method_is_compiled_and_the_rest_is_not() -> None:
    model, x = Blocks(), torch.randn(5, 4)
    expected = model.encode(x)
    compiled(model, strategy="core:encode")
    model(x)
    torch.testing.assert_close(model.encode(x), expected)
    assert [item.function.split()[0] for item in statused(model)] == ["Blocks.encode"]


def statused(model: Any) -> tuple[Any, ...]:
    return torchproof.status(model).compilations


def test_the_size_of_a_model_decides_where_nothing_else_does() -> None:
    model = compiled(Blocks(), full_below=10, regional_below=1000)
    assert torchproof.status(model).strategy == "regional"
    large = compiled(Blocks(), full_below=10, regional_below=20)
    large(torch.ones(2, 4))
    status = torchproof.status(large)
    assert (status.strategy, status.compiled_calls) == ("eager", 0)
    assert "20" in status.why
    assert torchproof.plan(Blocks()).strategy == "full"


# -- recompiling -----------------------------------------------------------------------


class Changing(nn.Module):
    """Computes with an attribute that each call changes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.number, self.name = kind, 1, "a"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "number":
            self.number += 1
            return x * self.number
        if self.kind == "name":
            self.name += "a"
            return x * len(self.name)
        return x * 2


@pytest.mark.parametrize("kind", ["number", "size"])
def test_what_varies_is_generalised_once(kind: str) -> None:
    model, twin = compiled(Changing(kind), dynamic=False), Changing(kind)
    for size in range(2, 14):
        x = torch.ones(size if kind == "size" else 3)
        assert torch.equal(model(x), twin(x))
    status = torchproof.status(model)
    assert status.recompiles == 3
    assert status.compiled_calls == status.calls == 12
    assert "Changing.forward" in status.notes[0]
    assert not status.fallbacks


def test_a_storm_ends_in_eager_with_its_cause() -> None:
    model, twin = compiled(Changing("name"), recompile_limit=5), Changing("name")
    for _ in range(10):
        x = torch.ones(3)
        assert torch.equal(model(x), twin(x))
    status = torchproof.status(model)
    assert (status.recompiles, status.compiled_calls) == (5, 6)
    [storm] = status.fallbacks
    assert storm.kind == "storm"
    assert "self.name == " in storm.why and "6 times" in storm.why


def test_one_recompile_that_settles_is_no_storm() -> None:
    model = compiled(Changing("size"))
    for size in (3, 4, 5, 6, 7, 8):
        model(torch.ones(size))
    status = torchproof.status(model)
    assert status.recompiles == 1
    assert not status.fallbacks and not status.notes


# -- failures and retries --------------------------------------------------------------


@torch.library.custom_op("torchproof_tests::incomplete", mutates_args=())
def incomplete(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("failures", [1, 2])
def test_a_compiler_that_cannot_be_loaded_is_tried_again_and_reported(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, attempts = CompiledForward.load_compiler, []

    def fail(self: CompiledForward) -> Any:
        attempts.append(self)
        if len(attempts) <= failures:
            raise OSError("no space left on device")
        return load(self)

    monkeypatch.setattr(CompiledForward, "load_compiler", fail)
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    expected = model(x)
    compiled(model)
    torch.testing.assert_close(model(x), expected)
    told = torchproof.status(model)
    assert len(attempts) == 2
    if failures == 1:
        assert told.compiled_calls == 1 and not told.fallbacks
    else:
        assert [(f.kind, f.why) for f in told.fallbacks] == [
            ("compile error", "OSError: no space left on device")
        ]


class Partly(nn.Module):
    """Its last operation cannot be traced, for as long as it has no fake kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Blocks()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return incomplete(self.body(x))


def test_what_fails_runs_eager_once_and_is_compiled_on_retry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Partly().requires_grad_(False)
    x = torch.randn(2, 4)
    expected = model(x)
    compiled(model)
    for _ in range(3):
        torch.testing.assert_close(model(x), expected)
    assert model.calls == 4
    status = torchproof.status(model)
    assert [item.kind for item in status.fallbacks] == ["compile error"]
    assert "fake impl" in status.fallbacks[0].why  # torch's own words
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if status.fallbacks[0].why in line]) == 1
    # Outside of what failed, frames are compiled.
    assert any("Blocks.forward" in item.function for item in status.compilations)

    incomplete.register_fake(torch.empty_like)
    torchproof.retry(model)
    torch.testing.assert_close(model(x), expected)
    status = torchproof.status(model)
    assert not status.fallbacks
    assert any("Partly.forward" in item.function for item in status.compilations)


def test_blocks_are_found_anew_on_retry() -> None:
    """Blocks that are still compiled would trace what records the first call."""
    plain = Blocks().requires_grad_(False)
    model = compiled(copy.deepcopy(plain), strategy="regional")
    x = torch.randn(2, 4)
    hook = nn.modules.module.register_module_forward_hook(_add_one)
    try:
        model(x)
        torchproof.retry(model)
        assert not any("forward" in vars(block) for block in model.blocks)
        for _ in range(2):
            torch.testing.assert_close(model(x), plain(x))
    finally:
        hook.remove()
    status = torchproof.status(model)
    assert status.compiled_calls == 1, str(status)


def _add_one(module: nn.Module, args: Any, output: Any) -> Any:
    return output + 1 if isinstance(module, nn.Tanh) else None


def test_an_error_of_the_model_is_raised_as_it_is_and_held_against_nobody() -> None:
    model = compiled(nn.Linear(4, 4))
    with pytest.raises(RuntimeError) as raised:
        model(torch.ones(2, 3))
    with pytest.raises(RuntimeError) as expected:
        nn.Linear(4, 4)(torch.ones(2, 3))
    assert str(raised.value) == str(expected.value)
    assert not torchproof.status(model).fallbacks
    model(torch.ones(2, 4))
    assert torchproof.status(model).compiled_calls >= 1
    assert torchproof.status(model).compilations


# -- what is said ----------------------------------------------------------------------


def test_status_is_text_and_a_record() -> None:
    heard: list[str] = []
    model = compiled(Blocks(), on_event=lambda kind, record: heard.append(kind))
    model(torch.ones(2, 4))
    status = torchproof.status(model)
    text = str(status)
    assert text.startswith("Blocks: full (")
    assert all(token in text for token in ("1 call,", "100%", "0 recompiles"))
    assert "Blocks.forward (test_compile.py:" in text
    plain = json.loads(json.dumps(status.to_json()))
    assert (plain["strategy"], plain["compiled_share"]) == ("full", 1.0)
    assert heard == ["compilation"]


def test_switched_off_it_is_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHPROOF_DISABLE", "1")
    model = nn.Linear(2, 2)
    before = dict(model.__dict__)
    assert torchproof.compile(model) is model
    assert model.__dict__ == before
    assert production.compile(torch.sin) is torch.sin
    with pytest.raises(UserError, match="TORCHPROOF_DISABLE"):
        torchproof.status(model)
