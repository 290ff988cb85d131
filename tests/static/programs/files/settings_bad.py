"""Settings that are not there, have no effect, or hide errors."""

import torch
import torch._dynamo
from torch._inductor import config as inductor

torch._dynamo.config.suppress_errors = True  # <- CF113


def cache():
    torch._dynamo.config.cache_dir = "/fast"  # <- CF107


def graphs():
    inductor.cudagraphs = True  # <- CF107


def patched():
    with torch._dynamo.config.patch(recompile_limits=4):  # <- CF107
        pass


def grouped():
    with inductor.patch({"triton.cudagraph": True}):  # <- CF107
        pass


def option(function):
    return torch.compile(function, options={"autotune": True})  # <- CF107


def ignored(function):
    return torch.compile(function, backend="eager", mode="reduce-overhead")  # <- CF107
