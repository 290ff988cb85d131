"""`wait=False` with a graph, by a strategy or a recipe: nobody waits for the compiler.

On a GPU with the real compile process, on the CPU with a stand-in for it.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import graph_models
import pytest
import torch
import torch.nn.functional as F
from graph_models import close
from stage_compiler import Compiler, join_stages
from torch import Tensor, nn
from torch._dynamo import convert_frame

import torchproof
from torchproof.runtime.codegen_worker import ChildDied, Worker
from torchproof.runtime.cudagraph import progressive, recorder
from torchproof.runtime.cudagraph.call_inputs import tensors_in
from torchproof.runtime.cudagraph.graph_status import RecordLater
from torchproof.torch_private import comparison, contract, frames, remote_graphs

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
]
SIZES = {"cpu": (4, 8), "cuda": (512, 256)}  # rows and width; a GPU needs work to do
UNDER_WAY = ("waiting", "compiling")
ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class Stack(nn.Module):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        _, width = SIZES[device]
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, 2)
        self.to(device)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        answer: Tensor = self.head(x)
        return answer


def batch(device: str = "cpu", rows: int = 0) -> Tensor:
    most, width = SIZES[device]
    return torch.randn(rows or most, width, device=device)


def answers(
    run: Any,
    plain: Any,
    calls: int,
    *,
    make: Callable[[], Tensor] = batch,
    mode: Any = torch.no_grad,
) -> None:
    """Calls it with fresh inputs; every answer is that of the plain model."""
    for _ in range(calls):
        x = make()
        with mode():
            close(run(x), plain(x))
        join_stages()


def settle(run: Any, plain: Any, ends: int = 2, **options: Any) -> dict[str, str]:
    """Calls until so many stages have ended; the state of each stage."""
    until = time.monotonic() + 150
    found: dict[str, str] = {}
    while time.monotonic() < until:
        answers(run, plain, 1, **options)
        found = states(run)
        if sum(each not in UNDER_WAY for each in found.values()) >= ends:
            break
        time.sleep(0.02)
    return found


def stages(run: Any) -> dict[str, Any]:
    """The stages of a graphed step, or of a model that follows a recipe."""
    status = torchproof.status(run)
    graph = status.graph if hasattr(status, "graph") else status.to_json()
    return {each["strategy"]: each for each in graph["stages"]}


def states(run: Any) -> dict[str, str]:
    return {name: each["state"] for name, each in stages(run).items()}


def test_calls_are_answered_while_the_compiler_works(compiler: Compiler) -> None:
    compiler.released.clear()
    model = Stack().eval()
    graphed = torchproof.graph(model, wait=False, strategy="full")
    answers(graphed, model, 2)
    assert graphed.status().recordings == 0  # eager has answered
    answers(graphed, model, 6)
    assert states(graphed) == {"eager": "in use", "full": "compiling"}
    assert graphed.status().replays == 6
    compiler.released.set()
    answers(graphed, model, 6)
    assert states(graphed) == {"eager": "replaced", "full": "in use"}
    taken = stages(graphed)["full"]
    assert (taken["gain"], taken["step_ms"], taken["why"]) == (2.0, 1e3, None)
    assert taken["at_call"] > 8 and taken["pause_s"] >= 0 and taken["compile_s"] >= 0
    assert compiler.graphs == 1


def test_eager_answers_before_anything_is_watched_or_started(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    features: list[str] = []
    seen: list[tuple[bool, bool]] = []

    def missing(feature: str) -> tuple[str, ...]:
        features.append(feature)
        return ()

    class Step(Stack):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((bool(features), compiler.is_started))
            return super().forward(x)

    monkeypatch.setattr(contract, "missing", missing)
    graphed = torchproof.graph(Step().eval(), wait=False, strategy="full")
    graphed(torch.ones(4, 8))
    status = graphed.status()
    assert seen == [(False, False)] and not graphed._snapshots.every
    assert not compiler.is_started
    assert (status.strategy, status.plain_calls, status.stops) == ("eager", 1, ())
    graphed(torch.ones(4, 8))
    assert features and compiler.is_started and graphed._snapshots.every


class Numbered(Block):
    """Each has its own graph."""

    def __init__(self, width: int, number: int) -> None:
        super().__init__(width)
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.number


class NumberedStack(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Numbered(8, number) for number in range(1, 5))


@pytest.mark.parametrize("strategy", ["regional", "full"])
@pytest.mark.parametrize("fits", [True, False])
def test_no_call_waits_for_the_whole_trace(
    strategy: str, fits: bool, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame of a whole step is traced by a thread, each block by another call."""
    traced: list[tuple[int, bool]] = []  # the call, and whether it waited
    trace = remote_graphs.Deferred.__call__

    def noting(self: Any, gm: Any, inputs: Any) -> Any:
        waits = threading.current_thread() is threading.main_thread()
        if self is backend:
            traced.append((graphed.status().calls, waits))
        return trace(self, gm, inputs)

    if not fits:  # the frame that a thread has traced is traced again
        monkeypatch.setattr(frames, "fits", lambda *_: False)
    monkeypatch.setattr(remote_graphs.Deferred, "__call__", noting)
    model = NumberedStack().eval()
    graphed = torchproof.graph(model, wait=False, strategy=strategy)
    answers(graphed, model, 2)
    backend = graphed._snapshots.current.stages[0].backend
    found = settle(graphed, model)
    assert found == {"eager": "replaced", strategy: "in use"}, str(graphed.status())
    if strategy == "full":
        assert [waits for _, waits in traced] == [False] + [True] * (not fits)
    else:
        calls = [call for call, _ in traced]
        assert len(calls) == len(set(calls)) == 4
    assert graphed.status().recordings == 2  # no snapshot was lost


