"""torch.compile inside and around DDP, both trained: neither order is a finding."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


inside = DDP(torch.compile(Model(), backend="aot_eager"))
around = torch.compile(DDP(Model()), backend="aot_eager")
for _ in range(3):
    for model in (inside, around):
        model(torch.ones(4, 8)).sum().backward()
dist.destroy_process_group()
