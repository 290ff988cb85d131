"""Code is generated in one child process, which can be killed and leaves nothing."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch._inductor.config
from commands import python
from torch import Tensor, nn
from waiting import AGES_S, in_fork, wait_for

import torchproof
from torchproof.runtime import compile_job
from torchproof.torch_private import remote_codegen


@pytest.fixture(autouse=True)
def no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins with an empty cache and without a child."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    workers = [compile_job.worker_of(waits=waits) for waits in (True, False)]
    for worker in workers:
        worker.close()
    torch._dynamo.reset()
    yield
    for worker in workers:
        worker.close()
    torch._dynamo.reset()


def children(pid: int | None = None) -> set[psutil.Process]:
    """The children that generate code, without those that are ending."""
    return {
        process
        for process in psutil.Process(pid or os.getpid()).children()
        if process.status() != psutil.STATUS_ZOMBIE
        and "torchproof.runtime.child" in process.cmdline()
    }


def net(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(width, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)
    return nn.Sequential(*layers)


# -- what is sent ----------------------------------------------------------------------


@pytest.mark.slow
def test_one_child_generates_the_code_of_all_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It starts in `compile`; outputs, gradients and guards are those of torch."""
    commands: list[Any] = []
    start = subprocess.Popen.__init__

    def note(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        commands.append(args)
        start(self, args, *rest, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", note)
    first = torchproof.compile(net(4))
    (child,) = wait_for(children)
    for model, width in ((first, 4), (torchproof.compile(net(6)), 6)):
        plain, x = net(width), torch.randn(2, width)
        for each in (plain, model):
            each(x).square().sum().backward()
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad)
        status = torchproof.status(model)
        assert sum(each.in_child for each in status.compilations) >= 1, status
        assert not status.fallbacks and children() == {child}
    # What this process loads is compiled, and tried, by the child.
    asked = {str(args) for args in commands if "torchproof.runtime.child" not in args}
    assert all("--version" in each for each in asked), asked

    def pool(x: Tensor) -> Tensor:  # Inductor unrolls it for one size
        return torch.nn.functional.adaptive_avg_pool2d(x, 3)

    pooled = torchproof.compile(pool, dynamic=True)
    for size in (20, 7):
        x = torch.randn(1, 2, size, size)
        torch.testing.assert_close(pooled(x), pool(x))
    assert len(torchproof.status(pooled).compilations) == 2


@torch.library.custom_op("torchproof_test::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


@pytest.mark.slow
def test_what_only_this_process_has_is_compiled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Custom operators, branches, passes and lowerings of the user."""
    x, sine = torch.ones(3), torch.ops.aten.sin.default
    lowerings = importlib.import_module("torch._inductor.lowering").lowerings
    cosine = lowerings[torch.ops.aten.cos.default]
    no_pass = {"post_grad_custom_post_pass": lambda graph: None}
    cases: list[tuple[Callable[..., Any], dict[str, Any], bool]] = [
        (lambda x: double(x) + 1, {}, False),
        (branch, {}, False),
        (lambda x: x + 4, no_pass, False),
        (torch.sin, {}, True),
    ]
    for function, settings, replaces in cases:
        if replaces:
            monkeypatch.setitem(lowerings, sine, lambda x: cosine(x))
        compiled = torchproof.compile(function)
        with torch._inductor.config.patch(settings):
            answer = compiled(x)
        expected = torch.cos(x) if replaces else function(x)
        torch.testing.assert_close(answer, expected)
        status = torchproof.status(compiled)
        [only] = status.compilations
        assert only.in_child == 0 and not status.fallbacks, status


@pytest.mark.slow
def test_gradients_of_distributed_tensors_keep_their_mesh() -> None:
    """The backward graph returns it, and without collectives it could be sent."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    def layer() -> nn.Module:
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (1,))
        return parallelize_module(nn.Linear(4, 4), mesh, ColwiseParallel())

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        models = layer(), torchproof.compile(layer())
        for model in models:
            model(torch.ones(2, 4)).sum().backward()
        for parameters in zip(*(m.parameters() for m in models), strict=True):
            plain, compiled = (p.grad.full_tensor() for p in parameters)
            torch.testing.assert_close(compiled, plain)
        assert not torchproof.status(models[1]).fallbacks
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_other_threads_and_plain_torch_compile_generate_code_here() -> None:
    payloads: list[bytes] = []
    answers: list[Tensor] = []
    with remote_codegen.codegen_in_child(payloads.append, lambda why: None):
        other = threading.Thread(
            target=lambda: answers.append(torch.compile(torch.cos)(torch.zeros(3)))
        )
        other.start()
        other.join()
    assert torch.equal(answers[0], torch.ones(3)) and not payloads


ASKS_EARLY = """
import torch
from torch._inductor import codecache
from torchproof.torch_private import remote_codegen

remote_codegen.prepare()
[thread] = remote_codegen._asking
thread.join()
headers = codecache._precompile_header.__wrapped__
assert headers.cache_info().misses == 1
torch.compile(torch.relu)(torch.ones(2))
assert (headers.cache_info().hits, headers.cache_info().misses) == (1, 1)
"""


@pytest.mark.slow
def test_the_header_that_the_child_compiles_early_is_that_of_kernels() -> None:
    done = python(ASKS_EARLY)
    assert done.returncode == 0, done.stderr


# -- when a child runs, and how it ends ------------------------------------------------


@pytest.mark.parametrize("waits", [True, False])
def test_the_child_yields_the_cpus_only_if_nobody_waits(waits: bool) -> None:
    model = torchproof.compile(net(4), wait=waits)  # without it, the child ends
    (child,) = wait_for(children)
    policy = os.sched_getscheduler(0) if waits else os.SCHED_IDLE
    wait_for(lambda: os.sched_getscheduler(child.pid) == policy)
    del model


def test_no_child_for_what_needs_no_generated_code() -> None:
    models = [
        torchproof.compile(net(4), strategy="eager"),
        torchproof.compile(net(4), backend="eager"),
        torchproof.compile(lambda x: x + 1),  # it may never be called
    ]
    assert models and not children()


class Untraceable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            torch._dynamo.graph_break()
        return x + 1


def test_a_child_that_no_model_needs_any_more_ends() -> None:
    model, other = torchproof.compile(Untraceable()), torchproof.compile(Untraceable())
    wait_for(children)
    assert torch.equal(model(torch.zeros(2)), torch.ones(2))
    assert torchproof.status(model).fallbacks
    other(torch.zeros(2))
    wait_for(lambda: not children())


def test_a_fork_leaves_the_child_of_its_parent_alone() -> None:
    model = torchproof.compile(net(4))  # without it, the child ends
    before = wait_for(children)

    def start_another() -> None:
        other = torchproof.compile(net(4))
        assert wait_for(children) != before
        compile_job.shared_worker().close()
        assert not children()
        del other

    assert in_fork(start_another) == 0
    assert children() == before
    del model


# An argument of `sleep` that nobody else uses, so that it can be found.
SECONDS = f"{time.monotonic_ns()}.5"
# Writes a part of the library and waits to be killed; the next time it compiles.
LINKER = """#!/bin/bash
if [[ "$*" = *.main.cpp* && ! -e {mark} ]]; then
    while [ "$1" != -o ]; do shift; done
    echo part of a library > "$2"
    touch {mark}
    sleep {seconds}
fi
exec g++ "$@"
"""


@pytest.fixture
def linker(tmp_path: Path) -> Path:
    path = tmp_path / "cxx"
    path.write_text(LINKER.format(mark=tmp_path / "linking", seconds=SECONDS))
    path.chmod(0o755)
    return path


@pytest.mark.slow  # two compile processes
@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs C++ kernels")
def test_killed_linker_leaves_no_library_behind(
    linker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (str(linker),))

    def kill_child() -> None:
        wait_for(linker.with_name("linking").exists)
        for child in children():
            child.kill()

    def fallbacks() -> list[Any]:
        torch._dynamo.reset()
        model = torchproof.compile(lambda x: (x * 2.5).sin(), deadline=AGES_S)
        torch.testing.assert_close(model(x), (x * 2.5).sin())
        return list(torchproof.status(model).fallbacks)

    x = torch.ones(9)
    killer = threading.Thread(target=kill_child)
    killer.start()
    assert len(fallbacks()) == 1
    killer.join()
    assert not fallbacks()


PARENT = """
import torch, torchproof
torchproof.compile(lambda x: (x * 2.5).sin())(torch.ones(9))
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs C++ kernels")
def test_child_and_compiler_end_with_a_parent_that_is_killed(linker: Path) -> None:
    variables = {**os.environ, "CXX": str(linker)}

    def sleeping() -> list[int]:
        return [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if SECONDS in (process.info["cmdline"] or [])
        ]

    with subprocess.Popen([sys.executable, "-c", PARENT], env=variables) as parent:
        wait_for(linker.with_name("linking").exists)
        (child,) = children(parent.pid)
        assert wait_for(sleeping)
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not sleeping() and not child.is_running())
