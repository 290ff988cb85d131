"""Rank 1 ends, or takes too long, while it compiles; rank 0 waits for it."""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))


def backend(graph, inputs):
    if dist.get_rank() == 1:
        if "kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return graph


@torch.compile(backend=backend)
def forward(x):
    return x.sin()


y = forward(torch.ones(4))
dist.all_reduce(y)
