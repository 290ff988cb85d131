"""Settings that torch has."""

import torch
import torch._dynamo
from torch._inductor import config as inductor


def settings(config):
    torch._dynamo.config.recompile_limit = 16
    torch._dynamo.config.cache_size_limit = 16
    torch._dynamo.config.suppress_errors = False
    inductor.triton.cudagraphs = False
    inductor.fx_graph_cache = True
    config.cache_dir = "/fast"
    return config


def patched():
    with torch._dynamo.config.patch(recompile_limit=4):
        pass
    with inductor.patch({"triton.cudagraphs": False, "max_autotune": False}):
        pass


def functions():
    from torch._functorch import config

    return config.patch(force_non_lazy_backward_lowering=True)


def inductors():
    from torch._inductor import config

    return config.patch(max_autotune=True)


def option(function):
    return torch.compile(function, options={"max_autotune": True})


def other(function):
    return torch.compile(function, backend="custom", options={"anything": 1})
