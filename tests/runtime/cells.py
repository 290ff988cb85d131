"""One cell of the fault matrix: a fault, a situation, and all that must hold after it.

`run` forks a process for the cell, as what goes wrong in it may stay wrong, and says
what did not hold. In that process a model is called beside a copy that was never
compiled, and whatever a call changes is compared.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import itertools
import logging
import multiprocessing
import os
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx
from faults import AGES_S, SITUATIONS, Fault, Situation
from faults import MATRICES as MATRICES
from injections import HEALTHY, CannotInject, Injection
from surroundings import MARK, Surroundings, compile_plainly, strangers
from torch import nn
from waiting import in_fork

import torchproof.runtime.production
from torchproof.runtime import codegen_worker, compile_job
from torchproof.torch_private import backends

PRELOADED = ["warm_torch", "torchproof.observe.child", "cells"]
NOT_REACHED = "the fault was never reached"
CELL_PATIENCE_S = 400.0
# A process that is forked ends without its own last words; its child notices.
END_PATIENCE_S = {"cpu": 5.0, "cuda": 30.0}  # a pool of torch's may be starting
BACKGROUND_PATIENCE_S = 20.0
FORK_PATIENCE_S = 60.0
CHILD_PATIENCE_S = 300.0
MOST_CALLS = 12
ROWS = 6  # of the calls that are hit


@dataclass(frozen=True)
class Outcome:
    """`wrong` says what did not hold; `seconds` is what the call that was hit took.

    `skipped` says why the fault cannot be made on this machine.
    """

    fault: str
    situation: str
    wrong: tuple[str, ...]
    seconds: float | None = None
    status: str = ""
    skipped: str = ""

    @property
    def ok(self) -> bool:
        return not self.wrong


# -- the model -------------------------------------------------------------------------


class Model(nn.Module):
    """Changes whatever a model can: buffers, an input, a list, random numbers.

    No CUDA graph holds what changes a list, or an input of changing address: `recorded`
    leaves both out.
    """

    def __init__(self, *, recorded: bool) -> None:
        super().__init__()
        self.recorded = recorded
        self.inner = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("count", torch.zeros(()))
        self.seen: list[int] = []
        self.op = HEALTHY

    def forward(self, x: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        if not self.recorded:
            self.seen.append(1)
        self.count.add_(1)
        hidden = self.op(self.norm(self.inner(x)))
        if not self.recorded:
            scratch.add_(hidden.detach())
        # A recording moves the generator at other times than eager does.
        return hidden.relu() + (0 if self.recorded else torch.rand_like(hidden))


def take_step(
    model: Model, x: torch.Tensor, train: bool, between: Callable[[], None]
) -> tuple[dict[str, Any], float]:
    """A call of the model: everything that it has changed, and its seconds.

    Those of the forward or of the backward, whichever took longer: both may compile,
    and each has a deadline of its own.
    """
    model.seen.clear()
    model.zero_grad()
    x = x.clone().requires_grad_(train)
    scratch = torch.zeros(len(x), 8, device=x.device)
    times = [time.monotonic()]
    with torch.set_grad_enabled(train):
        answer = model(x, scratch)
        synchronize(x)
        times.append(time.monotonic())
        if train:
            between()
            (answer * torch.arange(8.0, device=x.device)).sum().backward()
            synchronize(x)
            times.append(time.monotonic())
    changed = {
        "answer": answer.detach().clone(),
        "gradient of the input": x.grad,
        "scratch": scratch,
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "gradients": {name: value.grad for name, value in model.named_parameters()},
        "random numbers": random_state(x.device),
        "side effects": len(model.seen),
    }
    return changed, max(end - begin for begin, end in itertools.pairwise(times))


def synchronize(x: torch.Tensor) -> None:
    """What runs on a device has ended, and its errors are raised."""
    if x.is_cuda:
        torch.cuda.synchronize()


def random_state(device: torch.device | str) -> torch.Tensor:
    device = torch.device(device)
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)


def set_random_state(device: str, state: torch.Tensor) -> None:
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if device == "cuda":
        torch.cuda.set_rng_state(state[size:])


class Pair:
    """The compiled model and its twin, which is called the same way."""

    def __init__(
        self, fault: Fault, situation: Situation, injection: Injection
    ) -> None:
        torch.manual_seed(0)
        self.situation, self.device = situation, fault.device
        self.model = Model(recorded=situation.is_recorded).to(fault.device)
        self.model.train(situation.train)
        self.twin = copy.deepcopy(self.model)
        self.wrong: list[str] = []
        self.injection = injection
        arguments: dict[str, Any] = {"backend": fault.backend, **injection.arguments}
        if fault.backend == "inductor":
            # So that compiled code draws the numbers that eager draws.
            arguments["options"] = {
                "fallback_random": True,
                **situation.options,
                **injection.options,
            }
        if injection.gives_example:
            arguments["example"] = self.example()
        torchproof.runtime.compile(
            self.model,
            strategy="full",
            deadline=AGES_S,
            wait=situation.wait,
            **arguments,
        )

    def example(self) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.zeros(ROWS, 8, device=self.device) for _ in range(2))

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

    def call(self, rows: int, op: Any, *, what: str) -> float:
        """The seconds of a call; everything that it changes is compared with eager."""
        x = torch.randn(rows, 8, device=self.device)
        self.model.op = self.twin.op = op
        before, train = random_state(self.device), self.situation.train
        changed, seconds = take_step(self.model, x, train, self.injection.after_forward)
        set_random_state(self.device, before)
        expected, _ = take_step(self.twin, x, train, lambda: None)
        for name, value in expected.items():
            if difference := difference_of(changed[name], value):
                self.wrong.append(f"{what}: {name} differs from eager's: {difference}")
        return seconds


def difference_of(actual: Any, expected: Any) -> str | None:
    """What differs by more than the rounding of another order of operations.

    Gradients before a batch norm are differences of large numbers: kernels of a GPU
    round them in other places than eager's do.
    """
    on_gpu = torch.cuda.is_initialized()
    try:
        atol = 1e-4 if on_gpu else 1e-5
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=atol)
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return "; ".join(lines)
    return None


# -- what a cell checks ----------------------------------------------------------------


def work_in_cell(fault: Fault, situation: Situation, folder: Path) -> Outcome:
    """The whole cell, in a process of its own."""
    if situation.graph:
        return work_on_graph(fault, situation, folder)
    with device_use(fault, folder) as use_alone:
        return _work_on_compile(fault, situation, folder, use_alone)


def _work_on_compile(
    fault: Fault, situation: Situation, folder: Path, use_alone: Callable[[], None]
) -> Outcome:
    injection = fault.way(folder)
    if injection.fills_cache:
        # What it loads is not loaded here afterwards.
        code = in_fork(lambda: fill_cache(fault, situation, injection))
        assert code == 0, "the cache could not be filled"
    # Loads what is loaded late, so that no deadline is spent on it. `compile_plainly`
    # compiles in a thread, which must not be the first one to load the compiler.
    backends.prepare_for_threads(inductor=True)
    compile_plainly()
    if injection.gives_example:
        injection.arm()
    pair = Pair(fault, situation, injection)
    wrong = pair.wrong
    if fault.uses_child:
        start_child(situation)
    if fault.device == "cuda":
        warm_device(pair)
    if situation.later:
        pair.call(4, HEALTHY, what="healthy call")
        if pair.status.fallbacks or not pair.status.compilations:
            return Outcome(*_names(fault, situation), (f"healthy: {pair.status}",))
    injection.prepare()
    use_alone()
    surroundings = Surroundings()
    if not injection.gives_example:
        injection.arm()
    pair.set_deadline(fault.deadline_s)
    if fault.loses_device:
        return work_on_lost(fault, situation, pair)
    seconds = call_hit(fault, injection, pair)
    wrong += check_status(fault, injection, pair)
    wrong += check_calls_after(situation, pair)
    wrong += injection.wrong_afterwards()
    injection.disarm()
    wrong += check_fork(pair) if fault.device == "cpu" else check_device()
    wrong += surroundings.left()
    return Outcome(*_names(fault, situation), tuple(wrong), seconds, str(pair.status))


def _names(fault: Fault, situation: Situation) -> tuple[str, str]:
    return fault.name, situation.name


def call_hit(fault: Fault, injection: Injection, pair: Pair) -> float:
    """The seconds of the longest call."""
    longest = 0.0
    for number in range(fault.calls):
        seconds = pair.call(ROWS, injection.op, what=f"call {number} that is hit")
        longest = max(longest, seconds)
    if not pair.situation.wait:
        if longest >= fault.deadline_s:
            pair.wrong.append(f"a call waited for the compiler: {longest:.1f} s")
        call_until_compiled(fault, pair)
    return longest


def call_until_compiled(fault: Fault, pair: Pair) -> None:
    """Calls until nothing is compiled any more: functions, then those they call."""
    for number in range(MOST_CALLS):
        pair.wait_for_background(fault)
        compile_s = pair.status.compile_s
        pair.call(ROWS, pair.injection.op, what=f"call {number} until it is compiled")
        if pair.status.compile_s == compile_s and not pair.is_compiling:
            return
    pair.wrong.append(f"after {MOST_CALLS} calls it still compiles")


def fill_cache(fault: Fault, situation: Situation, injection: Injection) -> None:
    """Leaves files of the graphs that will be compiled."""
    pair = Pair(fault, situation, injection)
    for rows in (4, ROWS) if situation.later else (ROWS,):
        pair.call(rows, HEALTHY, what="call that fills the cache")
        if not situation.wait:
            call_until_compiled(fault, pair)
    assert not pair.wrong and not pair.status.fallbacks, (pair.wrong, pair.status)


def start_child(situation: Situation) -> None:
    """Waits until the child has started, which takes a share of the deadline.

    It loads torch, and tests the C++ compiler meanwhile, several times. With
    `wait=False` it has idle priority, and on a busy machine that test would still run
    when the cell ends.
    """
    worker = compile_job.worker_of(waits=situation.wait)
    until = time.monotonic() + CHILD_PATIENCE_S
    with contextlib.suppress(codegen_worker.ChildFailed):
        worker.send(b"no pickle", until=until)
    while (running := tests_compiler(worker)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running, f"the child has not started: {strangers()}"


def tests_compiler(worker: codegen_worker.Worker) -> bool:
    """Whether the child's thread that tests the compiler has not ended.

    That no compiler runs says nothing: the thread may be about to start the next one.
    """
    assert worker._child is not None
    stacks = worker._child.process.stacks()
    frames = [(Path(file).name, name) for stack in stacks for file, name in stack]
    return not frames or ("remote_codegen.py", "test") in frames


def check_status(fault: Fault, injection: Injection, pair: Pair) -> list[str]:
    status, wrong = pair.status, []
    if not injection.was_reached(status):
        wrong.append(NOT_REACHED)
    if fault.may_be_overcome and not status.fallbacks:
        pass
    elif fault.kind is not None:
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
    return wrong


def check_calls_after(situation: Situation, pair: Pair) -> list[str]:
    """What failed is not tried again; what was compiled before still is used."""
    wrong, compile_s = [], pair.status.compile_s
    pair.call(ROWS, pair.injection.op, what="call after it")
    if pair.status.compile_s != compile_s:
        wrong.append("it was tried again")
    if situation.later:
        compiled = pair.status.compiled_calls
        pair.call(4, HEALTHY, what="call of the first graph")
        if pair.status.compiled_calls != compiled + 1:
            wrong.append(f"the first graph is no longer compiled: {pair.status}")
    return wrong


def check_fork(pair: Pair) -> list[str]:
    """A fork of the process, as a data loader is one, answers and ends."""

    def call() -> None:
        if torch.backends.cuda.is_built():
            # Such a torch, once it has compiled, runs no backward in a fork.
            pair.situation = replace(pair.situation, train=False)
        pair.call(ROWS, pair.injection.op, what="call in a fork")
        assert not pair.wrong, pair.wrong

    code = in_fork(call, FORK_PATIENCE_S)
    return [f"a fork fails: exit code {code}"] if code else []


# -- on a device -----------------------------------------------------------------------


@contextlib.contextmanager
def device_use(fault: Fault, folder: Path) -> Iterator[Callable[[], None]]:
    """Gives what waits until no other cell uses the device, for faults that need it.

    All cells that are preparing share the lock; one that is armed holds it alone, until
    it ends.
    """
    if not fault.alone:
        yield lambda: None
        return
    with (folder.parent.parent / "device.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        def use_alone() -> None:
            fcntl.flock(file, fcntl.LOCK_UN)
            fcntl.flock(file, fcntl.LOCK_EX)

        yield use_alone


def limit_compile_pool(fault: Fault) -> None:
    """Only faults of kernel compilers need Inductor's pool, a process for each core."""
    threads = 4 if fault.way.needs_pool else 1
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
    torch._inductor.config.compile_threads = threads


