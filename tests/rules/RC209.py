import torch


# Self-attention calls pass the same tensor twice, cross-attention calls do not.
def attend(x, context):
    scores = x @ context.transpose(-1, -2)  # run: RC209
    return scores.softmax(-1) @ context


X, CONTEXT = torch.randn(4, 8), torch.randn(4, 8)


def bad():
    return attend, [(X, X), (X, CONTEXT), (CONTEXT, CONTEXT)]


# The two arguments are always two tensors.
def good():
    return attend, [(X, X.clone()), (X, CONTEXT), (CONTEXT, CONTEXT.clone())]
