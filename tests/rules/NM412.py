import torch

OPTIONS = {"*": {"compile": {"backend": "eager"}}}


def net(hook=None, late=None):
    made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    if hook:
        made[0].register_forward_hook(hook)
    made.late = late
    return made, [(torch.ones(2, 4),)] * 3


# A forward hook that comes after the first call changes eager's answers alone.
def doubled(module, inputs, output):
    return output * 2


def before_call(net, index):
    if index == 1 and net.late:
        net[0].register_forward_hook(net.late)  # run: NM412


def bad():
    return net(late=doubled)


# Hooks that are there from the beginning.
def good():
    return net(hook=doubled)
