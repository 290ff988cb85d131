"""Two ranks with one difference each, at known steps; `clean` has none."""

import datetime
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
seeded = "clean" not in sys.argv


@torch.compile(backend="eager")
def forward(x):
    return x.sin() + x


@torch.compile(backend="eager")
def report(x):
    y = x + 1
    if seeded and rank == 0:
        print("rank 0 reports")
    return y * 2


for step in range(6):
    short = seeded and rank == 1 and step == 4
    y = forward(torch.ones(3 if short else 4, 2)).sum()
    dist.all_reduce(y)
    report(y)
dist.destroy_process_group()
