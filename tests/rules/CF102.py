import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


# Models are compiled after they were wrapped.
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


# Blocks are compiled before they are sharded; with DDP, both orders are fine.
def sharded_blocks(model):
    for block in model:
        block.compile()
        fully_shard(block)
    fully_shard(model)
    return model


def outermost(model):
    fully_shard(model)
    return torch.compile(model)


def wrapped(model):
    return DDP(torch.compile(model))


def whole_inside(model):
    model.compile(fullgraph=True)
    return DDP(model)


def compiled_after(model):
    return torch.compile(DDP(model))


def other(model, teacher):
    model = DDP(model)
    teacher = torch.compile(teacher)
    return model, teacher