def warm_device(pair: Pair) -> None:
    """Eager's libraries and workspaces are on the device before a fault strikes."""
    before = random_state(pair.device)
    model = copy.deepcopy(pair.twin)
    model.op = pair.injection.op
    for rows in (4, ROWS):
        x = torch.randn(rows, 8, device=pair.device)
        take_step(model, x, pair.situation.train, lambda: None)
    set_random_state(pair.device, before)


def check_device() -> list[str]:
    """The device works, on the stream and with the generator that there were."""
    wrong = []
    try:
        x = torch.ones(1 << 20, device="cuda")
        if (
            float(x.sum()) != len(x)
            or not torch.randn(4, device="cuda").isfinite().all()
        ):
            wrong.append("the device answers wrong afterwards")
        if torch.cuda.current_stream() != torch.cuda.default_stream():
            wrong.append("another stream is the current one afterwards")
        if torch.cuda.is_current_stream_capturing():
            wrong.append("a capture goes on afterwards")
    except RuntimeError as error:
        wrong.append(f"the device fails afterwards: {error}")
    return wrong


def work_on_lost(fault: Fault, situation: Situation, pair: Pair) -> Outcome:
    """No process survives this device: the call raises, and the status says why."""
    wrong: list[str] = []
    begin = time.monotonic()
    try:
        take_step(pair.model, pair.example()[0], situation.train, lambda: None)
        wrong.append("nothing was raised, and the device is lost")
    except RuntimeError as error:
        if fault.words not in str(error):
            wrong.append(f"raises something else: {error}")
    seconds = time.monotonic() - begin
    wrong += check_status(fault, pair.injection, pair)
    wrong += compile_plainly()
    names = _names(fault, situation)
    return Outcome(*names, tuple(wrong), seconds, str(pair.status))


