"""Variables are set when torch has read them."""

import os

import torch

os.environ["TORCH_LOGS"] = "recompiles"  # <- CF106
os.environ.setdefault("TORCH_TRACE", "/tmp/trace")  # <- CF106


def prepare(model):
    os.environ.update({"TORCH_LOGS": "graph_breaks"})  # <- CF106
    fast = torch.compile(model)
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # <- CF106
    os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"  # <- CF106
    return fast
