import signal
import time
import torch


# A clock and an alarm around nothing.
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


# The first call is what is timed and limited.
def timed_call(model, x):
    start = time.perf_counter()
    fast = torch.compile(model, backend="eager")
    fast(x)
    seconds = time.perf_counter() - start
    return fast, seconds


def limited_call(model, x):
    signal.alarm(60)
    fast = torch.compile(model)
    fast(x)
    signal.alarm(0)
    return fast


def steps(model, batches):
    fast = torch.compile(model)
    start = time.perf_counter()
    for batch in batches:
        fast(batch)
    return time.perf_counter() - start


def whole(model, loader, train):
    start = time.time()
    model = torch.compile(model)
    for batch in loader:
        train(model, batch)
    return time.time() - start