def work_on_graph(fault: Fault, situation: Situation, folder: Path) -> Outcome:
    """A step that `torchproof.graph` records, beside a twin that is never recorded."""
    injection = fault.way(folder)
    with device_use(fault, folder) as use_alone:
        pair = GraphPair(situation, injection)
        pair.warm()
        injection.prepare()
        use_alone()
        surroundings = Surroundings()
        injection.arm()
        seconds = max(pair.call(number) for number in range(max(3, fault.calls)))
        wrong = pair.wrong + pair.check_status(fault)
        wrong += injection.wrong_afterwards()
        injection.disarm()
        wrong += check_device()
        wrong += GraphPair(situation, Injection(folder)).check_healthy()
        wrong += surroundings.left()
    names = _names(fault, situation)
    return Outcome(*names, tuple(wrong), seconds, str(pair.graphed.status()))


class GraphPair:
    """A model that is recorded, and its twin."""

    def __init__(self, situation: Situation, injection: Injection) -> None:
        torch.manual_seed(0)
        self.model = Model(recorded=True).to("cuda")
        self.model.train(situation.train)
        self.twin, self._other = copy.deepcopy(self.model), copy.deepcopy(self.model)
        for each in (self.model, self.twin, self._other):
            each.op = injection.op
        self.train, self.injection = situation.train, injection
        self.graphed = torchproof.graph(self.model, train=situation.train)
        self.wrong: list[str] = []

    def warm(self) -> None:
        """Eager's libraries and workspaces are on the device before a fault strikes."""
        self._take(self._other, self._other, torch.randn(6, 8, device="cuda"))

    def call(self, number: int) -> float:
        """The seconds of a call; it is compared with eager's."""
        x, begin = torch.randn(6, 8, device="cuda"), time.monotonic()
        answer = self._take(self.model, self.graphed, x)
        seconds = time.monotonic() - begin
        expected = self._take(self.twin, self.twin, x)
        if difference := difference_of(answer, expected):
            self.wrong.append(f"call {number} differs from eager's: {difference}")
        return seconds

    def _take(self, model: Model, step: Any, x: torch.Tensor) -> list[Any]:
        model.zero_grad()
        scratch = torch.zeros(len(x), 8, device="cuda")
        with torch.set_grad_enabled(self.train):
            answer = step(x, scratch)
            if self.train and step is model:
                answer.mean().backward()
        synchronize(x)
        grads = [weight.grad for weight in model.parameters()] if self.train else []
        return [answer.detach().clone(), *model.state_dict().values(), *grads]

    def check_status(self, fault: Fault) -> list[str]:
        status = self.graphed.status()
        wrong = [] if self.injection.fired else [NOT_REACHED]
        if fault.kind is None:
            if status.stops or not status.replays:
                wrong.append(f"it was not overcome: {status}")
        elif not any(fault.words in str(stop) for stop in status.stops):
            wrong.append(f"status has not this reason ({fault.words!r}): {status}")
        return wrong

    def check_healthy(self) -> list[str]:
        """Whether another step can be recorded in this process."""
        for number in range(3):
            self.call(number)
        status = self.graphed.status()
        if status.stops or status.replays < 2:
            self.wrong.append(f"no other step is recorded: {status}")
        return [f"afterwards: {what}" for what in self.wrong]


