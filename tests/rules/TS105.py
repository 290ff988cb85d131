import torch


# TorchScript and torch.compile in each other.
def of_script(model):
    return torch.compile(torch.jit.script(model), backend="eager")  # <- TS102, TS105


def of_trace(model, x):
    traced = torch.jit.trace(model, x)  # <- TS102
    return torch.compile(traced, backend="eager")  # <- TS105


def script_of(model):
    fast = torch.compile(model, backend="eager")
    return torch.jit.script(fast)  # <- TS102, TS105


def trace_of(model, x):
    return torch.jit.trace(torch.compile(model, backend="eager"), x)  # <- TS102, TS105
