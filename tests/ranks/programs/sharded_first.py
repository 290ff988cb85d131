"""A model that is compiled after FSDP2 has sharded its layers."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
for layer in model:
    fully_shard(layer)
fully_shard(model)
compiled = torch.compile(model, backend="eager")
for _ in range(2):
    compiled(torch.ones(4, 4)).sum().backward()
dist.destroy_process_group()
