"""What goes wrong while compiling costs a model its speed, and nothing else.

Faults of this process; benchmarks/reliability.py has those of compilers, files, limits
and signals, each in a process of its own.
"""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cells
import injections
import pytest
import torch
from cells import Model, take_step
from injections import HEALTHY, double
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import torchproof

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo hides it where warnings are shown, not where they are errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]
HANG_S = 0.7  # the deadline of what never ends
GRACE_S = 60.0  # on a machine that is busy with other things as well


@torch.library.custom_op("torchproof_faults::bare", mutates_args=())
def bare(x: Tensor) -> Tensor:
    """It has no fake kernel."""
    return x * 2


bare.register_autograd(lambda ctx, grad: grad * 2)


def endless(x: Tensor) -> Tensor:
    """Nothing in eager; Dynamo traces it for ever."""
    if torch.compiler.is_dynamo_compiling():
        for _ in range(10**9):
            x = x + 1
    return x * 2


def fail() -> None:
    raise ValueError("planted")


def overwrite_and_fail(gm: Any) -> Any:
    def run(*args: Any) -> Any:
        torch.rand(3)
        with torch.no_grad():
            for value in args:
                if isinstance(value, Tensor):
                    value.detach().zero_()
        raise torch.OutOfMemoryError("planted")

    return run


def miscompile(gm: Any) -> Any:
    for node in gm.graph.nodes:
        if node.target is torch.sin:
            node.target = torch.cos
    gm.recompile()
    return gm.forward


@dataclass(frozen=True)
class Fault:
    """`backend` compiles once the fault is armed; `kernel` runs in a fake kernel."""

    kind: str
    backend: Callable[[Any], Any] | None = None
    kernel: Callable[[], None] = lambda: None
    op: Callable[[Tensor], Tensor] = HEALTHY
    deadline_s: float = 300.0
    verify: bool = False


FAULTS = {
    "tracing never ends": Fault("deadline", op=endless, deadline_s=HANG_S),
    "tracing raises": Fault("compile error", kernel=fail, op=double),
    "operator without fake kernel": Fault("compile error", op=bare),
    "backend raises": Fault("compile error", backend=lambda gm: fail()),
    "first run fails, inputs overwritten": Fault("first run", overwrite_and_fail),
    "miscompile": Fault("verification", miscompile, verify=True),
}
ALL = ("inference", "training", "recompile", "other thread", "wait=False")
# Every fault in training and in the background, and every situation with two faults;
# one deadline holds for all compilations of a model, so that none hangs later.
SITUATIONS = {
    "tracing never ends": ("training", "other thread", "wait=False"),
    "tracing raises": ("training", "recompile", "wait=False"),
    "operator without fake kernel": ("training", "wait=False"),
    "backend raises": ("training", "wait=False"),
    "first run fails, inputs overwritten": ALL,
    # The calls that are compared in the background are not those that are hit.
    "miscompile": ("inference", "training", "recompile"),
}
CELLS = [(fault, each) for fault, names in SITUATIONS.items() for each in names]


def assert_same_call(model: Model, twin: Model, rows: int, train: bool) -> None:
    """Both return the same and change the same."""
    x, state = torch.randn(rows, 8), torch.get_rng_state()
    found, _ = take_step(model, x, train, lambda: None)
    torch.set_rng_state(state)
    expected, _ = take_step(twin, x, train, lambda: None)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("fault", "situation"), CELLS)
