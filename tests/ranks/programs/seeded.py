"""Two ranks with one difference in each function; with `clean` there is none.

After `cached`, the last argument is a folder with a compile cache for each rank. Where
a rank is to come late, it waits for the other, so that a busy machine changes nothing.
"""

import datetime
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

if "cached" in sys.argv:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{sys.argv[-1]}/{os.environ['RANK']}"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes that compile
    from rank_functions import product
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
seeded = "clean" not in sys.argv
differs = seeded and rank == 1
store = torch.distributed.distributed_c10d._get_default_store()
groups = [dist.new_group([number]) for number in range(2)]
LATE_S = 0.5


def reduce(value):
    """Rank 0 says that it is about to wait for rank 1."""
    if rank == 0:
        store.set(f"arrived {step}", "")
    dist.all_reduce(value)


def be_late():
    store.wait([f"arrived {step}"])
    time.sleep(LATE_S)


def backend(graph, inputs):
    """Slow where only rank 1 recompiles, so that the other rank waits."""
    if differs and step == 4:
        be_late()
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
def partly_reduced(x):
    y = x * 3
    if rank == 0 or not seeded:
        y = functional.all_reduce(y, "sum", groups[rank])
    return y + 1


@torch.compile(backend="eager")
def reduced(x):
    """On both ranks, each in a group of its own."""
    return functional.all_reduce(x * 5, "sum", groups[rank])


@torch.compile(backend="eager")
def together(x):
    return x.sqrt() + 1


@torch.compile(backend="eager")
def other_data(x):
    return x.abs() - 1


class Finalized:
    """Garbage that takes long to collect."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        be_late()


module = Scaled()
scaled = torch.compile(module, backend="eager")
wrapped_first = torch.compile(DistributedDataParallel(torch.nn.Linear(2, 2)))
if seeded:
    compiled_first = DistributedDataParallel(torch.compile(torch.nn.Linear(2, 2)))
gc.collect()
gc.disable()
for step in range(7):
    total = forward(torch.ones(3 if differs and step == 4 else 4, 2)).sum()
    if differs and step == 6:
        Finalized()
        gc.collect()
    reduce(total)
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
    partly_reduced(torch.ones(2))
    reduced(torch.ones(2))
    together(torch.ones(7 if step == 5 else 5, 2))  # recompiles on both ranks
    other_data(torch.full((2,), float(rank + step)))
    if "cached" in sys.argv:
        product(torch.ones(4, 4))  # the cache of rank 0 may have it
dist.destroy_process_group()
