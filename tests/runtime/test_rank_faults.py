"""Faults on one of two real ranks: no rank waits forever, and gradients are eager's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import torchproof
from torchproof.runtime import agreement as agreements
from torchproof.runtime import rank_messages

RANKS = 2
FAULTY = 1  # the rank with the fault
DEADLINES_S: list[float] = []  # one, long enough for a compiler without a fault

Compile = Callable[[Any, Any], Callable[..., Any]]


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


def tensor_parallel() -> nn.Module:
    """A model whose graph contains a collective of both ranks."""
    mesh = init_device_mesh("cpu", (RANKS,))
    return parallelize_module(
        plain(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )


def batch(seed: int = 0) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    values = [parameter.grad for parameter in model.parameters()]
    return [
        value.to_local() if hasattr(value, "to_local") else value for value in values
    ]


def assert_like_eager(model: nn.Module, eager: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(gradients(model, x), gradients(eager, x))


# -- backends --------------------------------------------------------------------------


def works(gm: Any, inputs: Any) -> Callable[..., Any]:
    run: Callable[..., Any] = gm.forward
    return run


def hangs(gm: Any, inputs: Any) -> Callable[..., Any]:
    while True:
        time.sleep(0.05)


def raises(gm: Any, inputs: Any) -> Callable[..., Any]:
    raise RuntimeError("planted in a backend")


def is_wrong(gm: Any, inputs: Any) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return [value * 1.5 for value in gm.forward(*args)]

    return run


def dies(gm: Any, inputs: Any) -> Callable[..., Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def enough_s() -> float:
    """A deadline that a rank misses only if its compiler hangs; on all ranks alike."""
    for _ in range(2):  # the first time loads the compiler
        begin = time.monotonic()
        torch.compile(tensor_parallel(), backend=works)(batch()).sum().backward()
        seconds = time.monotonic() - begin
        torch.compiler.reset()
    both = torch.tensor(seconds)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return max(2.0, 5 * both.item())


_WAKE_EVERY_S = 0.05
_LATE_S = 0.02  # threads of one process let each other wait for less


@contextlib.contextmanager
def timed(fault: Callable[..., None], rank: int) -> Iterator[None]:
    """Prints how long a call took, and for how long the machine kept it from running.

    For the latter, a thread asks to be woken after a fixed time, again and again.
    """
    over = threading.Event()
    late_s: list[float] = []

    def wake() -> None:
        while not over.is_set():
            asked = time.monotonic()
            over.wait(_WAKE_EVERY_S)
            late_s.append(time.monotonic() - asked - _WAKE_EVERY_S)

    thread = threading.Thread(target=wake)
    thread.start()
    begin = time.monotonic()
    try:
        yield
    finally:
        seconds = time.monotonic() - begin
        over.set()
        thread.join()
        call = {"fault": fault.__name__, "rank": rank, "deadline_s": DEADLINES_S[0]}
        call |= {"seconds": seconds, "starved_s": sum(s for s in late_s if s > _LATE_S)}
        print(json.dumps(call), flush=True)


def kinds(model: Any) -> list[str]:
    return [item.kind for item in torchproof.status(model).fallbacks]


# -- faults: each runs on both ranks ---------------------------------------------------


def compiler_hangs_with_collectives(rank: int) -> None:
    """Both ranks run the call eager in which one misses its deadline."""
    model, eager = tensor_parallel(), tensor_parallel()
    backend = hangs if rank == FAULTY else works
    torchproof.compile(model, deadline=DEADLINES_S[0], backend=backend)
    with timed(compiler_hangs_with_collectives, rank):
        assert_like_eager(model, eager, batch(0))
    assert_like_eager(model, eager, batch(1))
    status = torchproof.status(model)
    assert kinds(model) == ["deadline" if rank == FAULTY else "agreement"], str(status)
    assert status.compiled_calls == 0


def compiler_hangs_without_collectives(rank: int) -> None:
    """The rank that misses its deadline runs eager alone."""
    inner = plain()
    backend = hangs if rank == FAULTY else works
    torchproof.compile(inner, deadline=DEADLINES_S[0], backend=backend)
    model = DistributedDataParallel(inner)
    eager = DistributedDataParallel(plain())
    for seed in range(2):
        assert_like_eager(model, eager, batch(seed + rank))
    status = torchproof.status(model)
    assert kinds(model) == (["deadline"] if rank == FAULTY else []), str(status)
    assert status.ranks is not None and status.ranks["decides_with"] == []
    if rank != FAULTY:
        assert [item["rank"] for item in status.ranks["fallbacks"]] == [FAULTY]


def verification_fails(rank: int) -> None:
    """All ranks go eager after the call that was wrong on one of them."""
    model, eager = tensor_parallel(), tensor_parallel()
    backend = is_wrong if rank == FAULTY else works
    deadline = DEADLINES_S[0]
    torchproof.compile(model, verify="first", deadline=deadline, backend=backend)
    with timed(verification_fails, rank):
        assert_like_eager(model, eager, batch(0))
    assert_like_eager(model, eager, batch(1))
    assert kinds(model) == ["verification" if rank == FAULTY else "agreement"]
    assert torchproof.status(model).strategy == "eager"


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
        expected = float(9 if call > 2 else 8)
        assert compiled(torch.ones(size)).item() == expected
        time.sleep(0.01)
    ranks = torchproof.status(compiled).ranks
    assert ranks is not None and torchproof.status(compiled).strategy == "eager"
    switches: list[Any] = [None] * RANKS
    dist.all_gather_object(switches, ranks["decisions"][-1].split(":")[0])
    assert len(set(switches)) == 1, switches


def rank_dies(rank: int) -> None:
    """The others get the error of their own collective, and work on."""
    model = tensor_parallel()
    backend = dies if rank == FAULTY else works
    torchproof.compile(model, deadline=DEADLINES_S[0], backend=backend)
    with timed(rank_dies, rank), pytest.raises(RuntimeError):
        model(batch()).sum()
    assert kinds(model) == ["agreement"], str(torchproof.status(model))
    alone = torchproof.compile(plain(), backend=works)
    assert_like_eager(alone, plain(), batch())


def recompile_fails_with_guard_collectives(rank: int) -> None:
    """Guard collectives make all ranks recompile; one fails, and none uses the code."""
    compilations: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        compilations.append(gm)
        fails = rank == FAULTY and len(compilations) > 1
        return (raises if fails else works)(gm, inputs)

    inner = plain()
    torch.compiler.set_enable_guard_collectives(True)
    try:
        torchproof.compile(inner, deadline=20, backend=backend, dynamic=False)
        model = DistributedDataParallel(inner)
        eager = DistributedDataParallel(plain())
        for call in range(4):
            rows = 2 if rank == FAULTY and call else 3
            assert_like_eager(model, eager, batch(call)[:rows])
        assert kinds(model) == ["compile error" if rank == FAULTY else "agreement"]
        assert len(compilations) == 2
        # Without a failure, ranks that recompile together keep their code.
        torchproof.retry(model)
        compilations.clear()
        assert_like_eager(model, eager, batch())
        assert kinds(model) == []
    finally:
        torch.compiler.set_enable_guard_collectives(False)


def compiler_fails_under_fsdp(rank: int) -> None:
    """FSDP2 runs its collectives outside the graphs: a rank may run eager alone."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    model, eager = (fully_shard(plain(), mesh=mesh) for _ in range(2))
    backend = raises if rank == FAULTY else works
    torchproof.compile(model, deadline=20, backend=backend)
    for seed in range(2):
        assert_like_eager(model, eager, batch(seed + rank))
    status = torchproof.status(model)
    assert status.ranks is not None and status.ranks["decides_with"] == []
    assert (kinds(model) != []) == (rank == FAULTY), str(status)


