"""Calls that eager rejects, and how `status` accounts for every call."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchproof
from torchproof.torch_private import rejected_arguments

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def ints(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.long)


class Counted:
    """A backend that counts its graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: Any, inputs: Any) -> Any:
        self.graphs += 1
        return gm.forward


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))


REJECTED = {
    "integers": (net(), ints(2, 4)),
    "half": (net(), torch.ones(2, 4, dtype=torch.half)),
    "complex": (net(), torch.ones(2, 4, dtype=torch.cfloat)),
    "shape": (net(), torch.ones(2, 3)),
    "none": (net(), None),
    "text": (net(), "a"),
    "later layer": (nn.Sequential(nn.ReLU(), net()), ints(2, 4)),
    "kernel": (lambda x: F.silu(x + 1), ints(3)),
    "product": (lambda x: (x + 1) @ torch.ones(4, 4), ints(2, 4)),
    "bits": (lambda x: x & 1, torch.ones(2)),
    "large": (nn.Linear(2048, 1024), ints(1, 2048)),
    "dimension": (nn.Conv2d(1, 1, 1), torch.ones(2, 2)),
}


@pytest.mark.parametrize("kind", REJECTED)
@pytest.mark.filterwarnings("ignore")
def test_the_error_is_that_of_eager_and_nothing_is_compiled(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = REJECTED[kind]
    with pytest.raises(Exception) as expected:
        model(x)
    backend = Counted()
    events: list[str] = []
    compiled = torchproof.compile(
        model, backend=backend, on_event=lambda kind, _: events.append(kind)
    )
    for _ in range(2):
        with pytest.raises(type(expected.value)) as raised:
            compiled(x)
        assert str(raised.value) == str(expected.value)
    status = torchproof.status(compiled)
    assert backend.graphs == 0
    assert (status.compilations, status.fallbacks, events) == ((), (), [])
    assert status.eager_calls == {"raised": 2} and status.calls == 2
    assert not [r for r in caplog.records if r.name == "torchproof"]


def test_a_rejected_call_does_not_keep_others_from_compiling() -> None:
    model = torchproof.compile(net(), backend=Counted())
    for x in (ints(2, 4), torch.ones(2, 4), torch.ones(2, 3), torch.ones(2, 4)):
        with contextlib.suppress(RuntimeError):
            model(x)
    status = torchproof.status(model)
    assert status.compiled_calls == 2 and status.eager_calls == {"raised": 2}
    assert status.state == "compiled" and status.fallbacks == ()


def test_nothing_is_compiled_in_the_background_for_a_call_that_raised() -> None:
    backend = Counted()
    model = torchproof.compile(net(), backend=backend, wait=False)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            model(ints(2, 4))
        while torchproof.status(model).pending:
            time.sleep(0.01)
    status = torchproof.status(model)
    assert backend.graphs <= 1  # if the error came after the trace
    assert (status.compilations, status.fallbacks) == ((), ())
    assert status.eager_calls == {"raised": 3}


ACCEPTED = {
    "net": (net(), torch.ones(2, 4)),
    "embedding": (nn.Sequential(nn.Embedding(5, 4), net()), ints(3)),
    "division": (lambda x: x // x, ints(3)),
    "index": (lambda x: torch.ones(1)[x - 1], ints(3)),
    "mixed": (lambda x: x * torch.ones(3), ints(3)),
    "view": (lambda x: x.view(-1) + 1, ints(3, 2)),
    "normalised": (nn.BatchNorm1d(4), torch.ones(2, 4)),
    "mask": (lambda x: torch.where(x > 0, x, 0.0), torch.ones(3)),
    "heads": (lambda x: F.one_hot(x, 4).float().softmax(-1), ints(3)),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_eager_accepts_is_compiled_at_the_first_call(kind: str) -> None:
    model, x = ACCEPTED[kind]
    compiled = torchproof.compile(model, backend=Counted())
    compiled(x)
    status = torchproof.status(compiled)
    assert (status.compiled_calls, status.eager_calls) == (1, {})


def test_autocast_decides_which_types_are_accepted() -> None:
    compiled = torchproof.compile(net(), backend=Counted())
    with torch.autocast("cpu", torch.bfloat16):
        compiled(torch.ones(2, 4, dtype=torch.bfloat16))
    assert torchproof.status(compiled).compiled_calls == 1


def test_trying_operations_draws_no_random_numbers() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x * torch.rand_like(x, dtype=torch.float)

    torch.manual_seed(0)
    expected = noisy(ints(3))
    torch.manual_seed(0)
    assert torch.equal(torchproof.compile(noisy, backend=Counted())(ints(3)), expected)


def test_a_wrong_suspicion_costs_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rejected_arguments, "error_of", lambda gm: RuntimeError("planted")
    )
    compiled = torchproof.compile(net(), backend=Counted())
    for _ in range(3):
        compiled(torch.ones(2, 4))
    status = torchproof.status(compiled)
    assert status.compiled_calls == 2 and sum(status.eager_calls.values()) == 1


def test_a_graph_that_fails_in_a_call_that_raises_is_compiled_later() -> None:
    fails = [True]

    def backend(gm: Any, inputs: Any) -> Any:
        if fails[0]:
            raise RuntimeError("planted")
        return gm.forward

    def checked(x: Tensor, limit: Tensor) -> Tensor:
        return torch.linalg.cholesky(x) + limit  # raises for some values

    compiled = torchproof.compile(checked, backend=backend)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(-torch.eye(2), torch.ones(1))
    assert torchproof.status(compiled).fallbacks == ()
    fails[0] = False
    compiled(torch.eye(2), torch.ones(1))
    assert torchproof.status(compiled).compiled_calls == 1


# -- every call has a reason -----------------------------------------------------------


def assert_adds_up(model: Any) -> Any:
    status = torchproof.status(model)
    assert status.compiled_calls + sum(status.eager_calls.values()) == status.calls
    assert status.to_json()["eager_calls"] == dict(status.eager_calls)
    return status


def run(model: Any, *inputs: Any) -> None:
    for each in inputs:
        with contextlib.suppress(Exception):
            model(each)


def fails(gm: Any, inputs: Any) -> Any:
    raise RuntimeError("planted")


def test_reasons_add_up_to_all_calls() -> None:
    x = torch.ones(2, 4)
    cases: list[tuple[dict[str, Any], dict[str, int]]] = [
        ({"backend": "eager"}, {}),
        ({"backend": "eager", "verify": "first"}, {"verified": 1}),
        ({"backend": fails}, {"fallback": 3}),
        ({"strategy": "eager"}, {"strategy": 3}),
        ({"backend": "eager", "deadline": 1e-9}, {"fallback": 3}),
    ]
    for how, expected in cases:
        model = torchproof.compile(net(), **how)
        run(model, x, x, x)
        assert assert_adds_up(model).eager_calls == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_reasons_of_other_calls() -> None:
    x = torch.ones(2, 4)
    model = torchproof.compile(net(), backend="eager", wait=False)
    run(model, x)
    assert assert_adds_up(model).eager_calls == {"compiling": 1}
    model = torchproof.compile(net(), backend="eager")
    with torch.compiler.set_stance("force_eager"):
        run(model, x)
    run(model, x)
    assert assert_adds_up(model).eager_calls == {"disabled": 1}
    model = torchproof.compile(lambda x: x, backend="eager")
    run(model, 1, 2)
    assert_adds_up(model)
    model = torchproof.compile(net(), backend="eager")
    torch.jit.trace(model, x)
    assert set(assert_adds_up(model).eager_calls) <= {"traced"}
    model = torchproof.compile(net(), backend="eager", dynamic=False, recompile_limit=1)
    run(model, *(torch.ones(n, 4) for n in range(2, 6)))
    assert set(assert_adds_up(model).eager_calls) == {"fallback"}


def test_the_log_says_which_calls_run_eager(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "torchproof")
    model = torchproof.compile(net(), backend="eager", dynamic=False, recompile_limit=1)
    run(model, *(torch.ones(n, 4) for n in (2, 3, 4, 2)))
    [item] = torchproof.status(model).fallbacks
    assert (item.kind, item.partial) == ("storm", True)
    model = torchproof.compile(net(), backend=fails)
    run(model, torch.ones(2, 4))
    assert not torchproof.status(model).fallbacks[0].partial
    assert len([r for r in caplog.records if r.name == "torchproof"]) == 2
