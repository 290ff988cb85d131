import torch

OPTIONS = {"*": {"compile": {"backend": "eager"}}}
seen = []


def spy(module, inputs, output):
    seen.append(output.shape)


def before_call(net, index):
    if index == 1:
        net[0].register_forward_hook(spy)  # run: NM412


# A late hook that changes no value: it never runs in compiled code.
def bad_2():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    return net, [(torch.ones(2, 4),)] * 3
