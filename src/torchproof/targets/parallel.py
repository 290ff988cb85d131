"""Joins the process group of a rank, and wraps a model for several ranks.

Takes a module and functions that compile it; returns what each call of it runs. Weights
on the meta device get their values after the ranks have divided them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchproof import torch_private
from torchproof.records import UserError
from torchproof.targets import deferred_weights, tensor_parallel

# Takes a module or function, returns what to call.
Compile = Callable[[Any], Callable[..., Any]]


def join(device: str | None) -> None:
    """Makes the process group of this rank, so that a factory may use it.

    Reads the variables of torch's launcher.
    """
    import torch
    import torch.distributed as dist

    if device == "cuda":
        own = int(os.environ["LOCAL_RANK"])
        if own >= (count := torch.cuda.device_count()):
            raise UserError(
                f"rank {own} of this machine has no GPU: torch finds {count} of them:"
                " start fewer ranks, or use --device cpu"
            )
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")


def assert_placed(fn: Any, calls: Sequence[Any]) -> None:
    """Raises `UserError` for a target on CUDA whose ranks would share one GPU."""
    import torch

    own = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
    tensors = [*own, *torch_private.trees.tensors(list(calls))]
    if _device() == "cpu" and any(tensor.is_cuda for tensor in tensors):
        raise UserError(
            "the target is on CUDA, but the ranks were started for the CPU and would"
            " share one GPU: add --device cuda"
        )


def ranks_per_batch(wrap: str | None) -> int:
    """How many ranks compute one batch together; other ranks have their own."""
    if wrap not in ("tp", "tp+fsdp2"):
        return 1
    parts: int = _mesh(wrap)[1].size()
    return parts


def leave() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def wrapped(
    fn: Any,
    wrap: str | None,
    compiled: Compile,
    *,
    of_block: Compile | None = None,
    plan: tensor_parallel.Styles | None = None,
) -> Callable[..., Any]:
    """The target, wrapped with one of `WRAPS` and compiled.

    `compiled` gets the whole target after it was wrapped; give the identity to run it
    eager. FSDP2 shards each block, then the model: with `of_block`, each block is
    compiled before it is sharded, so that the hooks of FSDP2 stay outside of compiled
    code. The model is then not compiled as a whole. `plan` says which layers tensor
    parallelism divides; without it, the model has to know.
    """
    import torch

    if wrap is None:
        return compiled(fn)
    if not isinstance(fn, torch.nn.Module):
        raise UserError(
            f"{type(fn).__name__} is not a module: --wrap {wrap} wraps only modules"
        )
    if wrap == "ddp":  # compiled after DDP, which splits graphs at its buckets
        return compiled(torch.nn.parallel.DistributedDataParallel(fn))
    replicas, parts = _mesh(wrap)
    if parts is not None:
        tensor_parallel.divide(fn, parts, plan)
    answer: Callable[..., Any] = fn
    if replicas is not None:
        answer = _sharded(fn, replicas, of_block)
    deferred_weights.fill(answer, _device())
    if replicas is None or not of_block:
        answer = compiled(answer)
    return answer


def _mesh(wrap: str) -> tuple[Any, Any]:
    """The ranks that shard with FSDP2, and those that divide layers; None: no ranks.

    With both, layers are divided among the ranks of one machine, which exchange more.
    A single machine divides them among half of its ranks.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    ranks = dist.get_world_size()
    if wrap == "fsdp2":
        return init_device_mesh(_device(), (ranks,)), None
    if wrap == "tp":
        return None, init_device_mesh(_device(), (ranks,))
    parts = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    parts = parts if parts < ranks else ranks // 2
    if parts < 2 or ranks % parts or ranks // parts < 2:
        raise UserError(
            f"--wrap {wrap} needs an even number of ranks, at least 4, and as many on"
            f" each machine: there are {ranks}; use --wrap tp or --wrap fsdp2"
        )
    names = ("fsdp2", "tp")
    mesh = init_device_mesh(_device(), (ranks // parts, parts), mesh_dim_names=names)
    return mesh["fsdp2"], mesh["tp"]


def _device() -> str:
    import torch.distributed as dist

    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _sharded(model: Any, mesh: Any, of_block: Compile | None) -> Callable[..., Any]:
    from torch.distributed.fsdp import fully_shard

    lists = list(_outermost_lists(model))
    for blocks in lists:
        for index, block in enumerate(blocks):
            part: Any = of_block(block) if of_block else block
            blocks[index] = fully_shard(part, mesh=mesh)
    if of_block and not lists:
        model = of_block(model)
    sharded: Callable[..., Any] = fully_shard(model, mesh=mesh)
    return sharded


def _outermost_lists(module: Any) -> Iterator[Any]:
    """The lists of blocks; a list inside a block, such as experts, is part of it."""
    import torch

    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)
