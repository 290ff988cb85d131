"""A clock and an alarm around nothing."""

import signal
import time

import torch


def timed(model):
    start = time.perf_counter()
    fast = torch.compile(model, backend="eager")  # <- CF111
    seconds = time.perf_counter() - start
    return fast, seconds


def limited(model):
    signal.alarm(60)
    fast = torch.compile(model)  # <- CF111
    signal.alarm(0)
    return fast