def code_compiled_in_the_background(rank: int) -> None:
    """Ranks would begin to use code with collectives at different calls: none does."""
    model, eager = tensor_parallel(), tensor_parallel()
    torchproof.compile(model, wait=False, deadline=60, backend=works)
    is_settled = torch.zeros(1)
    while not is_settled.item():
        assert_like_eager(model, eager, batch())
        is_settled.fill_(len(kinds(model)))
        dist.all_reduce(is_settled, dist.ReduceOp.MIN)
    status = torchproof.status(model)
    assert kinds(model) == ["agreement"] and status.compiled_calls == 0, str(status)


def _break_store(how: str) -> None:
    """From now on the store of this rank raises, or does not answer."""

    def broken(self: Any, operation: Any) -> Any:
        if how == "hangs":
            time.sleep(3600)
        raise rank_messages.StoreLost("planted")

    rank_messages.RankMessages._do = broken  # type: ignore[method-assign]


def _store_breaks(rank: int, faulty: int, how: str, *, later: bool = False) -> None:
    works_still = rank_messages.RankMessages._do
    post_s, agreements._POST_S = agreements._POST_S, 1.0
    model, eager = tensor_parallel(), tensor_parallel()
    torchproof.compile(model, deadline=DEADLINES_S[0], backend=works, dynamic=False)
    if later:
        assert_like_eager(model, eager, batch(0))
        assert torchproof.status(model).compiled_calls == 1
    try:
        if rank == faulty:
            _break_store(how)
        for seed in range(2):
            assert_like_eager(model, eager, batch(seed)[:2])
        status = torchproof.status(model)
        assert kinds(model) == ["agreement"], str(status)
        assert status.strategy == "eager" and status.compiled_calls == later
    finally:
        rank_messages.RankMessages._do = works_still  # type: ignore[method-assign]
        agreements._POST_S = post_s


