import torch

OPTIONS = {"good": {"compile": {"backend": "eager"}}}


# Hooks that are there from the beginning.
def good():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    net[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return net, [(torch.ones(2, 4),)] * 3
