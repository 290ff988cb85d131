"""Joins the process group of a rank, and wraps a model for several ranks.

Takes a module and functions that compile it; returns what each call of it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from torchproof.records import UserError

Compile = Callable[[Any], Any]  # takes a module or function, returns what to call


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


def leave() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def wrapped(
    fn: Any, wrap: str | None, compiled: Compile, *, of_block: Compile | None = None
) -> Callable[..., Any]:
    """The target, wrapped with one of `WRAPS` and compiled.

    `compiled` gets the whole target after it was wrapped; give the identity to run it
    eager. FSDP2 shards each block, then the model: with `of_block`, each block is
    compiled before it is sharded, so that the hooks of FSDP2 stay outside of compiled
    code. The model is then not compiled as a whole.
    """
    import torch

    if wrap is None:
        whole: Callable[..., Any] = compiled(fn)
        return whole
    if not isinstance(fn, torch.nn.Module):
        raise UserError(
            f"{type(fn).__name__} is not a module: DDP and FSDP2 wrap only modules"
        )
    if wrap == "ddp":  # compiled after DDP, which splits graphs at its buckets
        replica: Callable[..., Any] = compiled(
            torch.nn.parallel.DistributedDataParallel(fn)
        )
        return replica
    return _sharded(fn, compiled, of_block)


def _sharded(
    model: Any, compiled: Compile, of_block: Compile | None
) -> Callable[..., Any]:
    from torch.distributed.fsdp import fully_shard

    lists = list(_outermost_lists(model))
    for blocks in lists:
        for index, block in enumerate(blocks):
            blocks[index] = fully_shard(of_block(block) if of_block else block)
    sharded: Callable[..., Any]
    if of_block:
        sharded = fully_shard(model if lists else of_block(model))
    else:
        sharded = compiled(fully_shard(model))
    return sharded


def _outermost_lists(module: Any) -> Iterator[Any]:
    """The lists of blocks; a list inside a block, such as experts, is part of it."""
    import torch

    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)
