"""A fault on one of two real ranks: all ranks run eager, none waits for ever.

Each function below runs on both ranks of a launch.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import torchproof
from torchproof.runtime import compile_job

RANKS = 2
FAULTY = 1  # the rank with the fault
HANG_S = 1.5  # the deadline of a compiler that never ends
DEADLINE_S = 5.0  # of ranks that wait for a dead one
LIMIT_S = 150.0  # of a launch; before, each rank prints where it hangs


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


class Reduced(nn.Module):
    """Its graph contains a collective of both ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        total = y.abs().sum()
        dist.all_reduce(total)
        return y / total


def tensor_parallel() -> nn.Module:
    """The same with DTensors, which can be trained."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan: Any = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(layers(), init_device_mesh("cpu", (RANKS,)), plan)


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model: nn.Module = fully_shard(layers())
    return model


def batch(seed: int, rows: int = 3) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    values: list[Any] = [parameter.grad for parameter in model.parameters()]
    return [each.to_local() if hasattr(each, "to_local") else each for each in values]


def kinds(model: Any) -> list[str]:
    return [item.kind for item in torchproof.status(model).fallbacks]


# -- backends --------------------------------------------------------------------------


def works(gm: Any, inputs: Any) -> Callable[..., Any]:
    run: Callable[..., Any] = gm.forward
    return run


def hangs(gm: Any, inputs: Any) -> Any:
    while (job := compile_job.current()) is not None:
        job.check()  # as each operation of a pass does
        time.sleep(0.05)


def raises(gm: Any, inputs: Any) -> Any:
    raise RuntimeError("planted")


def is_wrong(gm: Any, inputs: Any) -> Callable[..., Any]:
    return lambda *args: [value * 1.5 for value in gm.forward(*args)]


def dies(gm: Any, inputs: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


# -- faults ----------------------------------------------------------------------------


# The backend of the rank with the fault, the kind of its fallback, and options.
FAULTS: tuple[tuple[Callable[..., Any], str, dict[str, Any]], ...] = (
    (raises, "compile error", {}),
    (hangs, "deadline", {}),
    (is_wrong, "verification", {"verify": "first"}),
)


def faults_of_the_compiler(rank: int) -> None:
    for faulty, kind, options in FAULTS:
        model, eager = Reduced(), Reduced()
        backend = faulty if rank == FAULTY else works
        # The other rank waits for the vote of this one, within its own deadline.
        deadline = HANG_S if backend is hangs else 100.0
        torchproof.compile(model, backend=backend, deadline=deadline, **options)
        began = time.monotonic()
        with torch.no_grad():
            for seed in range(2):
                torch.testing.assert_close(model(batch(seed)), eager(batch(seed)))
        assert time.monotonic() - began < DEADLINE_S + 60
        status = torchproof.status(model)
        expected = kind if rank == FAULTY else "agreement"
        assert kinds(model) == [expected], str(status)
        assert status.compiled_calls == 0, str(status)


def no_fault(rank: int) -> None:
    """Both ranks compile, one later than the other; then one recompiles alone."""

    def late(gm: Any, inputs: Any) -> Callable[..., Any]:
        time.sleep(1.0 if rank == FAULTY else 0.0)  # as with a cold cache
        return works(gm, inputs)

    model, eager = Reduced(), Reduced()
    torchproof.compile(model, backend=late, dynamic=False)
    with torch.no_grad():
        for rows in (3, 2, 4 if rank == FAULTY else 3):
            x = batch(0, rows)
            torch.testing.assert_close(model(x), eager(x))
    status = torchproof.status(model)
    assert kinds(model) == [] and status.compiled_calls == 3, str(status)
    assert status.ranks is not None and status.ranks["decisions"] == []
    assert len(status.compilations) == (3 if rank == FAULTY else 2)


def two_models_of_a_class(rank: int) -> None:
    """One fails on a rank; the other one, which contains a third, does not."""
    model, other, eager = Reduced(), Reduced(), Reduced()
    torchproof.compile(model, backend=raises if rank == FAULTY else works)
    other.layers = torchproof.compile(other.layers, backend=works)
    torchproof.compile(other, backend=works)
    with torch.no_grad():
        for seed in range(2):
            for each in (model, other):
                torch.testing.assert_close(each(batch(seed)), eager(batch(seed)))
    assert torchproof.status(model).compiled_calls == 0
    assert torchproof.status(other).compiled_calls == 2


def a_recompile_fails(rank: int) -> None:
    """Both ranks compile for new sizes; one fails, and none uses the new code."""
    compilations: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        compilations.append(gm)
        dist.barrier()
        fails = rank == FAULTY and len(compilations) > 1
        return (raises if fails else works)(gm, inputs)

    model, eager = Reduced(), Reduced()
    torchproof.compile(model, deadline=60, backend=backend, dynamic=False)
    with torch.no_grad():
        for rows in (3, 2, 3, 2):
            x = batch(0, rows)
            torch.testing.assert_close(model(x), eager(x))
    status = torchproof.status(model)
    assert kinds(model) == ["compile error" if rank == FAULTY else "agreement"]
    assert status.compiled_calls == 2 and len(compilations) == 2, str(status)


def one_rank_is_too_slow(rank: int) -> None:
    """A compiler that cannot be stopped outlasts the deadline of the other rank."""

    def slow(gm: Any, inputs: Any) -> Callable[..., Any]:
        time.sleep(HANG_S + 2.0)
        return works(gm, inputs)

    model, eager = Reduced(), Reduced()
    backend = slow if rank == FAULTY else works
    torchproof.compile(
        model, backend=backend, deadline=60.0 if rank == FAULTY else HANG_S
    )
    with torch.no_grad():
        for seed in range(2):
            torch.testing.assert_close(model(batch(seed)), eager(batch(seed)))
    status = torchproof.status(model)
    assert status.compiled_calls == 0 and kinds(model) == ["agreement"], str(status)
    assert f"rank {FAULTY} (no answer)" in status.fallbacks[0].why


def the_time_is_over_before_the_collective(rank: int) -> None:
    """A rank that missed its deadline compiles nothing else in this call."""

    def forward(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        dist.all_reduce(y)
        return y

    backend, deadline = (hangs, HANG_S) if rank == FAULTY else (works, 100.0)
    compiled = torchproof.compile(forward, backend=backend, deadline=deadline)
    began = time.monotonic()
    for _ in range(2):
        torch.testing.assert_close(compiled(batch(0)), forward(batch(0)))
    assert time.monotonic() - began < 60
    assert torchproof.status(compiled).fallbacks


def the_model_raises(rank: int) -> None:
    """Its own error is no objection."""
    model, eager = Reduced(), Reduced()
    torchproof.compile(model, backend=works)
    with torch.no_grad():
        for columns in (5, 4):
            x = torch.ones(3, columns)
            if columns == 5:
                with pytest.raises(RuntimeError):
                    model(x)
            else:
                torch.testing.assert_close(model(x), eager(x))
    status = torchproof.status(model)
    assert not status.fallbacks and status.compiled_calls == 1, str(status)


def only_one_rank_calls(rank: int) -> None:
    """Without collectives it waits for nobody."""
    if rank == FAULTY:
        return
    model = torchproof.compile(layers(), backend=works)
    began = time.monotonic()
    torch.testing.assert_close(model(batch(0)), layers()(batch(0)))
    assert time.monotonic() - began < 30
    assert torchproof.status(model).compiled_calls == 1


def a_rank_runs_eager_from_the_start(rank: int) -> None:
    model, eager = Reduced(), Reduced()
    strategy = "eager" if rank == FAULTY else "full"
    torchproof.compile(model, backend=works, strategy=strategy)
    with torch.no_grad():
        torch.testing.assert_close(model(batch(0)), eager(batch(0)))
    assert torchproof.status(model).compiled_calls == 0


def retried(rank: int) -> None:
    """After `torchproof.retry` on all ranks, they agree anew."""
    attempts: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        attempts.append(gm)
        fails = rank == FAULTY and len(attempts) == 1
        return (raises if fails else works)(gm, inputs)

    model, eager = Reduced(), Reduced()
    torchproof.compile(model, backend=backend)
    with torch.no_grad():
        for compiled_calls in (0, 1):
            torch.testing.assert_close(model(batch(0)), eager(batch(0)))
            assert torchproof.status(model).compiled_calls == compiled_calls
            torchproof.retry(model)


def compiled_then_wrapped(backend: Any) -> nn.Module:
    return DistributedDataParallel(torchproof.compile(layers(), backend=backend))


def wrapped_then_compiled(backend: Any) -> nn.Module:
    wrapped = DistributedDataParallel(layers())
    assert torchproof.compile(wrapped, backend=backend) is wrapped
    return wrapped


def sharded_then_compiled(backend: Any) -> nn.Module:
    return torchproof.compile(sharded(), backend=backend)


def ranks_without_collectives_decide_alone(rank: int) -> None:
    """Those of DDP and FSDP2 are outside the graphs."""
    for make in (compiled_then_wrapped, wrapped_then_compiled, sharded_then_compiled):
        model = make(raises if rank == FAULTY else works)
        is_sharded = make is sharded_then_compiled
        eager = sharded() if is_sharded else DistributedDataParallel(layers())
        for seed in range(2):
            x = batch(seed + rank)
            torch.testing.assert_close(gradients(model, x), gradients(eager, x))
        status = torchproof.status(model)
        assert set(kinds(model)) == ({"compile error"} if rank == FAULTY else set())
        assert bool(status.compilations) is (rank != FAULTY), str(status)
        assert status.ranks is not None and status.ranks["decides_with"] == []


def training_with_tensor_parallel_layers(rank: int) -> None:
    # No fault: with DTensors, a rank waits for a failed one until the deadline.
    model, eager = tensor_parallel(), tensor_parallel()
    torchproof.compile(model, backend=works)
    for seed in range(2):
        x = batch(seed)
        torch.testing.assert_close(gradients(model, x), gradients(eager, x))
    assert kinds(model) == []


def code_compiled_in_the_background(rank: int) -> None:
    """Ranks would begin to use code with collectives at different calls: none does."""
    model, eager = Reduced(), Reduced()
    torchproof.compile(model, wait=False, deadline=60, backend=works)
    has_decided = torch.zeros(1)
    with torch.no_grad():
        while not has_decided.item():
            torch.testing.assert_close(model(batch(0)), eager(batch(0)))
            has_decided.fill_(len(kinds(model)))
            dist.all_reduce(has_decided, dist.ReduceOp.MIN)
    status = torchproof.status(model)
    assert kinds(model) == ["agreement"] and status.compiled_calls == 0, str(status)


def guard_collectives(rank: int) -> None:
    """They make all ranks recompile; one fails, and none uses the code."""
    compilations: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        compilations.append(gm)
        fails = rank == FAULTY and len(compilations) > 1
        return (raises if fails else works)(gm, inputs)

    model, eager = layers(), layers()
    torch.compiler.set_enable_guard_collectives(True)
    try:
        torchproof.compile(model, deadline=20, backend=backend, dynamic=False)
        for call in range(4):
            x = batch(call, 2 if rank == FAULTY and call else 3)
            torch.testing.assert_close(model(x), eager(x))
        assert kinds(model) == ["compile error" if rank == FAULTY else "agreement"]
        assert len(compilations) == 2
    finally:
        torch.compiler.set_enable_guard_collectives(False)


def rank_dies(rank: int) -> None:
    """The others get the error of their own collective, and work on."""
    model = torchproof.compile(
        Reduced(), deadline=DEADLINE_S, backend=dies if rank == FAULTY else works
    )
    with torch.no_grad(), pytest.raises(RuntimeError):
        model(batch(0))
    assert kinds(model) == ["agreement"], str(torchproof.status(model))
    alone = torchproof.compile(layers(), backend=works)
    torch.testing.assert_close(alone(batch(0)), layers()(batch(0)))


# -- launches --------------------------------------------------------------------------


def main(names: str, rank: int, port: int) -> None:
    faulthandler.dump_traceback_later(LIMIT_S - 30, exit=True)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    for name in names.split(","):
        began = time.monotonic()
        globals()[name](rank)
        print(f"{time.monotonic() - began:6.1f} s {name}", flush=True)
        if name != rank_dies.__name__:
            dist.barrier()
    os._exit(0)  # a group with a dead rank cannot be closed


def run_on_ranks(*functions: Callable[[int], None]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    names = ",".join(function.__name__ for function in functions)
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, names, str(rank), str(port)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = ["" for _ in processes]
    try:
        for rank, process in enumerate(processes):
            outputs[rank] = process.communicate(timeout=LIMIT_S)[0]
    finally:
        for process in processes:
            process.kill()
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        is_killed = rank == FAULTY and rank_dies in functions
        assert process.returncode == (-signal.SIGKILL if is_killed else 0), output


def test_ranks_use_compiled_code_together_or_not_at_all() -> None:
    run_on_ranks(
        *(no_fault, faults_of_the_compiler, a_recompile_fails),
        *(one_rank_is_too_slow, only_one_rank_calls, rank_dies),
    )


@pytest.mark.slow
def test_ranks_agree_whatever_divides_the_model_or_comes_before() -> None:
    run_on_ranks(
        *(two_models_of_a_class, the_model_raises, retried),
        *(the_time_is_over_before_the_collective, a_rank_runs_eager_from_the_start),
        *(training_with_tensor_parallel_layers, guard_collectives),
        *(ranks_without_collectives_decide_alone, code_compiled_in_the_background),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
