"""Code generation in a child: real compilations, real kills, nothing left behind."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from shipped import (
    AGES_S,
    CHILD_HANGS,
    HANGS,
    Elsewhere,
    HungCompiler,
    children_of,
    make_ready,
    wait_for,
)

from torchproof.process import CpuShare, tree
from torchproof.runtime import backend, child_process, compile_job
from torchproof.runtime.codegen_worker import (
    ChildDied,
    ChildError,
    ChildFailed,
    ChildHung,
    ChildTooBig,
    Worker,
)
from torchproof.torch_private import remote_codegen
from torchproof.torch_private.compile_phases import phase_of_frames


@pytest.fixture(scope="module", autouse=True)
def no_other_child() -> None:
    """Models that other tests compiled have started the children that all share."""
    for worker in (compile_job.shared_worker, compile_job.background_worker):
        if worker.cache_info().currsize:
            worker().close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    made.warm()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
def test_shipped_graphs_are_right_and_cached_like_others(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    start = subprocess.Popen.__init__

    def note(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        started.append(args)
        start(self, args, *rest, **options)

    worker.warm()
    monkeypatch.setattr(subprocess.Popen, "__init__", note)
    elsewhere = Elsewhere(worker)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Dropout(0.0), torch.nn.LayerNorm(8)
    )
    x = torch.randn(4, 8)

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).to(torch.float64).square().sum()

    def train() -> list[torch.Tensor | None]:
        model.zero_grad()
        with remote_codegen.codegen_in_child(elsewhere.send, elsewhere.kept.append):
            torch.compile(step)(x).backward()
        return [p.grad for p in model.parameters()]

    model.zero_grad()
    step(x).backward()
    expected = [p.grad for p in model.parameters()]
    torch.testing.assert_close(train(), expected)
    assert (elsewhere.sent, elsewhere.kept) == (2, [])
    # Kernels are in files named .main.cpp; others ask the compiler what it can.
    assert not [args for args in started if ".main.cpp" in str(args)], "compiled here"

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.testing.assert_close(train(), expected)
    assert elsewhere.sent == 2, "not in the cache"
    assert torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"] == 1


@pytest.mark.slow
def test_guards_of_code_generation_come_back_from_the_child(worker: Worker) -> None:
    """Inductor unrolls this pooling for one size: another must recompile."""
    elsewhere = Elsewhere(worker)

    def pool(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x, 3)

    compiled = torch.compile(pool, dynamic=True)
    with remote_codegen.codegen_in_child(elsewhere.send, elsewhere.kept.append):
        for size in (20, 7):
            x = torch.randn(1, 2, size, size)
            torch.testing.assert_close(compiled(x), pool(x))
    assert (elsewhere.sent, elsewhere.kept) == (2, [])


@pytest.mark.slow
def test_plain_compilation_is_untouched_by_a_route_elsewhere() -> None:
    used: list[bytes] = []

    def send(payload: bytes) -> bytes:
        used.append(payload)
        raise ChildError("not sent")

    answers: list[torch.Tensor] = []
    with remote_codegen.codegen_in_child(send, lambda why: None):
        # A thread begins with a context of its own.
        other = threading.Thread(
            target=lambda: answers.append(torch.compile(torch.cos)(torch.zeros(3)))
        )
        other.start()
        other.join()
    assert torch.equal(answers[0], torch.ones(3)) and not used


@torch.library.custom_op("torchproof_test::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.slow
def test_what_cannot_be_shipped_is_compiled_here_and_named(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = Elsewhere(worker)
    x = torch.ones(3)
    assert torch.equal(elsewhere(lambda x: double(x) + 1, x), x * 3)
    with torch._inductor.config.patch(external_matmul=[lambda a, b, out: None]):
        assert torch.equal(elsewhere(lambda x: x + 3, x), x + 3)
    first, second = elsewhere.kept
    assert "torchproof_test::double" in first
    assert "lambda" in second
    assert elsewhere.sent == 0
    assert "pickle input graph" not in caplog.text


@pytest.mark.slow
def test_user_code_that_only_this_process_has_keeps_a_graph_here(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Elsewhere(worker)
    x = torch.ones(3)

    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    assert torch.equal(elsewhere(branch, x), x + 1)
    with torch._inductor.config.patch(post_grad_custom_post_pass=lambda graph: None):
        assert torch.equal(elsewhere(lambda x: x + 4, x), x + 4)
    lowerings, sine = torch._inductor.lowering.lowerings, torch.ops.aten.sin.default
    cosine = lowerings[torch.ops.aten.cos.default]
    monkeypatch.setitem(lowerings, sine, lambda x: cosine(x))
    assert torch.equal(elsewhere(torch.sin, torch.zeros(3)), torch.ones(3))
    condition, custom_pass, lowering = elsewhere.kept
    assert re.search(r"\bcond\b", condition)
    assert "post_grad_custom_post_pass" in custom_pass
    assert __name__ in lowering and "aten::sin" in lowering
    assert elsewhere.sent == 0


def test_an_error_in_the_child_is_told_and_the_child_lives_on(worker: Worker) -> None:
    make_ready(worker)
    before = children_of(os.getpid())
    with pytest.raises(ChildFailed, match=r"^UnpicklingError: "):
        worker.send(b"no pickle", until=time.monotonic() + AGES_S)
    assert len(before) == 1 and children_of(os.getpid()) == before


@pytest.mark.parametrize(
    "last_line", [CHILD_HANGS, pytest.param(HANGS, marks=pytest.mark.slow)]
)
def test_a_compiler_that_never_returns_is_killed(
    worker: Worker, tmp_path: Path, last_line: str
) -> None:
    for seconds in (3.0, 12.0, 50.0):  # as much as this machine needs to get there
        compiler = HungCompiler(tmp_path / f"{seconds}", last_line)
        make_ready(worker)
        with pytest.raises(ChildHung) as caught:
            compiler.send(worker, until=time.monotonic() + seconds)
        assert compiler.left() == [] and children_of(os.getpid()) == []
        if compiler.flag.exists():
            break
    assert caught.value.phase == "C++ compiler"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_child_killed_by_a_signal_is_reported(
    worker: Worker, tmp_path: Path, name: str
) -> None:
    compiler = HungCompiler(tmp_path / "hung", HANGS)
    sending = compiler.sending(worker)
    (child,) = children_of(os.getpid())
    child.send_signal(signal.Signals[name])
    fate = sending.fate()
    assert isinstance(fate, ChildDied) and name in str(fate)
    assert compiler.left() == []


@pytest.mark.slow
def test_a_caller_may_wait_or_be_interrupted(worker: Worker, tmp_path: Path) -> None:
    class Interrupt(BaseException):
        pass

    compiler = HungCompiler(tmp_path / "interrupted", HANGS)
    sending = compiler.sending(worker)
    with pytest.raises(ChildHung, match="another graph"):
        worker.send(b"", until=time.monotonic() + 0.2)
    assert compiler.left(), "one caller's deadline is not another's"
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(sending.ident or 0), ctypes.py_object(Interrupt)
    )
    assert isinstance(sending.fate(), Interrupt)
    wait_for(lambda: not compiler.left() and not children_of(os.getpid()))


def test_a_child_that_takes_too_much_memory_is_killed() -> None:
    small = Worker(memory_limit_bytes=20 << 20)
    with pytest.raises(ChildTooBig, match="20 MiB") as caught:
        small.send(b"", until=time.monotonic() + AGES_S)
    assert caught.value.used_bytes > 20 << 20
    small.close()


@pytest.mark.slow
def test_a_starved_child_is_replaced_by_one_of_a_higher_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CpuShare, "is_starved", lambda *_: True)
    worker = Worker(priority="idle")
    with pytest.raises(ChildFailed):  # by the second child: this is no graph
        worker.send(b"", until=time.monotonic() + AGES_S)
    (child,) = children_of(os.getpid())
    assert os.sched_getscheduler(child.pid) == os.sched_getscheduler(0)
    assert child.nice() > os.getpriority(os.PRIO_PROCESS, 0)
    worker.close()


def test_memory_is_that_of_all_descendants() -> None:
    eat = "x = b'x' * (200 << 20); print('full', flush=True); input()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {eat!r}])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", parent], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"full\n"
        for limit in (1, 1 << 40):
            members = tree(process.pid)
            held = child_process.memory_bytes(members, limit=limit)
            assert 200 << 20 < held < 400 << 20
        process.stdin.close()


def test_a_child_ends_unused_once_no_model_awaits_it() -> None:
    class Model:
        pass

    worker, one, other = Worker(), Model(), Model()
    before = set(children_of(os.getpid()))
    worker.warm(one)
    worker.warm(other)
    wait_for(lambda: set(children_of(os.getpid())) - before)
    worker.end_unused(one)
    assert set(children_of(os.getpid())) - before
    worker.end_unused(other)
    assert not set(children_of(os.getpid())) - before


def test_a_fork_leaves_the_parents_child_alone(worker: Worker) -> None:
    worker.warm()
    before = wait_for(lambda: children_of(os.getpid()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks where there are threads
        fork = os.fork()
    if fork == 0:
        try:
            worker.warm()
            own = wait_for(lambda: children_of(os.getpid()))
            worker.close()
            os._exit(0 if own != before and not children_of(os.getpid()) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(fork, 0)[1] == 0
    assert children_of(os.getpid()) == before


PARENT = """
import sys, time
from pathlib import Path
from torchproof.runtime.codegen_worker import Worker
worker = Worker()
worker.warm()
payload, cache = Path(sys.argv[1]).read_bytes(), sys.argv[2]
if payload:
    told = {"TORCHINDUCTOR_CACHE_DIR": cache}
    worker.send(payload, until=time.monotonic() + 300, environment=told)
