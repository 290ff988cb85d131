"""Compiled models under DistributedDataParallel and FSDP2, in two real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchproof

RANKS = 2


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))


def batch(rank: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(rank))


def expected() -> dict[str, torch.Tensor]:
    """Weights after two steps on all ranks' batches, in one process and eager."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        losses = [model(batch(rank)).square().mean() for rank in range(RANKS)]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def train(model: nn.Module, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(batch(rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def assert_trained(model: nn.Module, compiled: nn.Module) -> None:
    told = torchproof.status(compiled)
    assert told.calls == 2 and told.compilations and not told.fallbacks, str(told)
    for name, weight in model.state_dict().items():
        whole: Any = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        torch.testing.assert_close(whole, expected()[name.removeprefix("module.")])


def compile_then_wrap(rank: int) -> None:
    inner = torchproof.compile(build(), backend="aot_eager")
    model = DistributedDataParallel(inner)
    train(model, rank)
    assert_trained(model, inner)
    assert str(torchproof.status(model)) == str(torchproof.status(inner))


def wrap_then_compile(rank: int) -> None:
    wrapped = DistributedDataParallel(build())
    model = torchproof.compile(wrapped, backend="aot_eager")
    assert model is wrapped
    train(model, rank)
    assert_trained(model, model.module)
    assert torchproof.status(model).model == "Sequential"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.mix(x))


def shard(rank: int) -> None:
    """As one unit in either order, or block by block, as regions are compiled."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    early, late = build(), build()
    torchproof.compile(early, backend="aot_eager")
    fully_shard(early, mesh=mesh)
    torchproof.compile(fully_shard(late, mesh=mesh), backend="aot_eager")
    for model in (early, late):
        train(model, rank)
        assert_trained(model, model)
    stack = nn.Sequential(*(Block() for _ in range(3)))
    torchproof.compile(stack, backend="aot_eager", strategy="regional")
    for block in stack:
        fully_shard(block, mesh=mesh)
    fully_shard(stack, mesh=mesh)
    train(stack, rank)
    told = torchproof.status(stack)
    assert "Block.forward" in told.compilations[0].function, str(told)
    assert told.compiled_calls == 1 and not told.fallbacks, str(told)


def main(job: str, rank: int, meeting: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS
    )
    for name in job.split(","):
        globals()[name](rank)
        dist.barrier()
    dist.destroy_process_group()


def run_ranks(job: str, folder: Path) -> list[str]:
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, job, str(rank), str(folder / "meeting")],
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors
    return [out for out, _ in ended]


@pytest.mark.slow
def test_data_parallel_in_either_order(tmp_path: Path) -> None:
    run_ranks("compile_then_wrap,wrap_then_compile", tmp_path)


@pytest.mark.slow
def test_fully_sharded_in_either_order(tmp_path: Path) -> None:
    run_ranks("shard", tmp_path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
