"""Arguments that cannot be used are refused in `compile`, never at the first call."""

from __future__ import annotations

import fractions
import json
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchproof
from torchproof.cli import flags, verbs
from torchproof.records.run import UserError

NAN, INF = float("nan"), float("inf")
BAD: dict[str, tuple[Any, ...]] = {
    "deadline": (0, -1, -INF, NAN, True, False, "10", "", b"1", [1], 1j, np.bool_(1)),
    "recompile_limit": (0, -3, "8", True, 8.0, NAN, [8]),
    "verify": (True, 0, -1, "always", "", None, 1.5, NAN, [], np.ones(2)),
    "min_gain": (NAN, -0.1, "0.1", INF, True, [0.1]),
    "full_below": (NAN, -1, "1e9", None, True, [1]),
    "regional_below": (NAN, -1, "1e9", None, True, {}),
    "strategy": ("fulll", "", 3, b"full", ["full"], "full:fast", "core"),
    "on_event": (3, "print", []),
    "wait": (0, 1, None, "no", 2.0),
    "monitor": (0, 1, None, "yes"),
    "example": ({1: 2},),
    "recipe": (3, [], b"x.toml", object()),
    "dynamic": ("x", 0, 1, "True", []),
    "mode": ("fast", 3, ["default"]),
    "options": ({"no_such_option": 1}, {"max_autotune": "yes"}, {1: 2}, "x", 3, []),
    "backend": ("no_such_backend", 3, ["eager"]),
    "fullgraph": (1, "yes"),
    "disable": (0, "no"),
    "isolate_recompiles": (1, "no"),
    "name": (1,),
    "recompile_limits": (8,),
}
CASES = [(name, value) for name, values in BAD.items() for value in values]
FORMS: dict[str, Callable[..., Any]] = {
    "module": lambda **given: torchproof.compile(nn.Linear(2, 2), **given),
    "function": lambda **given: torchproof.compile(torch.sin, **given),
    "decorator": lambda **given: torchproof.compile(**given),
}


