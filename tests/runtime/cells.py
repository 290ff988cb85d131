"""One cell of the fault matrix: a fault, a situation, and all that must hold after it.

`run` forks a process for the cell, as what goes wrong in it may stay wrong, and says
what did not hold. In that process a model is called beside a copy that was never
compiled, and whatever a call changes is compared.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import multiprocessing
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch._inductor.compile_fx
from faults import FAULTS, SITUATIONS, Fault, Situation
from injections import HEALTHY, Injection
from torch import nn

import torchproof.runtime
from torchproof.runtime import jobs, worker

PRELOADED = ["warm_torch", "torchproof.child", "cells"]
MARK = "TORCHPROOF_CELL"
CELL_PATIENCE_S = 400.0
# A process that is forked ends without its own last words; its child notices.
END_PATIENCE_S = 5.0
# What may stay: the keeper of an idle child, a progress bar's and torch's own pool.
KNOWN_THREADS = ("torchproof-child", "tqdm_monitor", "ThreadPoolExecutor-")


@dataclass(frozen=True)
class Outcome:
    """`wrong` says what did not hold; `seconds` is what the call that was hit took."""

    fault: str
    situation: str
    wrong: tuple[str, ...]
    seconds: float | None = None
    told: str = ""

    @property
    def ok(self) -> bool:
        return not self.wrong


# -- the model -------------------------------------------------------------------------


class Model(nn.Module):
    """Changes whatever a model can: buffers, an input, a list, random numbers."""

    def __init__(self, *, draws: bool) -> None:
        super().__init__()
        self.draws = draws
        self.inner = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("count", torch.zeros(()))
        self.seen: list[int] = []
        self.op = HEALTHY

    def forward(self, x: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        self.count.add_(1)
        hidden = self.op(self.norm(self.inner(x)))
        scratch.add_(hidden.detach())
        return hidden.relu() + (torch.rand_like(hidden) if self.draws else 0)


@dataclass
class Step:
    """A call of the model, and everything that it has changed."""

    answer: torch.Tensor
    input_grad: torch.Tensor | None
    scratch: torch.Tensor
    state: dict[str, torch.Tensor]
    grads: dict[str, torch.Tensor | None]
    random: torch.Tensor
    seen: int
    seconds: float


def take_step(model: Model, x: torch.Tensor, train: bool, between: Any) -> Step:
    model.seen.clear()
    model.zero_grad()
    x = x.clone().requires_grad_(train)
    scratch = torch.zeros(len(x), 8)
    begin = time.monotonic()
    with torch.set_grad_enabled(train):
        answer = model(x, scratch)
        if train:
            between()
            (answer * torch.arange(8.0)).sum().backward()
    return Step(
        answer.detach(),
        x.grad,
        scratch,
        {name: value.clone() for name, value in model.state_dict().items()},
        {name: value.grad for name, value in model.named_parameters()},
        torch.get_rng_state(),
        len(model.seen),
        time.monotonic() - begin,
    )


class Pair:
    """The compiled model and its twin, which is called the same way."""

    def __init__(
        self, fault: Fault, situation: Situation, injection: Injection
    ) -> None:
        torch.manual_seed(0)
        self.model, self.situation = Model(draws=fault.draws), situation
        self.model.train(situation.train)
        self.twin = copy.deepcopy(self.model)
        self.wrong: list[str] = []
        self.injection = injection
        arguments: dict[str, Any] = {"backend": fault.backend, **injection.arguments}
        if fault.backend == "inductor":
            # So that compiled code draws the numbers that eager draws.
            arguments["options"] = {"fallback_random": True}
        torchproof.runtime.compile(
            self.model,
            strategy="full",
            deadline=fault.deadline_s,
            **fault.arguments,
            **arguments,
        )

    @property
    def status(self) -> Any:
        return torchproof.runtime.status(self.model)

    def call(self, rows: int, op: Any, *, what: str) -> Step:
        x = torch.randn(rows, 8)
        self.model.op = self.twin.op = op
        before, train = torch.get_rng_state(), self.situation.train
        step = take_step(self.model, x, train, self.injection.after_forward)
        torch.set_rng_state(before)
        like = take_step(self.twin, x, train, lambda: None)
        for name in ("answer", "input_grad", "scratch", "state", "grads"):
            self._compare(f"{what}: {name}", getattr(step, name), getattr(like, name))
        if not torch.equal(step.random, like.random):
            self.wrong.append(f"{what}: other random numbers were drawn")
        if step.seen != like.seen:
            self.wrong.append(f"{what}: side effects happened {step.seen} times")
        return step

    def _compare(self, what: str, actual: Any, expected: Any) -> None:
        try:
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            first = str(error).strip().splitlines()[0]
            self.wrong.append(f"{what} differs from eager's: {first}")


# -- what a cell checks ----------------------------------------------------------------


def work_in_cell(fault: Fault, situation: Situation, folder: Path) -> Outcome:
    """The whole cell, in a process of its own."""
    injection = fault.way(folder)
    compile_plainly()  # loads what is loaded late, so that no deadline is spent on it
    pair = Pair(fault, situation, injection)
    wrong = pair.wrong
    if fault.uses_child:
        start_child()
    if situation.later:
        # As many as are not verified, so that the call that is hit is.
        for _ in range(fault.arguments.get("verify", 1)):
            pair.call(4, HEALTHY, what="healthy call")
        if pair.status.fallbacks or not pair.status.compilations:
            return Outcome(*_names(fault, situation), (f"healthy: {pair.status}",))
    surroundings = Surroundings()
    bystander = Bystander(injection) if situation.thread == "two" else None
    injection.arm()
    step = in_thread(
        functools.partial(pair.call, 6, injection.op, what="call that is hit"),
        other=situation.thread == "other",
    )
    if bystander is not None:
        wrong += bystander.end()
    wrong += check_status(fault, injection, pair)
    wrong += check_calls_after(fault, situation, pair)
    wrong += surroundings.left(fault)
    told = str(pair.status)
    return Outcome(*_names(fault, situation), tuple(wrong), step.seconds, told)


def _names(fault: Fault, situation: Situation) -> tuple[str, str]:
    return fault.name, situation.name


def start_child() -> None:
    """Waits until the child has loaded torch, which takes a share of the deadline."""
    try:
        jobs.shared_worker().send(b"no pickle", until=time.monotonic() + 300)
    except worker.ChildFailed:
        return


def in_thread(work: Callable[[], Any], *, other: bool) -> Any:
    if not other:
        return work()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()), name="caller")
    thread.start()
    thread.join()
    assert answers, "the thread that called the model died"
    return answers[0]


def check_status(fault: Fault, injection: Injection, pair: Pair) -> list[str]:
    status, wrong = pair.status, []
    if not injection.fired:
        wrong.append("the fault was never reached")
    if fault.kind is not None:
        fitting = [
            item
            for item in status.fallbacks
            if item.kind == fault.kind
            and item.phase == fault.phase
            and fault.words in f"{item.what} {item.why}"
        ]
        if len(fitting) != 1 or len(status.fallbacks) != 1:
            expected = f"{fault.kind}, {fault.phase}, {fault.words!r}"
            wrong.append(f"status has not one reason ({expected}): {status}")
    if bool(status.stuck) is not fault.is_stuck:
        wrong.append(f"stuck threads: {status.stuck}")
    if fault.is_stuck and not all("injections.py" in s.where for s in status.stuck):
        wrong.append(f"stuck elsewhere: {status.stuck}")
    return wrong


def check_calls_after(fault: Fault, situation: Situation, pair: Pair) -> list[str]:
    """What failed is not tried again; what was compiled before still is used."""
    wrong, compile_s = [], pair.status.compile_s
    pair.call(6, pair.injection.op, what="call after it")
    if pair.status.compile_s != compile_s:
        wrong.append("it was tried again")
    if situation.later and fault.kind != "verification":
        compiled = pair.status.compiled_calls
        pair.call(4, HEALTHY, what="call of the first graph")
        if pair.status.compiled_calls != compiled + 1:
            wrong.append(f"the first graph is no longer compiled: {pair.status}")
    return wrong


class Bystander(threading.Thread):
    """Another thread uses what it has compiled, and compiles when the fault strikes."""

    def __init__(self, injection: Injection) -> None:
        super().__init__(name="bystander", daemon=True)
        self._known = torch.compile(lambda x: x.cos() * 2, backend="aot_eager")
        self._known(torch.ones(3))
        self._injection = injection
        self._over = threading.Event()
        self._compiler = threading.Thread(target=self._compile, name="bystander 2")
        self._compiler.daemon = True
        self._calls = 0
        self._wrong: list[str] = []
        self.start()
        self._compiler.start()

    def run(self) -> None:
        x = torch.ones(3)
        while not self._over.wait(0.01):
            if not torch.equal(self._known(x), x.cos() * 2):
                self._wrong = ["a function of another thread answered wrong"]
            self._calls += self._injection.fired

    def _compile(self) -> None:
        while not (self._injection.fired or self._over.wait(0.01)):
            pass
        x = torch.ones(4)
        answer = torch.compile(lambda x: x.tan() + 3, backend="aot_eager")(x)
        if not torch.equal(answer, x.tan() + 3):
            self._wrong = ["what another thread compiled answered wrong"]

    def end(self) -> list[str]:
        self._over.set()
        self.join(30)
        self._compiler.join(30)
        if self.is_alive() or self._compiler.is_alive():
            self._wrong.append("another thread is held up")
        if not self._calls:
            self._wrong.append("another thread could not call while the fault lasted")
        return self._wrong


class Surroundings:
    """The process before the fault, to be found again after it."""

    def __init__(self) -> None:
        self._threads = {thread.name for thread in threading.enumerate()}
        self._switch_interval = sys.getswitchinterval()

    def left(self, fault: Fault) -> list[str]:
        wrong, until = [], time.monotonic() + 3
        while (found := [*strangers(), *self._new_threads(fault)]) and (
            time.monotonic() < until
        ):
            time.sleep(0.05)
        wrong += [f"left behind: {what}" for what in found]
        before = sum(os.times()[:2])
        time.sleep(0.5)
        if sum(os.times()[:2]) - before > 0.3:
            wrong.append("a core is burnt after the call")
        if sys.getswitchinterval() != self._switch_interval:
            wrong.append(f"switch interval left at {sys.getswitchinterval()}")
        return wrong + compile_plainly()

    def _new_threads(self, fault: Fault) -> list[str]:
        names = [thread.name for thread in threading.enumerate()]
        known = (*KNOWN_THREADS, *(["torchproof-forward"] if fault.is_stuck else ()))
        return [
            f"thread {name}"
            for name in names
            if name not in self._threads and not name.startswith(known)
        ]


def compile_plainly() -> list[str]:
    """Whether torch.compile itself still works in this process."""
    x, answers = torch.ones(5), []

    def work() -> None:
        answers.append(torch.compile(lambda x: x.exp() + 1, backend="aot_eager")(x))

    compiler = threading.Thread(target=work, daemon=True)
    compiler.start()
    compiler.join(60)
    if compiler.is_alive():
        return ["torch.compile waits for ever afterwards"]
    right = answers and torch.equal(answers[0], x.exp() + 1)
    return [] if right else ["torch.compile fails afterwards"]


def strangers(mark: str | None = None) -> list[str]:
    """Processes of this cell that should not be there, re-parented ones included."""
    sought, found = mark or os.environ[MARK], []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if process.environ().get(MARK) != sought:
                continue
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        # The one child of a living process waits for further work.
        if mark is not None or "torchproof.runtime.child" not in line:
            found.append(f"process {line[:120]}")
    return found


# -- processes -------------------------------------------------------------------------


def run(fault: str, situation: str, folder: Path, *, grace_s: float) -> Outcome:
    """A cell in a process of its own; `grace_s` is what a call may take beyond."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    mark = uuid.uuid4().hex
    arguments = (fault, situation, folder, mark, theirs)
    process = context.Process(target=_main, args=arguments)
    process.start()
    theirs.close()
    wrong: list[str] = []
    try:
        found = ours.recv() if ours.poll(CELL_PATIENCE_S) else None
        wrong += [] if found else [f"no end after {CELL_PATIENCE_S:g} s"]
    except EOFError:
        process.join(10)
        found, wrong = None, [f"the process died: exit code {process.exitcode}"]
    process.join(20)
    if process.is_alive():
        wrong.append("the process does not end")
        process.kill()
    until = time.monotonic() + END_PATIENCE_S
    while (found_left := strangers(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    wrong += [f"outlives its process: {what}" for what in found_left]
    outcome = found or Outcome(fault, situation, ())
    deadline_s = FAULTS[fault].deadline_s
    if outcome.seconds is not None and outcome.seconds > deadline_s + grace_s:
        wrong.append(f"took {outcome.seconds:.1f} s, deadline {deadline_s:g} s")
    return Outcome(**{**asdict(outcome), "wrong": (*outcome.wrong, *wrong)})


def _main(fault: str, situation: str, folder: Path, mark: str, answer: Any) -> None:
    os.environ[MARK] = mark
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    logging.getLogger("torchproof").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    try:
        found = work_in_cell(FAULTS[fault], SITUATIONS[situation], folder)
    except BaseException:
        found = Outcome(fault, situation, (traceback.format_exc(),))
    answer.send(found)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        done = run(sys.argv[1], sys.argv[2], Path(made), grace_s=2.0)
    print(done.told)
    print(json.dumps(asdict(done) | {"told": ""}, indent=2))
