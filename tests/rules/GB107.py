import torch
import torch._dynamo


# An explicit graph break between two halves of a network.
def two_stages(x, breaks):
    code = x.relu()
    if breaks:
        torch._dynamo.graph_break()  # run: GB107
    return code * 2


def bad():
    return two_stages, [(torch.randn(2, 4), True)] * 3


# The same network in one piece.
def one_stage(x):
    return two_stages(x, False)


def good():
    return one_stage, [(torch.randn(2, 4),)] * 3
