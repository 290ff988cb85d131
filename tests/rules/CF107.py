import torch
import torch._dynamo
from torch._inductor import config as inductor


# Settings that are not there, have no effect, or hide errors.
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


# Settings that torch has.
def settings(config):
    torch._dynamo.config.recompile_limit = 16
    torch._dynamo.config.cache_size_limit = 16
    torch._dynamo.config.suppress_errors = False
    inductor.triton.cudagraphs = False
    inductor.fx_graph_cache = True
    config.cache_dir = "/fast"
    return config


def known():
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


def known_option(function):
    return torch.compile(function, options={"max_autotune": True})


def other(function):
    return torch.compile(function, backend="custom", options={"anything": 1})
