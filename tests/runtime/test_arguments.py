"""Arguments of `compile`: those of torch mean what they mean there, bad ones raise.

One that cannot be used is refused in `compile`, never at the first call.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof import UserError

COMPILERS = (torch.compile, torchproof.compile)
pytestmark = pytest.mark.usefixtures("fresh_compiler")
NAN, INF = float("nan"), float("inf")


def breaks(x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def whole(x: Tensor) -> Tensor:
    return (x + 1) * 2


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def fails(gm: Any, inputs: Any) -> Any:
    raise RuntimeError("planted")


# -- refused ---------------------------------------------------------------------------

BAD: dict[str, tuple[Any, ...]] = {
    "deadline": (0, -1, NAN, True, "10", [1]),
    "recompile_limit": (0, "8", True, 8.0),
    "verify": (True, 0, "always", None, 1.5, np.ones(2)),
    "min_gain": (NAN, -0.1, "0.1", INF, True),
    "full_below": (NAN, -1, "1e9", None),
    "regional_below": (NAN, -1, {}),
    "strategy": ("fulll", "", 3, "full:fast", "core"),
    "on_event": (3,),
    "wait": (0, None),
    "example": ({1: 2},),
    "recipe": (3, b"x.toml"),
    "dynamic": ("x", 0),
    "mode": ("fast", 3),
    "options": ({"no_such_option": 1}, {"max_autotune": "yes"}, {1: 2}, "x"),
    "backend": ("no_such_backend", 3),
    "fullgraph": (1,),
    "disable": (0,),
    "isolate_recompiles": (1,),
    "name": (1,),
    "modes": ("default",),  # no argument at all
}
FORMS: dict[str, Callable[..., Any]] = {
    "module": lambda **given: torchproof.compile(nn.Linear(2, 2), **given),
    "function": lambda **given: torchproof.compile(torch.sin, **given),
    "decorator": lambda **given: torchproof.compile(**given),
}


def refused(act: Callable[..., Any], *args: Any, **given: Any) -> str:
    with pytest.raises(UserError) as error:
        act(*args, **given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_refused_in_compile(name: str) -> None:
    more: dict[str, Any] = {"example": (torch.ones(2),)} if name == "min_gain" else {}
    for value in BAD[name]:
        for form, act in FORMS.items():
            if (form, name, value) == ("decorator", "strategy", "core"):
                continue  # whether it needs a method is known with the model
            assert name in refused(act, **{name: value, **more})


def test_what_excludes_each_other_or_cannot_be_compiled_is_refused() -> None:
    model = nn.Linear(2, 2)
    compile_ = torchproof.compile
    refused(compile_, model, mode="max-autotune", options={"max_autotune": True})
    refused(compile_, model, min_gain=0.1)  # without an example
    refused(compile_, 3)
    refused(compile_, torch.sin, strategy="regional")
    refused(compile_, model, strategy="full:marks")
    refused(compile_, model, strategy="core:encoder")
    refused(compile_, model, strategy="core:forward")
    refused(torchproof.status, model)
    assert "forward" not in vars(model)


BAD_VARIABLES = {
    "TORCHPROOF_DEADLINE_S": ("nan", "0", "soon"),
    "TORCHPROOF_CHILD_MEMORY_MB": ("lots", "0", "1.5"),
}


def test_bad_environment_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, texts in BAD_VARIABLES.items():
        for text in texts:
            monkeypatch.setenv(variable, text)
            for act in FORMS.values():
                assert variable in refused(act)
        monkeypatch.delenv(variable)


def test_load_and_plan_refuse_bad_arguments(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for pack in (3, None):
        assert "pack" in refused(torchproof.load, pack=pack, model=model)
    for name, value in {"strict": 1, "warm": "no", "key": 3}.items():
        given = {"pack": tmp_path, "model": model, name: value}
        assert name in refused(torchproof.load, **given)
    for name, value in {"full_below": "x", "regional_below": NAN, "nope": 1}.items():
        assert name in refused(torchproof.plan, model=model, **{name: value})


def test_the_switch_that_turns_torchproof_off_checks_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHPROOF_DISABLE", "1")
    model = nn.Linear(2, 2)
    before = dict(vars(model))
    assert torchproof.compile(model, deadline=-1) is model
    assert torchproof.compile(deadline=-1)(model) is model
    assert torchproof.compile(torch.sin) is torch.sin
    assert vars(model) == before
    refused(torchproof.status, model)


# -- accepted --------------------------------------------------------------------------


HUGE = 10**400


DEADLINES = INF, 1e308, threading.TIMEOUT_MAX, HUGE, np.float32(5), Decimal("3.5")


def test_any_positive_number_is_a_deadline() -> None:
    for deadline in DEADLINES:
        function = torchproof.compile(whole, deadline=deadline, backend="eager")
        function(torch.ones(2))
        status = torchproof.status(function)
        assert (status.compiled_calls, status.fallbacks) == (1, ())
        assert status.deadline_s == (INF if deadline is HUGE else float(deadline))
        json.dumps(status.to_json(), allow_nan=False)  # infinities are no JSON


@pytest.mark.parametrize(
    ("given", "variables", "expected"),
    [
        (None, {}, 600.0),
        (5, {"TORCHPROOF_DEADLINE_S": "7"}, 5.0),
        (None, {"TORCHPROOF_DEADLINE_S": "inf", "TORCH_COMPILE_TIMEOUT": "8"}, INF),
        (None, {"TORCH_COMPILE_TIMEOUT": "8.5"}, 8.5),
        (None, {"TORCHPROOF_DEADLINE_S": ""}, 600.0),
    ],
)
def test_the_deadline_comes_from_argument_environment_default(
    given: float | None,
    variables: dict[str, str],
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TORCHPROOF_DEADLINE_S", "TORCH_COMPILE_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    model = torchproof.compile(nn.Linear(2, 2), deadline=given, backend="eager")
    assert torchproof.status(model).deadline_s == expected


# -- arguments of torch.compile --------------------------------------------------------

GIVEN: dict[str, Any] = {
    "fullgraph": True,
    "dynamic": True,
    "backend": "eager",
    "mode": "reduce-overhead",
    "options": {"epilogue_fusion": True},
    "disable": True,
    "recompile_limit": 2,
    "isolate_recompiles": True,
    "name": "tower",
    "shapes_spec": None,
}


def test_every_argument_of_torch_compile_is_accepted() -> None:
    for name, parameter in list(inspect.signature(torch.compile).parameters.items())[
        1:
    ]:
        torchproof.compile(whole, **{name: parameter.default})
        if name in ("mode", "options"):  # which are Inductor's
            torchproof.compile(whole, **{name: GIVEN[name]})
            continue
        compiled = torchproof.compile(whole, **{"backend": "eager", name: GIVEN[name]})
        assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]


def test_a_backend_gets_mode_options_and_dynamic_as_from_torch() -> None:
    for given in (
        {"mode": "fast"},
        {"options": {"a": 1}},
        {"mode": "default"},
        {"dynamic": True},
        {},
    ):
        calls: list[Any] = []
        torch._dynamo.reset()

        def backend(gm: Any, inputs: Any, calls: list[Any] = calls, **more: Any) -> Any:
            calls.append((more, any(isinstance(i, torch.SymInt) for i in inputs)))
            return gm.forward

        for compiler in COMPILERS:
            compiler(whole, backend=backend, **given)(torch.ones(2))
        assert calls[0] == calls[1] and len(calls) == 2


def test_disable_returns_the_model_itself() -> None:
    for model in (net(), whole, nn.DataParallel(net())):
        assert torchproof.compile(model, disable=True) is model
        assert torchproof.compile(disable=True, fullgraph=True)(model) is model
    assert "forward" not in vars(torchproof.compile(net(), disable=True))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"verify": "first"},
        {"strategy": "full:fullgraph", "fullgraph": None},
        {"wait": False},
    ],
    ids=lambda more: ", ".join(more) or "alone",
)
def test_fullgraph_raises_at_a_break_as_torch_does(more: dict[str, Any]) -> None:
    given = {"fullgraph": True, "backend": "eager", **more}
    given = {name: value for name, value in given.items() if value is not None}
    errors = []
    for compiler, arguments in (
        (torch.compile, {"fullgraph": True, "backend": "eager"}),
        (torchproof.compile, given),
    ):
        compiled = compiler(breaks, **arguments)
        with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
            for _ in range(1000):  # without waiting, a later call raises
                compiled(torch.ones(2))
                while more.get("wait") is False and torchproof.status(compiled).pending:
                    pass
        errors.append(str(caught.value).splitlines()[0])
    assert errors[0] == errors[1]
    status = torchproof.status(compiled)
    assert (status.compiled_calls, status.fallbacks) == (0, ())


def test_fullgraph_without_a_break_compiles_and_still_falls_back() -> None:
    for function in (whole, lambda x: x * x.sum().item()):
        compiled = torchproof.compile(function, fullgraph=True, backend="eager")
        assert torch.equal(compiled(torch.ones(2)), function(torch.ones(2)))
        status = torchproof.status(compiled)
        assert (status.graph_breaks, status.graphs, status.fallbacks) == (0, 1, ())
    compiled = torchproof.compile(whole, fullgraph=True, backend=fails)
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    assert [f.kind for f in torchproof.status(compiled).fallbacks] == ["compile error"]


def test_the_recompile_limit_is_that_of_torch() -> None:
    for compiler in COMPILERS:
        given = {"fullgraph": True, "dynamic": False, "recompile_limit": 2}
        compiled = compiler(whole, backend="eager", **given)
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            for size in range(2, 9):
                compiled(torch.ones(size))
    with torch._dynamo.config.patch(recompile_limit=2):
        compiled = torchproof.compile(whole, backend="eager", dynamic=False)
        for size in range(2, 9):
            compiled(torch.ones(size))
    assert [item.kind for item in torchproof.status(compiled).fallbacks] == ["storm"]


def test_the_guard_filter_is_obeyed() -> None:
    for compiler in COMPILERS:
        options = {"guard_filter_fn": lambda entries: [False for _ in entries]}
        compiled = compiler(
            lambda x, flag: x + 1 if flag else x, backend="eager", options=options
        )
        assert compiled(torch.ones(1), True).item() == 2
        assert compiled(torch.ones(1), False).item() == 2  # not guarded


@pytest.mark.skipif(
    not hasattr(torch.compiler, "set_default_backend"), reason="this torch has none"
)
def test_the_default_backend_is_that_of_torch() -> None:
    graphs = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    torch.compiler.set_default_backend(backend)
    try:
        torchproof.compile(whole)(torch.ones(2))
    finally:
        torch.compiler.set_default_backend(None)
    assert len(graphs) == 1


@pytest.mark.skipif(
    "shapes_spec" not in inspect.signature(torch.compile).parameters,
    reason="this torch has no shapes_spec",
)
def test_a_specification_of_shapes_is_obeyed() -> None:
    from torch.fx.experimental import dynamic_spec

    graphs: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    size = dynamic_spec.TensorSpec([dynamic_spec.ShapeVar("n")])
    spec = dynamic_spec.ParamsSpec({"x": size})
    compiled = torchproof.compile(whole, backend=backend, shapes_spec=spec)
    for rows in (3, 5, 7):
        compiled(torch.ones(rows))
    assert len(graphs) == 1


# -- sizes that vary -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "recompiles", "kinds"),
    [
        (None, 1, []),
        (torch._dynamo.mark_dynamic, 0, []),
        (torch._dynamo.maybe_mark_dynamic, 0, []),
        (torch._dynamo.mark_static, 3, ["storm"]),
    ],
)
def test_marks_on_sizes_mean_what_they_mean_to_torch(
    mark: Any, recompiles: int, kinds: list[str]
) -> None:
    compiled = torchproof.compile(whole, backend="eager", recompile_limit=3)
    for size in (3, 4, 5, 6, 7):
        x = torch.ones(size)
        if mark is not None:
            mark(x, 0)
        assert torch.equal(compiled(x), whole(x))
    status = torchproof.status(compiled)
    assert status.recompiles == recompiles
    assert [item.kind for item in status.fallbacks] == kinds


def test_a_mark_that_the_code_contradicts_falls_back() -> None:
    def fixed(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 3 else x + 1

    compiled, x = torchproof.compile(fixed, backend="eager"), torch.ones(3)
    torch._dynamo.mark_dynamic(x, 0)
    assert torch.equal(compiled(x), x * 2)
    [fallback] = torchproof.status(compiled).fallbacks
    assert fallback.kind == "compile error" and "\n" not in fallback.why
