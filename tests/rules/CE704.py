import torch

OPTIONS = {"*": {"compile": {"fullgraph": True}}}


# fullgraph=True and a print.
def model(x):
    x = x.tanh()
    print("hidden", x.shape)  # read: GB104 # run: CE704
    return x.relu()


def bad():
    return model, [(torch.randn(2, 4),)]


# fullgraph=True and nothing in the way: it captures .item() and masks.
def model_2(x):
    norm = x.detach().norm()
    x = torch.where(norm > 1.0, x / norm, x)
    scale = x.detach().sum().item()  # read: GB101
    return x.relu() * scale + x[x > 0].sum()  # read: GB103


def good():
    return model_2, [(torch.randn(2, 4),)] * 3
