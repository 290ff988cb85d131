import torch

OPTIONS = {"bad": {"compile": {"backend": "eager"}}}


# A forward hook that comes after the first call changes eager's answers alone.
def bad():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    return net, [(torch.ones(2, 4),)] * 3


def before_call(net, index):
    if index == 1:
        net[0].register_forward_hook(lambda module, inputs, output: output * 2)  # <- NM412
