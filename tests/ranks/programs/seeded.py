"""Two ranks with one difference in each function; with `clean` there is none."""

import datetime
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
seeded = "clean" not in sys.argv
differs = seeded and rank == 1


def backend(graph, inputs):
    """Slow where only rank 1 recompiles, so that the other rank waits."""
    if differs and step == 4:
        time.sleep(0.5)
    return graph


@torch.compile(backend=backend)
def forward(x):
    return x.sin() + x


@torch.compile(backend="eager")
def report(x):
    y = x + 1
    if seeded and rank == 0:
        print("rank 0 reports")
    return y * 2


@torch.compile(backend="eager")
def single(x):
    return x.cos() * 2


@torch.compile(backend="eager")
def marked(x):
    return x.tan() + 3


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def forward(self, x):
        return x * self.scale


@torch.compile(backend="eager")
def branching(x):
    if differs:
        return x.exp()
    return x.log()


@torch.compile(backend="eager")
def together(x):
    return x.sqrt() + 1


module = Scaled()
scaled = torch.compile(module, backend="eager")
for step in range(6):
    total = forward(torch.ones(3 if differs and step == 4 else 4, 2)).sum()
    dist.all_reduce(total)
    report(total)
    single(torch.rand(1 if differs and step == 3 else 4, 2))
    sizes = torch.ones(4 if step < 2 else 6, 2)
    if rank == 0 or not seeded:
        torch._dynamo.mark_dynamic(sizes, 0)
    marked(sizes)
    if differs and step == 1:
        module.scale = 2.0
    scaled(torch.ones(2))
    branching(torch.ones(2))
    together(torch.ones(7 if step == 5 else 5, 2))  # recompiles on both ranks
dist.destroy_process_group()
