"""Rank 1 calls the model as it is; rank 0 compiles it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
if dist.get_rank() == 0:
    model = torch.compile(model, backend="eager")
for _ in range(3):
    dist.all_reduce(model(torch.ones(4, 2)).sum().detach())
dist.destroy_process_group()