def refused(act: Callable[..., Any], **given: Any) -> str:
    with pytest.raises(UserError) as error:
        act(**given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_bad_argument_is_refused_in_compile(form: str, name: str, value: Any) -> None:
    more: dict[str, Any] = {"example": (torch.ones(2),)} if name == "min_gain" else {}
    if form == "decorator" and (name, value) == ("strategy", "core"):
        pytest.skip("whether it needs a method is known with the model")
    assert name in refused(FORMS[form], **{name: value, **more})


def test_arguments_that_exclude_each_other_are_refused() -> None:
    for act in FORMS.values():
        both = refused(act, mode="max-autotune", options={"max_autotune": True})
        assert "mode or options" in both
        refused(act, min_gain=0.1)


def test_the_switch_that_turns_torchproof_off_checks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHPROOF_DISABLE", "1")
    model = nn.Linear(2, 2)
    assert torchproof.compile(model, deadline=-1) is model
    assert torchproof.compile(deadline=-1)(model) is model


GOOD: dict[str, tuple[Any, ...]] = {
    "recompile_limit": (None, 1, np.int64(3), 10**6),
    "verify": (False, "first", 2, np.int32(1)),
    "full_below": (0, INF, np.float32(3)),
    "dynamic": (None, True, False),
    "mode": (None, "default"),
    "options": (None, {}),
    "wait": (True, False),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_arguments_are_taken_and_work(name: str) -> None:
    for value in GOOD[name]:
        more: dict[str, Any] = {} if name == "mode" else {"backend": "eager"}
        model = torchproof.compile(nn.Linear(2, 2), **{name: value, **more})
        if name != "mode":  # which are Inductor's
            assert model(torch.ones(1, 2)).shape == (1, 2)


HUGE = 10**400
DEADLINES = (
    *(INF, 1e308, 1e10, threading.TIMEOUT_MAX, HUGE, 2**63, 600),
    *(np.float32(5.0), np.int64(7), fractions.Fraction(7, 2), Decimal("3.5")),
)


@pytest.mark.parametrize("deadline", DEADLINES, ids=lambda each: repr(each)[:20])
def test_any_positive_number_is_a_deadline(deadline: Any, fresh_compiler: None) -> None:
    model = torchproof.compile(nn.Linear(2, 2), deadline=deadline, backend="eager")
    model(torch.ones(1, 2))
    status = torchproof.status(model)
    assert (status.compiled_calls, status.fallbacks) == (1, ())
    assert status.deadline_s == (INF if deadline is HUGE else float(deadline))
    # NaN and infinities are no JSON.
    json.dumps(status.to_json(), allow_nan=False)
    assert "deadline" in str(status)


@pytest.mark.slow
def test_without_a_deadline_code_is_generated_in_a_child_too(
    fresh_compiler: None,
) -> None:
    x = torch.ones(3)
    fn = torchproof.compile(lambda x: (x * 2 + 0.123).sin(), deadline=INF)
    assert torch.allclose(fn(x), (x * 2 + 0.123).sin())
    status = torchproof.status(fn)
    assert status.fallbacks == () and status.compilations[0].in_child in (0, 1)


def test_a_deadline_too_short_for_anything_is_told(fresh_compiler: None) -> None:
    model = torchproof.compile(nn.Linear(2, 2), deadline=1e-9, backend="eager")
    for _ in range(3):
        model(torch.ones(1, 2))
    status = torchproof.status(model)
    assert [item.kind for item in status.fallbacks] == ["deadline"]
    assert (status.calls, status.compiled_calls) == (3, 0)


@pytest.mark.parametrize("text", ["inf", "1e308", "1e10", "1e-3"])
def test_the_environment_may_say_any_deadline(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHPROOF_DEADLINE_S", text)
    model = torchproof.compile(nn.Linear(2, 2), backend="eager")
    model(torch.ones(1, 2))
    assert torchproof.status(model).deadline_s == float(text)


@pytest.mark.parametrize("text", ["nan", "0", "-1", "soon", "1,5"])
def test_a_deadline_in_the_environment_is_checked_as_well(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHPROOF_DEADLINE_S", text)
    for act in FORMS.values():
        assert "TORCHPROOF_DEADLINE_S" in refused(act)


@pytest.mark.parametrize("text", ["lots", "0", "-5", "1.5"])
def test_the_memory_of_the_child_is_checked_as_well(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHPROOF_CHILD_MEMORY_MB", text)
    for act in FORMS.values():
        assert "TORCHPROOF_CHILD_MEMORY_MB" in refused(act)


@pytest.mark.parametrize(
    "given",
    [
        *({"pad": 3}, {"pad": {"input": ("b",)}, "buckets": 5}, {"pool": 3}),
        *({"pad": {"input": ("b",)}, "buckets": [0]}, {"train": 1}, {"strategy": 3}),
        *({"example": torch.ones(2)}, {"outputs": "x"}, {"recipe": 3}, {"nope": 1}),
        *({"strategy": "full", "dynamic": "x"}, {"strategy": "full", "mode": "x"}),
        {"strategy": "full", "options": {"no_such_option": 1}},
        {"pad": {"input": ("b",)}, "unpad": 3},
    ],
)
def test_graph_refuses_bad_arguments(given: dict[str, Any]) -> None:
    *_, bad = given
    assert bad in refused(lambda: torchproof.graph(nn.Linear(2, 2), **given))


def test_load_and_plan_refuse_bad_arguments(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for pack in (3, None, [], b"x"):
        assert "pack" in refused(torchproof.load, pack=pack, model=model)
    for name, value in {"strict": 1, "warm": "no", "key": 3}.items():
        given = {"pack": tmp_path, "model": model, name: value}
        assert name in refused(torchproof.load, **given)
    assert "int is not" in refused(torchproof.load, pack=tmp_path, model=3)
    for name, value in {"full_below": "x", "regional_below": NAN, "nope": 1}.items():
        assert name in refused(torchproof.plan, model=model, **{name: value})


@pytest.mark.parametrize("text", ["1e10", "1e300", "9" * 300])
def test_a_long_timeout_on_the_command_line_can_be_waited_for(text: str) -> None:
    # argparse calls these; select and threading take no more than some 1e9 seconds.
    assert flags.duration(f"{float(text):.0f}s") <= threading.TIMEOUT_MAX
    options = verbs._parser().parse_args(["check", "x.py", "--timeout", text])
    assert options.timeout <= threading.TIMEOUT_MAX
