"""What guides still show."""

import torch
from torch.nn.utils.rnn import pad_sequence


def autocast():
    return torch.cuda.amp.autocast()  # <- CF108


def scaler():
    return torch.cuda.amp.GradScaler()  # <- CF108


def kernels():
    return torch.backends.cuda.sdp_kernel(enable_math=False)  # <- CF108


def unbacked(x):
    torch._dynamo.mark_unbacked(x, 0)  # <- CF108


def profiled():
    return torch._dynamo.utils.CompileProfiler()  # <- CF108


def padded(rows):
    return pad_sequence(rows, batch_first=True, max_length=8)  # <- CF108


def explained(function, x):
    return torch._dynamo.explain(function, x)  # <- CF108


def mode(function):
    return torch.compile(function, mode="smart")  # <- CF108


def both(function):
    return torch.compile(function, mode="default", options={"max_autotune": True})  # <- CF108


def keyword(function):
    return torch.compile(function, passes=["fuse"])  # <- CF108


def exported(model, x):
    return torch.export.export_for_training(model, (x,))  # <- CF108
