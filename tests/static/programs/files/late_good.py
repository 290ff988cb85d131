"""Variables are set before torch reads them."""

import os

os.environ["TORCH_LOGS"] = "recompiles"
os.environ["TORCH_TRACE"] = "/tmp/trace"

import torch  # noqa: E402


def prepare(model):
    os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/fast"
    environment = dict(os.environ)
    environment["TORCH_LOGS"] = "dynamo"
    level = os.environ["TORCH_LOGS"]
    fast = torch.compile(model)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/other"
    return fast, environment, level