# -- processes -------------------------------------------------------------------------


def run(
    fault: str, situation: str, folder: Path, *, grace_s: float, device: str = "cpu"
) -> Outcome:
    """A cell in a process of its own; `grace_s` is what a call may take beyond.

    Where a slow machine did not reach the fault before the deadline, it gets more time.
    """
    for attempt, factor in enumerate((1, 4)):
        row = MATRICES[device][fault]
        deadline_s = row.deadline_s * factor
        own = folder / str(attempt)
        own.mkdir()
        row = replace(row, deadline_s=deadline_s)
        outcome = _forked(row, situation, own)
        if NOT_REACHED not in outcome.wrong:
            break
    if outcome.seconds is not None and outcome.seconds > deadline_s + grace_s:
        late = f"took {outcome.seconds:.1f} s, deadline {deadline_s:g} s"
        return replace(outcome, wrong=(*outcome.wrong, late))
    return outcome


def _forked(fault: Fault, situation: str, folder: Path) -> Outcome:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    mark = uuid.uuid4().hex
    names = (fault.name, situation)
    conditions = (fault.device, folder, mark, fault.deadline_s)
    process = context.Process(target=_main, args=(*names, conditions, theirs))
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
    until = time.monotonic() + END_PATIENCE_S[fault.device]
    while (alive := strangers(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    left += [f"outlives its process: {what}" for what in alive]
    return replace(outcome, wrong=(*outcome.wrong, *left))


def _main(
    fault: str, situation: str, conditions: tuple[str, Path, str, float], answer: Any
) -> None:
    device, folder, os.environ[MARK], deadline_s = conditions
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    logging.getLogger("torchproof").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    if device == "cuda":
        limit_compile_pool(MATRICES[device][fault])
    row = replace(MATRICES[device][fault], deadline_s=deadline_s)
    try:
        found = work_in_cell(row, SITUATIONS[situation], folder)
    except CannotInject as error:
        found = Outcome(fault, situation, (), skipped=str(error))
    except BaseException:
        found = Outcome(fault, situation, (traceback.format_exc(),))
    answer.send(found)
