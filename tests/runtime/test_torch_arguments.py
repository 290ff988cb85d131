"""Arguments of `torch.compile` and kinds of models mean what they mean there.

Each behaviour is compared with that of `torch.compile` itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime import production

COMPILERS = (torch.compile, torchproof.compile)
pytestmark = pytest.mark.usefixtures("fresh_compiler")


def breaks(x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def whole(x: Tensor) -> Tensor:
    return (x + 1) * 2


class Callable_:
    def __call__(self, x: Tensor) -> Tensor:
        return whole(x)

    def method(self, x: Tensor) -> Tensor:
        return whole(x)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def compiled_in_place() -> nn.Module:
    model = net()
    model.compile(backend="eager")
    return model


# -- the signature ---------------------------------------------------------------------


def test_every_argument_of_torch_compile_is_known() -> None:
    ours = set(inspect.signature(torchproof.compile).parameters) | production.ARGUMENTS
    assert set(inspect.signature(torch.compile).parameters) <= ours


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
    for name in list(inspect.signature(torch.compile).parameters)[1:]:
        value = GIVEN[name]
        if name in ("mode", "options"):
            torchproof.compile(whole, **{name: value})
            continue
        compiled = torchproof.compile(whole, **{"backend": "eager", name: value})
        assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
        default = inspect.signature(torch.compile).parameters[name].default
        torchproof.compile(whole, **{name: default})


def test_an_argument_that_this_torch_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torchproof.runtime import argument_checks

    monkeypatch.setattr(argument_checks, "_OF_TORCH_COMPILE", {})
    with pytest.raises(torchproof.UserError):
        torchproof.compile(whole, name="tower")


# -- kinds of models -------------------------------------------------------------------

MODELS: dict[str, Callable[[], Any]] = {
    "function": lambda: whole,
    "partial": lambda: functools.partial(torch.add, 1.0),
    "object": Callable_,
    "method": lambda: Callable_().method,
    "builtin": lambda: torch.sin,
    "module": net,
    "data parallel": lambda: nn.DataParallel(net()),
    "traced": lambda: torch.jit.trace(net(), torch.ones(2, 4)),
    "compiled module": lambda: torch.compile(net(), backend="eager"),
    "compiled in place": compiled_in_place,
    "compiled function": lambda: torch.compile(whole, backend="eager"),
    "compiled by us": lambda: torchproof.compile(net(), backend="eager"),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_models_of_every_kind_answer_as_with_torch(kind: str) -> None:
    x = torch.ones(2, 4)
    answers = []
    for compiler in COMPILERS:
        compiled = compiler(MODELS[kind](), backend="eager")
        answers.append([compiled(x), compiled(x)])
    torch.testing.assert_close(*answers)
    status = torchproof.status(compiled)
    assert status.calls == 2 and status.fallbacks == ()
    assert status.compiled_calls == (0 if kind == "traced" else 2)


def test_data_parallel_stays_itself() -> None:
    wrapped = nn.DataParallel(net())
    compiled = torchproof.compile(wrapped, backend="eager")
    assert compiled is wrapped
    assert all(name.startswith("module.") for name in compiled.state_dict())


def test_decorators_with_and_without_arguments() -> None:
    @torchproof.compile
    def plain(x: Tensor) -> Tensor:
        return x + 1

    @torchproof.compile(fullgraph=True, backend="eager")
    def strict(x: Tensor) -> Tensor:
        return breaks(x)

    assert torchproof.status(plain).calls == 0
    with pytest.raises(torch._dynamo.exc.Unsupported):
        strict(torch.ones(2))


# -- disable ---------------------------------------------------------------------------


def test_disable_returns_the_model_itself() -> None:
    for model in (net(), whole, nn.DataParallel(net())):
        assert torchproof.compile(model, disable=True) is model
        assert torchproof.compile(disable=True, fullgraph=True)(model) is model
    assert "forward" not in torchproof.compile(net(), disable=True).__dict__
    model = torchproof.compile(net(), disable=False, backend="eager")
    assert torchproof.status(model).strategy == "full"


# -- fullgraph -------------------------------------------------------------------------


def items(x: Tensor) -> Tensor:
    return x * x.sum().item()  # fullgraph captures it, and a break is the default


@pytest.mark.parametrize("train", [False, True])
def test_fullgraph_raises_at_a_break_as_torch_does(train: bool) -> None:
    errors = []
    for compiler in COMPILERS:
        compiled = compiler(breaks, fullgraph=True, backend="eager")
        for _ in range(2):  # at each call
            with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
                compiled(torch.ones(2, requires_grad=train))
        errors.append(str(caught.value).splitlines()[0])
    assert errors[0] == errors[1]
    status = torchproof.status(compiled)
    assert (status.compiled_calls, status.fallbacks) == (0, ())


def test_fullgraph_without_a_break_compiles() -> None:
    for function in (whole, items):
        compiled = torchproof.compile(function, fullgraph=True, backend="eager")
        assert torch.equal(compiled(torch.ones(2)), function(torch.ones(2)))
        status = torchproof.status(compiled)
        assert (status.graph_breaks, status.graphs, status.fallbacks) == (0, 1, ())


@pytest.mark.parametrize("how", [{"verify": "first"}, {"strategy": "full:fullgraph"}])
def test_no_other_argument_hides_the_break(how: dict[str, Any]) -> None:
    compiled = torchproof.compile(
        breaks, **({"fullgraph": True, "backend": "eager"} | how)
    )
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(torch.ones(2))


def test_the_strategy_alone_asks_for_it_too() -> None:
    compiled = torchproof.compile(breaks, strategy="full:fullgraph", backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(torch.ones(2))


def test_a_break_in_the_background_is_raised_by_a_later_call() -> None:
    compiled = torchproof.compile(breaks, fullgraph=True, wait=False, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        for _ in range(1000):
            compiled(torch.ones(2))
            while torchproof.status(compiled).pending:
                pass


def test_a_backend_that_fails_still_falls_back_with_fullgraph() -> None:
    def fails(gm: Any, inputs: Any) -> Any:
        raise RuntimeError("planted")

    compiled = torchproof.compile(whole, fullgraph=True, backend=fails)
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    kinds = [item.kind for item in torchproof.status(compiled).fallbacks]
    assert kinds == ["compile error"]


# -- recompiles ------------------------------------------------------------------------


def test_the_recompile_limit_raises_with_fullgraph() -> None:
    for compiler in COMPILERS:
        compiled = compiler(
            whole, fullgraph=True, backend="eager", dynamic=False, recompile_limit=2
        )
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            for size in range(2, 9):
                compiled(torch.ones(size))


def test_the_recompile_limit_is_that_of_torch_by_default() -> None:
    with torch._dynamo.config.patch(recompile_limit=2):
        compiled = torchproof.compile(whole, backend="eager", dynamic=False)
        for size in range(2, 9):
            compiled(torch.ones(size))
    assert [item.kind for item in torchproof.status(compiled).fallbacks] == ["storm"]


def test_isolated_models_share_no_code() -> None:
    for isolate, shares in ((False, True), (True, False)):
        models = [
            torchproof.compile(net(), backend="eager", isolate_recompiles=isolate)
            for _ in range(2)
        ]
        for model in models:
            model(torch.ones(2, 4))
        assert torchproof.status(models[1]).shares_code is shares


# -- what the backend gets -------------------------------------------------------------


def test_a_backend_gets_mode_and_options_as_from_torch() -> None:
    for given in ({"mode": "fast"}, {"options": {"a": 1}}, {"mode": "default"}, {}):
        got = []

        def backend(gm: Any, inputs: Any, got: list[Any] = got, **more: Any) -> Any:
            got.append(more)
            return gm.forward

        for compiler in COMPILERS:
            compiler(whole, backend=backend, **given)(torch.ones(2))
        assert got[0] == got[1] and len(got) == 2


def test_the_guard_filter_is_obeyed() -> None:
    for compiler in COMPILERS:
        options = {"guard_filter_fn": lambda entries: [False for _ in entries]}
        compiled = compiler(
            lambda x, flag: x + 1 if flag else x, backend="eager", options=options
        )
        assert compiled(torch.ones(1), True).item() == 2
        assert compiled(torch.ones(1), False).item() == 2  # not guarded


def test_the_default_backend_is_that_of_torch() -> None:
    if not hasattr(torch.compiler, "set_default_backend"):
        pytest.skip("this torch has none")
    seen = []

    def backend(gm: Any, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    torch.compiler.set_default_backend(backend)
    try:
        torchproof.compile(whole)(torch.ones(2))
    finally:
        torch.compiler.set_default_backend(None)
    assert len(seen) == 1


@pytest.mark.skipif(
    "shapes_spec" not in inspect.signature(torch.compile).parameters,
    reason="this torch has no shapes_spec",
)
def test_a_specification_of_shapes_is_obeyed() -> None:
    from torch.fx.experimental import dynamic_spec

    for compiler in COMPILERS:
        graphs: list[Any] = []

        def backend(gm: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(gm)
            return gm.forward

        spec = dynamic_spec.ParamsSpec(
            {"x": dynamic_spec.TensorSpec([dynamic_spec.ShapeVar("n")])}
        )
        compiled = compiler(whole, backend=backend, shapes_spec=spec)
        for size in (3, 5, 7):
            compiled(torch.ones(size))
        assert len(graphs) == 1


def test_an_example_does_not_hide_the_break() -> None:
    compiled = torchproof.compile(
        breaks, fullgraph=True, backend="eager", example=(torch.ones(2),)
    )
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(torch.ones(2))
