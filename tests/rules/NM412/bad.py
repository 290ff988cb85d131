"""A forward hook that comes after the first call changes eager's answers alone."""
import torch

COMPILE = {"backend": "eager"}


def make():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    return net, [(torch.ones(2, 4),)] * 3


def before_call(net, index):
    if index == 1:
        net[0].register_forward_hook(lambda module, inputs, output: output * 2)


EXPECT = [{"code": "NM412", "kind": "stale_state", "severity": "high", "line": "register_forward_hook", "fix": ["before the first call", "reset"]}]
