"""One cell of the fault matrix: a fault, a situation, and all that must hold after it.

`run` forks a process for the cell, as what goes wrong in it may stay wrong, and says
what did not hold. In that process a model is called beside a copy that was never
compiled, and whatever a call changes is compared.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx
from faults import AGES_S, FAULTS, SITUATIONS, Fault, Situation
from injections import HEALTHY, Injection
from surroundings import MARK, Bystander, Surroundings, compile_plainly, strangers
from torch import nn

import torchproof.runtime.production
from torchproof.runtime import codegen_worker, compile_job

PRELOADED = ["warm_torch", "torchproof.observe.child", "cells"]
NOT_REACHED = "the fault was never reached"
CELL_PATIENCE_S = 400.0
# A process that is forked ends without its own last words; its child notices.
END_PATIENCE_S = 5.0
BACKGROUND_PATIENCE_S = 20.0
FORK_PATIENCE_S = 60.0
CHILD_PATIENCE_S = 300.0
SETTLING_CALLS = 12


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
        self.factor, self.label = 1, ""

    def forward(self, x: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        self.count.add_(1)
        hidden = self.op(self.norm(self.inner(x)))
        hidden = hidden * (self.factor + len(self.label))
        scratch.add_(hidden.detach())
        return hidden.relu() + (torch.rand_like(hidden) if self.draws else 0)


@dataclass
class Step:
    """A call of the model, and everything that it has changed.

    `seconds` are those of the forward or of the backward, whichever took longer: both
    may compile, and each has a deadline of its own.
    """

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
    times = [time.monotonic()]
    with torch.set_grad_enabled(train):
        answer = model(x, scratch)
        times.append(time.monotonic())
        if train:
            between()
            (answer * torch.arange(8.0)).sum().backward()
            times.append(time.monotonic())
    return Step(
        answer.detach(),
        x.grad,
        scratch,
        {name: value.clone() for name, value in model.state_dict().items()},
        {name: value.grad for name, value in model.named_parameters()},
        torch.get_rng_state(),
        len(model.seen),
        max(end - begin for begin, end in itertools.pairwise(times)),
    )


class Pair:
    """The compiled model and its twin, which is called the same way."""

    def __init__(
        self, fault: Fault, situation: Situation, injection: Injection
    ) -> None:
        torch.manual_seed(0)
        self.model, self.situation = Model(draws=_draws(fault, situation)), situation
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
            deadline=AGES_S,
            wait=situation.wait,
            **fault.arguments,
            **arguments,
        )

    @property
    def _engine(self) -> Any:
        return torchproof.runtime.compiled_forward_of(self.model).engine

    def set_deadline(self, seconds: float) -> None:
        """What compiled well before had all the time it needed."""
        self._engine.options = replace(self._engine.options, deadline_s=seconds)

    @property
    def is_compiling(self) -> bool:
        return bool(self._engine.pending)

    def wait_for_background(self, fault: Fault) -> None:
        """Waits until nothing is compiled in the background."""
        until = time.monotonic() + fault.deadline_s + BACKGROUND_PATIENCE_S
        while self.is_compiling and time.monotonic() < until:
            time.sleep(0.05)
        if self.is_compiling:
            self.wrong.append("the background still compiles after the deadline")

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
        shared = self.situation.thread == "two"  # and set back by the other thread
        if not shared and not torch.equal(step.random, like.random):
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
    if injection.fills_cache:
        in_fork(functools.partial(fill_cache, fault, situation, injection))
    compile_plainly()  # loads what is loaded late, so that no deadline is spent on it
    pair = Pair(fault, situation, injection)
    wrong = pair.wrong
    if fault.uses_child:
        start_child(situation)
    if situation.later:
        # As many as are not verified, so that the call that is hit is.
        for _ in range(fault.arguments.get("verify", 1)):
            pair.call(4, HEALTHY, what="healthy call")
        if pair.status.fallbacks or not pair.status.compilations:
            return Outcome(*_names(fault, situation), (f"healthy: {pair.status}",))
    surroundings = Surroundings()
    bystander = Bystander(injection) if situation.thread == "two" else None
    injection.arm()
    pair.set_deadline(fault.deadline_s)
    work = functools.partial(call_hit, fault, injection, pair)
    seconds = in_thread(work, other=situation.thread == "other")
    if bystander is not None:
        wrong += bystander.end()
    wrong += check_status(fault, injection, pair)
    wrong += check_calls_after(fault, situation, pair)
    wrong += injection.wrong_afterwards()
    injection.disarm()
    wrong += check_fork(fault, pair)
    wrong += surroundings.left(stuck=fault.is_stuck)
    told = str(pair.status)
    return Outcome(*_names(fault, situation), tuple(wrong), seconds, told)


def _draws(fault: Fault, situation: Situation) -> bool:
    """torch.compile in another thread sets the one generator of all threads back."""
    return fault.draws and situation.thread != "two"


def _names(fault: Fault, situation: Situation) -> tuple[str, str]:
    return fault.name, situation.name


def call_hit(fault: Fault, injection: Injection, pair: Pair) -> float:
    """The seconds of the longest call."""
    longest = 0.0
    for number in range(fault.calls):
        for model in (pair.model, pair.twin):
            injection.change(model, number)
        step = pair.call(
            injection.rows(number), injection.op, what=f"call {number} that is hit"
        )
        longest = max(longest, step.seconds)
    if not pair.situation.wait:
        if longest >= fault.deadline_s:
            pair.wrong.append(f"a call waited for the compiler: {longest:.1f} s")
        settle(fault, pair)
    return longest


def settle(fault: Fault, pair: Pair) -> None:
    """Calls until nothing is compiled any more: functions, then those they call."""
    rows = pair.injection.rows(fault.calls - 1)
    for number in range(SETTLING_CALLS):
        pair.wait_for_background(fault)
        compile_s = pair.status.compile_s
        pair.call(rows, pair.injection.op, what=f"call {number} while it settles")
        if pair.status.compile_s == compile_s and not pair.is_compiling:
            return
    pair.wrong.append(f"after {SETTLING_CALLS} calls it still compiles")


def fill_cache(fault: Fault, situation: Situation, injection: Injection) -> None:
    """Leaves files of the graphs that will be compiled."""
    pair = Pair(fault, situation, injection)
    for rows in (4, 6) if situation.later else (6,):
        pair.call(rows, HEALTHY, what="call that fills the cache")
    assert not pair.wrong and not pair.status.fallbacks, (pair.wrong, pair.status)


def in_fork(work: Callable[[], None]) -> None:
    """What it loads is not loaded here afterwards."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "the cache could not be filled"