"""


@pytest.mark.slow
def test_the_child_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    compiler = HungCompiler(tmp_path / "hung", CHILD_HANGS)
    file = tmp_path / "payload"
    command = [sys.executable, "-c", PARENT, str(file), str(compiler.cache)]
    file.write_bytes(compiler.payload)
    with subprocess.Popen(command) as parent:
        wait_for(compiler.flag.exists)
        (child,) = children_of(parent.pid)
        assert compiler.left()
        parent.kill()
    wait_for(lambda: not compiler.left() and not child.is_running())

    file.write_bytes(b"")
    finished = subprocess.run(command, capture_output=True, timeout=AGES_S)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, b"", b"")


@pytest.mark.slow
def test_a_child_with_nothing_to_do_ends_and_is_replaced(worker: Worker) -> None:
    elsewhere = Elsewhere(worker)
    assert torch.equal(elsewhere(torch.cos, torch.zeros(2)), torch.ones(2))
    (child,) = children_of(os.getpid())
    wait_for(lambda: not child.is_running())  # reaped as well
    assert torch.equal(elsewhere(torch.sin, torch.zeros(2)), torch.zeros(2))


def test_the_innermost_telling_frame_names_the_phase() -> None:
    site = "/x/site-packages"
    dynamo = (f"{site}/torch/_dynamo/symbolic_convert.py", "step")
    aot = (f"{site}/torch/_functorch/aot_autograd.py", "create_aot_dispatcher_function")
    inductor = (f"{site}/torch/_inductor/scheduler.py", "fuse_nodes")
    wrapper = (f"{site}/torch/_dynamo/eval_frame.py", "_fn")
    heuristics = f"{site}/torch/_inductor/runtime/triton_heuristics.py"
    own = ("/home/me/model.py", "forward")
    innermost = {
        (f"{site}/sympy/core/add.py", "flatten"): "symbolic shapes",
        (f"{site}/filelock/_api.py", "acquire"): "lock",
        (f"{site}/torch/_inductor/cpp_builder.py", "build"): "C++ compiler",
        (f"{site}/triton/compiler/compiler.py", "compile"): "Triton compiler",
        (heuristics, "_precompile_config"): "Triton compiler",
        (heuristics, "benchmark_all_configs"): "autotuning",
        (f"{site}/torch/_inductor/async_compile.py", "wait"): "worker pool",
        (f"{site}/torch/distributed/distributed_c10d.py", "all_reduce"): "collective",
        wrapper: "code generation",
        own: "code generation",
    }
    for frame, phase in innermost.items():
        assert phase_of_frames([dynamo, aot, inductor, frame]) == phase
    assert phase_of_frames([dynamo, own]) == "tracing"
    assert phase_of_frames([dynamo, aot, own]) == "AOTAutograd"
    assert phase_of_frames([own]) is None and phase_of_frames([]) is None


def test_a_dump_of_stacks_is_read_thread_by_thread() -> None:
    dump = (
        "Thread 0x01 (most recent call first):\n"
        '  File "/a/subprocess.py", line 3 in wait\n\n'
        "Current thread 0x02 (most recent call first):\n"
        '  File "/b/c.py", line 1 in inner\n'
        '  File "/b/d e.py", line 2 in <module>\n'
    )
    first, second = child_process.parse_stacks(dump)
    assert first == [("/a/subprocess.py", "wait")]
    assert second == [("/b/d e.py", "<module>"), ("/b/c.py", "inner")]


@pytest.mark.slow
def test_the_error_of_a_compile_worker_is_named() -> None:
    """Inductor's processes for Triton kernels send tracebacks, not errors."""
    from torch._inductor.compile_worker import subproc_pool

    pool = subproc_pool.SubprocPool(1)
    try:
        error = pool.submit(subproc_pool.raise_testexc).exception(120)
    finally:
        pool.shutdown()
    assert error is not None
    assert backend.one_line(error) == "SubprocException: TestException"
