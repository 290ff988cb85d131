"""Stalls in a served process are recorded, and attributed by number.

Nothing here depends on how fast the machine is: stalls are much longer than services,
and the assertions are about which requests they hit. `test_tail` has what follows for
the tail, with known schedules.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from served_requests import STALLED, LoadRun, work

import torchproof
from torchproof.measure.loadtest import stalls
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.stalls import StallRecorder
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.torch_private import contract, recording_times

STALL_S = 0.35  # far above what a busy machine delays a request
RECOMPILED, COMPILED, COLLECTED, WARNED = range(STALLED, STALLED + 4)


@pytest.fixture
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def slow_backend(graph: Any, inputs: Any) -> Any:
    time.sleep(STALL_S)
    return graph.forward


def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


@pytest.mark.usefixtures("_reset")
def test_stalls_are_attributed_to_the_requests_in_which_they_happen(
    tmp_path: Path,
) -> None:
    """`torchproof.compile` compiles in a helper thread."""
    step = torch.compile(scale, backend=slow_backend)
    model = torchproof.compile(Net(), backend=slow_backend, verify=False)
    step(torch.ones(4, 8))

    def delay_collection(phase: str, facts: dict[str, int]) -> None:
        if phase == "stop":
            time.sleep(STALL_S)

    def answer(number: int) -> None:
        work()
        step(torch.ones(4, 9 if number == RECOMPILED else 8))
        if number == COMPILED:
            model(torch.ones(4, 8))
        elif number == COLLECTED:
            gc.callbacks.insert(0, delay_collection)
            gc.collect()
            gc.callbacks.remove(delay_collection)
        elif number == WARNED:
            logging.getLogger("torchproof").warning("Net: forward runs eager: why")

    run = LoadRun(tmp_path, answer)
    recompile, compilation = run.causes["LT101"], run.causes["LT102"]
    assert recompile.culprits == (RECOMPILED,)
    assert recompile.victims[:5] == tuple(range(STALLED + 1, STALLED + 6))
    assert compilation.culprits == (COMPILED,)
    assert COMPILED + 1 in compilation.victims
    [stall] = [e for e in run.of_kind("compile") if e.request == RECOMPILED]
    assert stall.function is not None and stall.function.endswith("scale")
    assert stall.file is not None and stall.line is not None
    guard = {"cause": "size", "source": "x", "dim": 1, "expected": "8", "actual": "9"}
    assert guard.items() <= stall.data["guard"].items()
    waited = [each for each in run.of_kind("compile") if each.request == COMPILED]
    collected = max(run.of_kind("gc"), key=lambda each: each.end_s - each.begin_s)
    assert (collected.data["generation"], collected.request) == (2, COLLECTED)
    assert collected.function is not None and "answer" in collected.function
    for found in ([stall], waited, [collected]):
        assert max(each.end_s - each.begin_s for each in found) >= STALL_S
    [fallback] = run.of_kind("fallback")
    assert fallback.request == WARNED and "why" in fallback.text


def log_of(folder: Path, *services: tuple[float, float]) -> RequestLog:
    """Requests that this thread began and ended at these times, from 10 s on."""
    count = len(services) + 1
    log = RequestLog(folder / "log", Timetable((0.0,) * count, (0,) * count, 1.0))
    log.begin_at(10.0)
    for number, times in enumerate(services):
        log.begin[number], log.end[number] = times
    return log


@pytest.mark.parametrize(
    ("begin", "times"), [(11.0, [(1.0, 1.5)]), (9.75, [(0.0, 0.25)]), (9.0, [])]
)
def test_times_count_from_the_origin(
    tmp_path: Path, begin: float, times: list[tuple[float, float]]
) -> None:
    recorder = StallRecorder()
    recorder.add("gc", "a collection", begin, end=begin + 0.5)
    found = recorder.stalls(log_of(tmp_path))
    assert [(each.begin_s, each.end_s) for each in found] == times


def test_a_stall_belongs_to_the_request_of_its_thread_at_that_time(
    tmp_path: Path,
) -> None:
    """Requests 1 and 2 are a batch."""
    log = log_of(tmp_path, (0.0, 0.3), (0.5, 0.9), (0.5, 0.9))
    recorder = StallRecorder()
    for kind, begin, thread in (
        ("gc", 10.1, None),
        ("gc", 10.35, None),
        ("cpu", 10.6, None),
        ("allocator", 10.7, ""),
        ("gc", 10.75, "metrics"),
    ):
        recorder.add(kind, kind, begin, thread, end=begin + 0.05)
    found = [
        (stall.kind, stall.request, "background" in stall.data)
        for stall in recorder.stalls(log)
    ]
    assert found == [
        ("gc", 0, False),
        ("gc", None, False),
        ("cpu", 1, False),
        ("allocator", 1, True),
        ("gc", None, True),
    ]


@pytest.mark.parametrize(
    ("is_logged", "kind"), [(False, "compile"), (True, "fallback")]
)
def test_a_wait_for_another_thread_is_a_compilation_or_a_fallback(
    tmp_path: Path, is_logged: bool, kind: str
) -> None:
    recorder = StallRecorder()
    helper = {"function": "Net.forward"}
    recorder.add("wait", "forward", 10.1, end=10.3)
    recorder.add("compile", "", 10.15, "helper", end=10.25, data=helper)
    if is_logged:
        recorder.add("fallback", "runs eager", 10.31, end=10.31)
    [stall, _] = recorder.stalls(log_of(tmp_path, (0.0, 0.5)))
    assert (stall.kind, stall.request) == (kind, 0)
    assert stall.end_s - stall.begin_s == pytest.approx(0.2)


def test_phases_of_the_compiler_are_inside_the_compilation(tmp_path: Path) -> None:
    from torch._dynamo.utils import dynamo_timed

    def backend(graph: Any, inputs: Any) -> Any:
        with dynamo_timed("compile_fx_inner", phase_name="inductor_compile"):
            time.sleep(0.005)
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(lambda x: x.sin() + 1, backend=backend)
    run = LoadRun(tmp_path, lambda number: step(torch.ones(8)), count=1)
    [whole], [inner] = run.of_kind("compile"), run.of_kind("inductor")
    assert whole.begin_s <= inner.begin_s <= inner.end_s <= whole.end_s
    assert whole.request == inner.request == 0
    assert whole.thread == inner.thread
    assert "guard" not in whole.data and "inductor" not in whole.text


def test_a_recording_of_a_step_is_a_stall(tmp_path: Path) -> None:
    def answer(number: int) -> None:
        with recording_times.announced_step(["8x128"]):
            time.sleep(0.002)

    first, again = LoadRun(tmp_path, answer, count=2).of_kind("cudagraph")
    assert (first.request, again.request) == (0, 1)
    assert not first.data["again"] and again.data["again"]
    assert "8x128" in first.text and first.data["new_shapes"]


def test_a_graph_that_is_recorded_for_another_size_is_recorded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

    ran: list[Any] = []

    def record_function(manager: Any, new_inputs: Any, function_id: Any) -> None:
        ran.append(function_id)

    monkeypatch.setattr(CUDAGraphTreeManager, "record_function", record_function)
    model = object()
    manager = SimpleNamespace(
        ids_to_funcs={
            number: SimpleNamespace(model=model, static_input_idxs=[0])
            for number in (1, 2)
        },
        id_to_compile_id={1: None, 2: "0/0"},
        warmed_up_functions=[1],
        current_node=None,
        roots={},
    )
    seen: list[recording_times.RecordingBegin] = []

    def around(begin: recording_times.RecordingBegin) -> Any:
        seen.append(begin)
        return contextlib.nullcontext()

    inputs = [torch.ones(3), torch.ones(4, 8)]
    with recording_times.tree_recordings(around):
        for function_id in (1, 2):
            CUDAGraphTreeManager.record_function(manager, inputs, function_id)
    assert [begin.again for begin in seen] == [False, True] and ran == [1, 2]
    assert seen[1].shapes == ("4x8",) and seen[1].compile_id == "0/0"
    assert CUDAGraphTreeManager.record_function is record_function


def test_nothing_stays_installed() -> None:
    before = list(gc.callbacks), threading.active_count()
    handlers = list(logging.getLogger("torchproof").handlers)
    with contextlib.suppress(ZeroDivisionError), StallRecorder():
        1 / 0  # noqa: B018
    assert (list(gc.callbacks), threading.active_count()) == before
    assert logging.getLogger("torchproof").handlers == handlers
    with recording_times.announced_step(["8"]) as nothing:
        assert nothing is None


def test_kinds_that_torch_does_not_show_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contract.missing.cache_clear()
    monkeypatch.delattr("torch._dynamo.utils.ChromiumEventLogger.log_event_end")
    with StallRecorder() as recorder:
        pass
    contract.missing.cache_clear()
    for kind in ("compile", "inductor"):
        assert "log_event_end" in recorder.unseen[kind]
    assert "gc" not in recorder.unseen


@pytest.mark.parametrize(
    ("waits", "seconds"), [((2.0, 2.01), [0.01]), ((2.0, 2.0005), []), ((None,), [])]
)
def test_waiting_for_a_cpu_is_what_the_kernel_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    waits: tuple[float | None, ...],
    seconds: list[float],
) -> None:
    counts = iter([waits[0], *waits])
    monkeypatch.setattr(stalls, "_cpu_wait_s", lambda: next(counts))
    run = LoadRun(tmp_path, lambda number: time.sleep(0.02), count=1)
    found = [each.end_s - each.begin_s for each in run.of_kind("cpu")]
    assert found == pytest.approx(seconds)
    assert ("cpu" in run.missing) == (waits == (None,))