def start_child(situation: Situation) -> None:
    """Waits until the child has started, which takes a share of the deadline.

    It loads torch, and tests the C++ compiler meanwhile. With `wait=False` it has idle
    priority, and on a busy machine that test would still run when the cell ends.
    """
    worker = compile_job.worker_of(waits=situation.wait)
    until = time.monotonic() + CHILD_PATIENCE_S
    with contextlib.suppress(codegen_worker.ChildFailed):
        worker.send(b"no pickle", until=until)
    while (running := strangers()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running, f"the child has not started: {running}"


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
    if not injection.was_reached(status):
        wrong.append(NOT_REACHED)
    if fault.kind is not None:
        fitting = [
            item
            for item in status.fallbacks
            if item.kind == fault.kind
            and item.phase == fault.phase
            and fault.words in f"{item.what} {item.why}"
        ]
        if not fitting or len(fitting) != len(status.fallbacks):
            expected = f"{fault.kind}, {fault.phase}, {fault.words!r}"
            wrong.append(f"status has not this reason alone ({expected}): {status}")
    elif status.fallbacks or fault.words not in str(status):
        wrong.append(f"it was not overcome: {status}")
    if bool(status.stuck) is not fault.is_stuck:
        wrong.append(f"stuck threads: {status.stuck}")
    if fault.is_stuck and not all("injections.py" in s.where for s in status.stuck):
        wrong.append(f"stuck elsewhere: {status.stuck}")
    return wrong


def check_calls_after(fault: Fault, situation: Situation, pair: Pair) -> list[str]:
    """What failed is not tried again; what was compiled before still is used."""
    wrong, compile_s = [], pair.status.compile_s
    rows = pair.injection.rows(fault.calls - 1)
    pair.call(rows, pair.injection.op, what="call after it")
    if pair.status.compile_s != compile_s:
        wrong.append("it was tried again")
    if situation.later and fault.kind != "verification":
        compiled = pair.status.compiled_calls
        pair.call(4, HEALTHY, what="call of the first graph")
        if pair.status.compiled_calls != compiled + 1:
            wrong.append(f"the first graph is no longer compiled: {pair.status}")
    return wrong


def check_fork(fault: Fault, pair: Pair) -> list[str]:
    """A fork of the process, as a data loader is one, answers and ends."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            before = len(pair.wrong)
            if torch.backends.cuda.is_built():
                # Such a torch, once it has compiled, runs no backward in a fork.
                pair.situation = replace(pair.situation, train=False)
            rows = pair.injection.rows(fault.calls - 1)
            pair.call(rows, pair.injection.op, what="call in a fork")
            code = 0 if len(pair.wrong) == before else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    until = time.monotonic() + FORK_PATIENCE_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return [] if code == 0 else [f"a fork fails: exit code {code}"]
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return ["a fork hangs"]


# -- processes -------------------------------------------------------------------------


def run(fault: str, situation: str, folder: Path, *, grace_s: float) -> Outcome:
    """A cell in a process of its own; `grace_s` is what a call may take beyond.

    Where a slow machine did not reach the fault before the deadline, it gets more time.
    """
    for attempt, factor in enumerate((1, 4)):
        deadline_s = FAULTS[fault].deadline_s * factor
        own = folder / str(attempt)
        own.mkdir()
        outcome = _forked(fault, situation, own, deadline_s=deadline_s)
        if NOT_REACHED not in outcome.wrong:
            break
    if outcome.seconds is not None and outcome.seconds > deadline_s + grace_s:
        late = f"took {outcome.seconds:.1f} s, deadline {deadline_s:g} s"
        return replace(outcome, wrong=(*outcome.wrong, late))
    return outcome


def _forked(fault: str, situation: str, folder: Path, *, deadline_s: float) -> Outcome:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    mark = uuid.uuid4().hex
    names, told = (fault, situation), (folder, mark, deadline_s)
    process = context.Process(target=_main, args=(*names, told, theirs))
    process.start()
    theirs.close()
    outcome = Outcome(*names, (f"no end after {CELL_PATIENCE_S:g} s",))
    try:
        if ours.poll(CELL_PATIENCE_S):
            outcome = ours.recv()
    except EOFError:
        process.join(10)
        died = f"the process died: exit code {process.exitcode}"
        outcome = Outcome(*names, (died,))
    process.join(20)
    left = ["the process does not end"] if process.is_alive() else []
    process.kill()
    until = time.monotonic() + END_PATIENCE_S
    while (alive := strangers(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    left += [f"outlives its process: {what}" for what in alive]
    return replace(outcome, wrong=(*outcome.wrong, *left))


def _main(
    fault: str, situation: str, told: tuple[Path, str, float], answer: Any
) -> None:
    folder, os.environ[MARK], deadline_s = told
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    logging.getLogger("torchproof").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    row = replace(FAULTS[fault], deadline_s=deadline_s)
    try:
        found = work_in_cell(row, SITUATIONS[situation], folder)
    except BaseException:
        found = Outcome(fault, situation, (traceback.format_exc(),))
    answer.send(found)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        done = run(sys.argv[1], sys.argv[2], Path(made), grace_s=2.0)
    print(done.told)
    print(json.dumps(asdict(done) | {"told": ""}, indent=2))