def store_raises_on_one_rank(rank: int) -> None:
    """Neither rank compiles; the same on the rank that serves the store."""
    _store_breaks(rank, FAULTY, "raises")
    dist.barrier()
    _store_breaks(rank, 1 - FAULTY, "raises")


def store_hangs_on_one_rank(rank: int) -> None:
    _store_breaks(rank, FAULTY, "hangs")


def store_breaks_before_a_recompile(rank: int) -> None:
    """Both ranks need new code for another size; the code that they have is agreed."""
    _store_breaks(rank, FAULTY, "raises", later=True)


def store_works(rank: int) -> None:
    """The twin of the faults above: both ranks compile, and compile again."""
    model, eager = tensor_parallel(), tensor_parallel()
    torchproof.compile(model, deadline=60, backend=works, dynamic=False)
    for rows in (3, 2):
        assert_like_eager(model, eager, batch()[:rows])
    status = torchproof.status(model)
    assert kinds(model) == [] and status.compiled_calls == 2, str(status)
    assert status.ranks is not None and status.ranks["alone"] is None


def store_dies(rank: int) -> None:
    """The rank that serves the store is killed: the others decide alone."""
    model = tensor_parallel()
    backend = dies if rank == 0 else works
    torchproof.compile(model, deadline=DEADLINES_S[0], backend=backend)
    with pytest.raises(RuntimeError):
        model(batch()).sum()
    ranks = torchproof.status(model).ranks
    assert ranks is not None and ranks["alone"] is not None
    alone = torchproof.compile(plain(), backend=works)
    assert_like_eager(alone, plain(), batch())


# After these, a rank is gone; the others cannot meet it again.
KILLED = {rank_dies.__name__: FAULTY, store_dies.__name__: 0}


def main(names: str, rank: int, port: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    DEADLINES_S.append(enough_s())
    for name in names.split(","):
        begin = time.monotonic()
        globals()[name](rank)
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
        if name not in KILLED:
            dist.barrier()
    os._exit(0)  # a group with a dead rank cannot be closed


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_ranks(*names: str) -> list[dict[str, Any]]:
    """Runs faults on both ranks; what `timed` measured on those that survive."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, ",".join(names), str(rank), str(port)],
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
        is_killed = any(KILLED.get(name) == rank for name in names)
        assert process.returncode == (-signal.SIGKILL if is_killed else 0), output
    lines = [line for output in outputs for line in output.splitlines()]
    return [json.loads(line) for line in lines if line.startswith('{"fault"')]


def test_no_fault_of_one_rank_stops_the_others() -> None:
    run_ranks(
        compiler_hangs_with_collectives.__name__,
        verification_fails.__name__,
        store_works.__name__,
        store_raises_on_one_rank.__name__,
        rank_dies.__name__,
    )


@pytest.mark.slow
def test_no_rank_compiles_if_the_store_of_one_hangs_or_breaks_later() -> None:
    run_ranks(
        store_hangs_on_one_rank.__name__, store_breaks_before_a_recompile.__name__
    )


@pytest.mark.slow
def test_a_rank_without_collectives_and_a_lone_recompile() -> None:
    run_ranks(
        compiler_hangs_without_collectives.__name__, lone_recompile_fails.__name__
    )


@pytest.mark.slow
def test_the_rank_that_serves_the_store_dies() -> None:
    run_ranks(store_dies.__name__)


@pytest.mark.slow
def test_guard_collectives_sharded_parameters_and_background() -> None:
    run_ranks(
        recompile_fails_with_guard_collectives.__name__,
        compiler_fails_under_fsdp.__name__,
        code_compiled_in_the_background.__name__,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
