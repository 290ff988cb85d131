"""Models are compiled after they were wrapped."""

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def strict(model):
    model = DDP(model)
    return torch.compile(model, fullgraph=True)  # <- CF102


def flat(model):
    model = FSDP(model)
    model = torch.compile(model)  # <- CF102
    return model


def sharded(model):
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return torch.compile(model)  # <- CF102
