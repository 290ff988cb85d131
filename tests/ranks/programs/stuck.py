"""Rank 1 takes too long to recompile at step 2; rank 0 waits for it.

Only the group in which they wait then has a short timeout: on a busy machine, ranks
start and compile seconds apart.
"""

import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
dist.barrier()
short = dist.new_group(timeout=datetime.timedelta(seconds=5))
late = dist.get_rank() == 1


def backend(graph, inputs):
    if late and step == 2:
        time.sleep(60)
    return graph


@torch.compile(backend=backend)
def forward(x):
    return x.sin()


for step in range(3):
    y = forward(torch.ones(3 if late and step == 2 else 4)).sum()
    dist.all_reduce(y, group=short if step == 2 else None)
