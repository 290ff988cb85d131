import torch


# A single sample comes without a batch dimension.
def classify(x):  # run: RC207
    return (x * 2).softmax(-1)


def bad():
    return classify, [(torch.randn(4, 8),), (torch.randn(8),), (torch.randn(4, 8),)]


# The sample gets its batch dimension before the call.
def good():
    return classify, [(torch.randn(4, 8),), (torch.randn(8).repeat(4, 1),)]
