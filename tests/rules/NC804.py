import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# A debugging aid left in.
def bad():
    torch.compiler.set_stance("force_eager")
    model = torch.compile(nn.Linear(4, 4), backend="eager")  # run: NC804
    return lambda x: model(x).sum(), [(torch.randn(2, 4),)] * 3


# The default stance, set explicitly.
def good():
    torch.compiler.set_stance("default")
    model = torch.compile(nn.Linear(4, 4), backend="eager")
    return lambda x: model(x).sum(), [(torch.randn(2, 4),)] * 3