def test_a_fault_costs_nothing_but_speed(
    fault: str, situation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, is_armed = FAULTS[fault], [False]
    train = situation not in ("inference", "recompile")

    def backend(gm: Any, inputs: Any) -> Any:
        if row.backend is not None and is_armed[0]:
            return row.backend(gm)
        return gm.forward

    # Other random numbers are no miscompilation.
    plain = Model(recorded=row.verify).train(train)
    model = torchproof.compile(
        copy.deepcopy(plain),
        backend=backend,
        deadline=row.deadline_s,
        verify=2 if row.verify else False,
        wait=situation != "wait=False",
    )
    if situation == "recompile":
        for _ in range(2 if row.verify else 1):
            assert_same_call(model, plain, 3, train)
        assert torchproof.status(model).compilations
    is_armed[0] = True
    model.op = plain.op = row.op
    monkeypatch.setitem(injections.deeds, "fake kernel", row.kernel)
    began = time.monotonic()

    def call_twice() -> None:
        for _ in range(2):
            assert_same_call(model, plain, 5, train)

    if situation == "other thread":
        with ThreadPoolExecutor(1) as pool:
            pool.submit(call_twice).result()
    else:
        call_twice()
    tries = 12 if situation == "wait=False" else 0
    while tries and not torchproof.status(model).fallbacks:
        while torchproof.status(model).pending:
            time.sleep(0.02)
        call_twice()
        tries -= 1
    assert time.monotonic() - began < 2 * row.deadline_s + GRACE_S
    status = torchproof.status(model)
    assert {item.kind for item in status.fallbacks} == {row.kind}, status
    if situation == "recompile" and not row.verify:  # other code is still used
        model.op = plain.op = HEALTHY
        before = status.compiled_calls
        assert_same_call(model, plain, 3, train)
        assert torchproof.status(model).compiled_calls == before + 1


def test_overlapping_inputs_are_put_back_after_a_first_run_that_fails() -> None:
    def fails_after_running(graph: Any, inputs: Any) -> Any:
        def run(args: list[Any]) -> Any:
            graph(*args)
            raise RuntimeError("planted")

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def writes_to_a_view(left: Tensor, right: Tensor) -> Tensor:
        before = left.sum()
        right.add_(1)
        return before + right.sum()

    backend = aot_autograd(
        fw_compiler=fails_after_running, keep_inference_input_mutations=True
    )
    memory, twin = torch.arange(10.0), torch.arange(10.0)
    compiled = torchproof.compile(writes_to_a_view, backend=backend)
    with torch.no_grad():
        answer = compiled(memory[:6], memory[2:8])
    assert torch.equal(answer, writes_to_a_view(twin[:6], twin[2:8]))
    assert torch.equal(memory, twin)
    assert torchproof.status(compiled).fallbacks[0].kind == "first run"


def test_inputs_are_not_kept_after_a_missed_deadline() -> None:
    compiled = torchproof.compile(endless, backend="eager", deadline=HANG_S)
    x = torch.ones(2)
    reference = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        compiled(x)
        del x
        assert reference() is None
    finally:
        gc.enable()


class Raised(Exception):
    """What a signal handler of the user's raises."""


def test_what_a_signal_handler_raises_reaches_the_caller() -> None:
    may_go_on = threading.Event()

    def backend(graph: Any, inputs: Any) -> Any:
        if not may_go_on.is_set():
            os.kill(os.getpid(), signal.SIGUSR2)
            may_go_on.wait()
        return graph.forward

    def handler(*_: object) -> None:
        may_go_on.set()
        raise Raised

    compiled = torchproof.compile(lambda x: x * 2, backend=backend)
    previous = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(Raised):
            compiled(torch.ones(2))
    finally:
        signal.signal(signal.SIGUSR2, previous)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    status = torchproof.status(compiled)
    assert (len(status.compilations), status.fallbacks) == (1, ())


# -- the matrix that benchmarks/reliability.py runs ------------------------------------


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("fault", "situation"),
    [
        ("an operator waits for the device during capture", "reduce-overhead"),
        ("an operator waits for the device during capture", "graph"),
        ("another thread waits for the captured stream", "reduce-overhead, training"),
        ("another thread waits for the captured stream", "graph, training"),
        ("ptxas dies by SIGSEGV", "recompile"),
        ("illegal access in the first run", "inference"),
    ],
)
def test_a_fault_on_a_gpu_is_survived(
    fault: str, situation: str, tmp_path: Path
) -> None:
    (tmp_path / "cell").mkdir()
    outcome = cells.run(
        fault, situation, tmp_path / "cell", grace_s=GRACE_S, device="cuda"
    )
    assert outcome.ok, "\n".join(outcome.wrong)


def test_a_fault_that_was_not_reached_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = ("child killed by SIGKILL", "inference")
    never = cells.Outcome(*cell, (cells.NOT_REACHED,), 1.0)
    monkeypatch.setattr(cells, "_forked", lambda *names, **options: never)
    assert not cells.run(*cell, tmp_path, grace_s=2.0).ok