def without_blocks() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 3), nn.Tanh())


KILLED = ChildDied("killed by SIGKILL")
# The compiler, the states of eager, regional and full, why, and the graphs compiled.
OUTCOMES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], Any, str, int]] = {
    # The blocks share one graph.
    "in turn": (Stack, {}, ("replaced", "replaced", "in use"), "", 2),
    "not faster": (Stack, {"slower": True}, ("in use", *2 * ["not faster"]), "", 2),
    "no blocks": (
        *(without_blocks, {}, ("replaced", "failed", "in use")),
        *("no repeated blocks", 1),
    ),
    "killed": (
        *(Stack, {"error": KILLED}, ("in use", "failed", "failed")),
        *("killed by SIGKILL", 0),
    ),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_stages_follow_one_another(outcome: str, compiler: Compiler) -> None:
    make, settings, expected, why, graphs = OUTCOMES[outcome]
    vars(compiler).update(settings)
    model = make().eval()
    with torch.no_grad():
        graphed = torchproof.graph(model, (batch(),), wait=False)
    assert graphed.status().recordings == 1  # the example, at once
    answers(graphed, model, 16)
    found = stages(graphed)
    assert {name: each["state"] for name, each in found.items()} == dict(
        zip(("eager", "regional", "full"), expected, strict=True)
    )
    assert why in str(found["regional"]["why"])
    assert compiler.graphs == graphs and graphed.status().replays == 16


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_code_with_other_results_is_never_used(
    device: str, compiler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = remote_graphs.DeferredGraph.load

    def load_wrong(self: remote_graphs.DeferredGraph, compiled: bytes) -> None:
        load(self, compiled)
        right = self._run

        def wrong(*args: Any) -> Any:
            output = right(*args)
            return type(output)([output[0] + 1, *output[1:]])

        self._run = wrong

    model = Stack(device).eval()
    graphed = torchproof.graph(model, wait=False, strategy="full")
    if device == "cuda":
        monkeypatch.setattr(remote_graphs.DeferredGraph, "load", load_wrong)
    else:  # what the test double records is not compiled
        answers(graphed, model, 3)
        verdict = comparison.wrong("1 is not 2", "output")
        monkeypatch.setattr(recorder, "compare_results", lambda *_: verdict)
    found = settle(graphed, model, make=lambda: batch(device))
    assert found == {"eager": "in use", "full": "failed"}
    assert "differs from eager" in str(stages(graphed)["full"]["why"])
    assert device == "cuda" or compiler.runs == 3  # the rehearsals


@pytest.mark.parametrize(("failures", "state"), [(2, "in use"), (3, "failed")])
def test_a_step_that_changes_meanwhile_is_traced_again(
    failures: int, state: str, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[Any] = []
    trace = recorder.Recorder.trace

    def changing(self: recorder.Recorder, *args: Any, **options: Any) -> None:
        traced.append(args)
        if len(traced) <= failures:
            raise RecordLater
        trace(self, *args, **options)

    monkeypatch.setattr(recorder.Recorder, "trace", changing)
    model = Stack().eval()
    graphed = torchproof.graph(model, wait=False, strategy="full")
    assert settle(graphed, model)["full"] == state, str(graphed.status())


def test_pauses_take_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progressive.time, "monotonic", lambda: now)
    progress = progressive.Progress()
    progress.paused(5.0)
    assert progress.may_pause
    progress.paused(3.0)  # two seconds too long
    assert not progress.may_pause
    now += 9.0
    assert not progress.may_pause
    now += 2.0
    assert progress.may_pause
    now += 1000.0  # an idle hour saves up no more than the first pauses
    assert progress.may_pause
    progress.paused(6.5)
    assert not progress.may_pause


class Timed:
    """In place of a recording whose replay takes so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.replays, self.capture = seconds, 0, self

    def start(self, tensors: Any) -> None: ...

    def seconds_of(self, replays: int) -> float:
        self.replays += replays
        time.sleep(replays * self.seconds)
        return self.seconds


def test_no_call_waits_for_many_long_replays() -> None:
    for seconds, most in ((0.001, 21), (0.1, 5)):
        old, new = Timed(2 * seconds), Timed(seconds)
        found = progressive.timed(old, new, ((), {}))  # type: ignore[arg-type]
        assert found == (old.seconds, new.seconds)
        assert 3 <= new.replays <= old.replays <= most


def test_shapes_are_recorded_later_if_calls_have_waited_too_long(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Stack().eval()
    graphed = torchproof.graph(model, wait=False, strategy="full")
    answers(graphed, model, 3)
    assert graphed.status().recordings == 1
    allowed = False
    monkeypatch.setattr(
        progressive.Progress, "may_pause", property(lambda self: allowed)
    )
    answers(graphed, model, 5)
    answers(graphed, model, 5, make=lambda: batch(rows=8))
    assert graphed.status().recordings == 1
    assert {each.state for each in graphed.status().stages} <= {"in use", "waiting"}
    allowed = True
    answers(graphed, model, 5, make=lambda: batch(rows=8))
    assert graphed.status().recordings > 1


def training_step(model: nn.Module) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize(
    ("device", "strategy"),
    [("cpu", "regional"), pytest.param("cuda", "full", marks=pytest.mark.gpu)],
)
def test_training_goes_on_across_the_swap(
    device: str, strategy: str, compiler: Any
) -> None:
    model = Stack(device)
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(training_step(model), wait=False, strategy=strategy)
    options: Any = {"make": lambda: batch(device), "mode": torch.enable_grad}
    plain = training_step(twin)
    found = settle(graphed, plain, **options)
    taken = ("in use",) if device == "cpu" else ("in use", "not faster")
    assert found.get(strategy) in taken, str(graphed.status())
    answers(graphed, plain, 5, **options)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        close(one, other)


@pytest.mark.gpu
@pytest.mark.alone
def test_the_compile_process_keeps_no_context_on_the_gpu() -> None:
    model = Stack("cuda").eval()
    free_before = torch.cuda.mem_get_info()[0]
    graphed = torchproof.graph(model, wait=False)
    options: Any = {"make": lambda: batch("cuda")}
    found = settle(graphed, model, ends=3, **options)
    assert found["eager"] == "replaced", str(graphed.status())
    assert "in use" in (found["regional"], found["full"])
    assert "failed" not in found.values()
    # A context takes hundreds of MiB.
    used_elsewhere = free_before - torch.cuda.mem_get_info()[0]
    assert used_elsewhere - torch.cuda.memory_reserved() < 400 << 20
    answers(graphed, model, 5, **options)


def test_gradients_add_up_across_the_swap(compiler: Compiler) -> None:
    model = Stack()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, train=True, wait=False, strategy="full")
    for _ in range(14):
        x = torch.randn(4, 8)
        graphed(x)
        twin(x).mean().backward()
        join_stages()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert "in use" in {
        each.state for each in graphed.status().stages if each.strategy == "full"
    }


def test_a_step_without_operations_to_compile(compiler: Compiler) -> None:
    def step(x: Tensor) -> Tensor:
        return torch.compiler.disable(lambda y: y * 2)(x)

    graphed = torchproof.graph(step, wait=False, strategy="full")
    for _ in range(8):
        x = torch.randn(3)
        assert torch.equal(graphed(x), x * 2)
        join_stages()
    assert stages(graphed)["full"]["why"] == "torch compiles nothing of this step"


# -- recipes ---------------------------------------------------------------------------


def applied(
    name: str, kind: type[nn.Module] = Stack, **settings: Any
) -> tuple[nn.Module, nn.Module]:
    return graph_models.applied(name, kind, wait=False, **settings)


def graph_of(model: nn.Module) -> dict[str, Any]:
    graph = torchproof.status(model).graph
    assert graph is not None
    return dict(graph)


def test_recordings_answer_until_the_code_is_ready(compiler: Compiler) -> None:
    name = "nested"
    plain, model = applied(f"{name}+graph", deadline=40)
    compiler.released.clear()
    answers(model, plain, 6)
    assert states(model) == {"eager": "in use", name: "compiling"}
    compiler.released.set()
    answers(model, plain, 6)
    assert states(model) == {"eager": "replaced", name: "in use"}
    found = torchproof.status(model)
    assert found.strategy == f"{name}+graph" and not found.fallbacks
    assert not found.notes and not found.compilations
    assert found.graph is not None and found.graph["replays"] == 10
    assert found.calls == 12 and found.compiled_calls == 10
    assert compiler.runs and compiler.limit_s is not None and compiler.limit_s <= 40
    assert name in str(found) and "replaced" in str(found)


def test_calls_in_inference_mode_get_compiled_code(compiler: Compiler) -> None:
    plain, model = applied("full+graph")
    for _ in range(2):
        with torch.inference_mode():
            answers(model, plain, 10)
        answers(model, plain, 10)  # recordings of their own
    stages = graph_of(model)["stages"]
    found = [(each["strategy"], each["state"]) for each in stages]
    assert found == 2 * [("eager", "replaced"), ("full", "in use")]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("strategy", "mode"),
    [("full", torch.inference_mode), ("regional", torch.no_grad)],
)
def test_a_recipe_is_upgraded_on_a_gpu(strategy: str, mode: Any) -> None:
    plain = Stack("cuda").eval()
    recipe = graph_models.recipe_for(plain, f"{strategy}+graph")
    model = torchproof.compile(copy.deepcopy(plain), recipe=recipe, wait=False)
    options: Any = {"make": lambda: batch("cuda"), "mode": mode}
    assert settle(model, plain, **options)[strategy] in ("in use", "not faster")
    found = torchproof.status(model)
    assert not found.notes and not found.fallbacks, str(found)
    for each in (plain, model):
        each(batch("cuda")).sum().backward()
    answers(model, plain, 1, **options)


def test_a_stage_that_takes_too_long_is_not_used(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, model = applied("full+graph", deadline=3.0)
    answers(model, plain, 2)
    monkeypatch.setattr(recorder._Attempt, "trace", graph_models.spin)
    answers(model, plain, 4)
    assert states(model) == {"eager": "in use", "full": "failed"}
    assert "deadline of 3 s" in stages(model)["full"]["why"]


class Counting(nn.Module):
    """Its state shows how often it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.count: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


def test_a_stage_whose_timing_fails_leaves_no_effects(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(old: Any, new: Any, call: Any) -> tuple[float, float]:
        new.start(tensors_in(call))
        raise RuntimeError("no clock")

    monkeypatch.setattr(progressive, "timed", fails)
    model = Counting().eval()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, wait=False, strategy="full")
    answers(graphed, twin, 12)
    assert {each.state for each in graphed.status().stages} == {"in use", "failed"}
    assert graphed.status().stages[1].why == "RuntimeError: no clock"


def test_an_interrupt_ends_the_stage_that_it_meets(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(old: Any, new: Any, call: Any) -> tuple[float, float]:
        new.start(tensors_in(call))
        raise KeyboardInterrupt

    monkeypatch.setattr(progressive, "timed", interrupted)
    model = Counting().eval()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, wait=False, strategy="full")
    with pytest.raises(KeyboardInterrupt):
        answers(graphed, twin, 12)
    close(model.count, twin.count)  # neither has made the last call
    answers(graphed, twin, 3)
    assert states(graphed) == {"eager": "in use", "full": "failed"}
    assert graphed.is_compiled


def test_verify_compares_the_code_once_it_is_there(compiler: Compiler) -> None:
    plain, model = applied("full+graph", verify="first")
    compiler.released.clear()
    answers(model, plain, 6)
    assert not torchproof.status(model).verifications
    compiler.released.set()
    answers(model, plain, 6)
    (found,) = torchproof.status(model).verifications
    assert found["verdict"] == "same" and states(model)["full"] == "in use"


class Waiting(Stack):
    """Reads a value on the host, which no recording can repeat."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(x.sum() > 0)


@pytest.mark.slow
def test_what_cannot_be_recorded_is_compiled_without_a_graph() -> None:
    plain, model = applied("full+graph", Waiting)
    until = time.monotonic() + 300
    while time.monotonic() < until and not torchproof.status(model).compiled_calls:
        answers(model, plain, 1)
        time.sleep(0.1)
    found = torchproof.status(model)
    assert found.graph is not None and found.graph["replays"] == 0
    assert found.graph["stops"][0]["kind"] == "host_sync", str(found)
    assert found.compilations and not states(model), str(found)
    assert 0 < found.compiled_calls < found.calls


def test_recordings_outlive_a_compilation_in_another_thread(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile torch replaces methods of its own classes."""
    plain, model = applied("full+graph")
    settle(model, plain)
    before = graph_of(model)
    get = nn.Module.__getattr__
    with compiling_elsewhere():
        monkeypatch.setattr(nn.Module, "__getattr__", lambda *args: get(*args))
        answers(model, plain, 8)
        monkeypatch.undo()
    replays = graph_of(model)["replays"]
    answers(model, plain, 3)
    found = graph_of(model)
    assert found["recordings"] == before["recordings"] and not found["changes"]
    assert found["replays"] == replays + 3


@contextlib.contextmanager
def compiling_elsewhere() -> Iterator[None]:
    """Another thread holds torch's compile lock."""
    held, end = threading.Event(), threading.Event()

    def compile_something() -> None:
        with convert_frame.compile_lock:
            held.set()
            assert end.wait(60)

    thread = threading.Thread(target=compile_something)
    thread.start()
    assert held.wait(60)
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_no_call_waits_for_a_compilation_in_another_thread(compiler: Compiler) -> None:
    plain, model = applied("full+graph")
    with compiling_elsewhere():
        answers(model, plain, 3)
        assert graph_of(model)["replays"] == 0
    answers(model, plain, 2)
    with compiling_elsewhere():
        answers(model, plain, 6)
        assert states(model) == {"eager": "in use", "full": "waiting"}
        assert graph_of(model)["replays"] == 7
    settle(model, plain)
    assert states(model) == {"eager": "replaced", "full": "in use"}


# -- the compile process ---------------------------------------------------------------


class Cached(nn.Module):
    """Writes to a buffer and to an argument, and returns views."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(3))
        self.count: Tensor

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        self.count += 1
        cache[:, 1] = x[:, 0]
        y = torch.tanh(self.inner(x))
        return y.t(), x[1:], cache.view(-1), self.count * 2


def load_code(backend: remote_graphs.Deferred, worker: Worker) -> None:
    """Replaces the only graph's operations by code of the compile process."""
    [graph] = backend.graphs
    before = graph._run
    graph.load(worker.send(graph.written, until=float("inf"), kind="graph"))
    assert graph._run is not before
    backend.frozen = True


@pytest.mark.slow
def test_graphs_are_compiled_in_another_process() -> None:
    """One with its backward, and one of inference mode with effects and views."""
    worker = Worker()
    x = torch.randn(4, 8)
    try:
        model, backend = Stack(), remote_graphs.Deferred({"dynamic": False})
        compiled = torch.compile(model, backend=backend, dynamic=False)
        torch.testing.assert_close(compiled(x), model(x))  # uncompiled, so far
        load_code(backend, worker)
        gradients = []
        for each in (compiled, model):
            model.zero_grad()
            output = each(x)
            torch.testing.assert_close(output, model(x))
            output.square().sum().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
        torch.testing.assert_close(*gradients)
        cached, backend = Cached(), remote_graphs.Deferred({"dynamic": False})
        twin = copy.deepcopy(cached)
        compiled = torch.compile(cached, backend=backend, dynamic=False)
        with torch.inference_mode():
            x = torch.randn(4, 8)
            caches = torch.zeros(4, 3), torch.zeros(4, 3)
            compiled(x, caches[0])
            twin(x, caches[1])
            load_code(backend, worker)
            answer = compiled(x, caches[0])
            torch.testing.assert_close(answer, twin(x, caches[1]))
        torch.testing.assert_close(*caches)
        torch.testing.assert_close(cached.count, twin.count)
        assert all(each.is_inference() for each in answer)
    finally:
        worker.close()


def test_a_graph_with_code_of_the_user_is_refused() -> None:
    library = torch.library.Library("torchproof_test_stages", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")
    backend = remote_graphs.Deferred({})

    def step(x: Tensor) -> Tensor:
        doubled: Tensor = torch.ops.torchproof_test_stages.twice(x)
        return doubled + 1

    with pytest.raises(Exception, match="torchproof_test_stages"):
        torch.compile(step, backend=backend, dynamic=False)(torch.ones(3))
    assert not backend.graphs


def test_inputs_that_share_memory_share_it_in_the_child() -> None:
    backend = remote_graphs.Deferred({})

    def step(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(1) + y

    memory = torch.zeros(6)
    torch.compile(step, backend=backend, dynamic=False)(memory[:4], memory[2:])
    [graph] = backend.graphs
    request = pickle.loads(graph.written)
    one, other = remote_graphs._fake_inputs(request["inputs"])
    assert one.untyped_storage()._cdata == other.untyped_storage()._cdata
    assert (one.storage_offset(), other.storage_offset()) == (0, 2)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.scale = 1.0
        self.register_buffer("positive", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.positive.add_((x > 0).sum())
        answer: Tensor = self.inner(x) * self.positive * self.scale
        return answer


@pytest.mark.parametrize("wait", [True, False])
def test_memory_that_the_first_call_writes_without_changing_it(
    wait: bool, compiler: Compiler
) -> None:
    model = Counted().eval()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, wait=wait, strategy="eager" if wait else "full")
    for number in range(14):
        x = torch.ones(2, 8) if number > 1 else -torch.ones(2, 8)
        if wait and number == 12:  # the replay that has begun is discarded
            model.scale = twin.scale = 2.0
        with torch.no_grad():
            torch.testing.assert_close(graphed(x), twin(x))
        join_stages()
    if not wait:
        assert states(graphed) == {"eager": "replaced", "full": "in use"}
