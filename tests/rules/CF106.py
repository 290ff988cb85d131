import os

# Variables are set before torch reads them.
os.environ["TORCH_LOGS"] = "recompiles"
os.environ["TORCH_TRACE"] = "/tmp/trace"

import torch

# Variables are set when torch has read them.
os.environ["TORCH_LOGS"] = "recompiles"  # <- CF106
os.environ.setdefault("TORCH_TRACE", "/tmp/trace")  # <- CF106


def late(model):
    os.environ.update({"TORCH_LOGS": "graph_breaks"})  # <- CF106
    fast = torch.compile(model)
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # <- CF106
    os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"  # <- CF106
    return fast


# What is set before torch.compile, what torch reads in each call, and other dictionaries.
def early(model):
    os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/fast"
    environment = dict(os.environ)
    environment["TORCH_LOGS"] = "dynamo"
    level = os.environ["TORCH_LOGS"]
    fast = torch.compile(model)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/other"
    return fast, environment, level
