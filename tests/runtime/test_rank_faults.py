"""A fault on one of two real ranks: all ranks run eager, none waits for ever.

Each function below runs on both ranks of a launch.
"""

from __future__ import annotations

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

RANKS = 2
FAULTY = 1  # the rank with the fault
HANG_S = 1.5  # the deadline of a compiler that never ends
DEADLINE_S = 5.0  # of ranks that wait for a dead one


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
    while True:
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
    """Both ranks compile, and compile again; one needs new code alone."""
    model, eager = Reduced(), Reduced()
    torchproof.compile(model, backend=works, dynamic=False)
    with torch.no_grad():
        for rows in (3, 2, 4 if rank == FAULTY else 3):
            x = batch(0, rows)
            torch.testing.assert_close(model(x), eager(x))
    status = torchproof.status(model)
    assert kinds(model) == [] and status.compiled_calls == 3, str(status)
    assert status.ranks is not None and status.ranks["alone"] is None


def lone_recompile_fails(rank: int) -> None:
    """A rank that alone has to recompile, and fails, takes the others to eager."""
    compilations: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        compilations.append(gm)
        return (raises if len(compilations) > 1 else works)(gm, inputs)

    def total(x: Tensor) -> Tensor:
        value = x.sum()
        dist.all_reduce(value)
        return value

    compiled = torchproof.compile(total, deadline=20, backend=backend, dynamic=False)
    for call in range(200):
        size = 5 if rank == FAULTY and call > 2 else 4
        assert compiled(torch.ones(size)).item() == (9.0 if call > 2 else 8.0)
        time.sleep(0.01)
    status = torchproof.status(compiled)
    assert status.ranks is not None and status.strategy == "eager"
    switches: list[Any] = [None] * RANKS
    dist.all_gather_object(switches, status.ranks["decisions"][-1].split(":")[0])
    assert len(set(switches)) == 1, switches


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
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    for name in names.split(","):
        globals()[name](rank)
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
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        is_killed = rank == FAULTY and rank_dies in functions
        assert process.returncode == (-signal.SIGKILL if is_killed else 0), output


@pytest.mark.slow
def test_all_ranks_run_eager_if_one_fails() -> None:
    run_on_ranks(no_fault, faults_of_the_compiler, rank_dies)


@pytest.mark.slow
def test_all_ranks_run_eager_if_the_recompile_of_one_fails() -> None:
    run_on_ranks(lone_recompile_fails)


@pytest.mark.slow
def test_ranks_agree_where_other_libraries_divide_models() -> None:
    run_on_ranks(
        training_with_tensor_parallel_layers,
        ranks_without_collectives_decide_alone,
        guard_collectives,
        code_compiled_in_the_background,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
