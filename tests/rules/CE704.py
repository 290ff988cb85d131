import torch
from torch import nn

OPTIONS = {"*": {"compile": {"fullgraph": True}}}


# fullgraph=True and a print.
def model(x):
    x = x.tanh()
    print("hidden", x.shape)  # <- CE704
    return x.relu()


def bad():
    return model, [(torch.randn(2, 4),)]


# fullgraph=True over an LSTM.
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4)

    def forward(self, x):
        x = x.tanh()
        return self.rnn(x)[0]  # <- CE704


def bad_3():
    return Tagger(), [(torch.randn(3, 2, 4),)]


# fullgraph=True and nothing in the way: it captures .item() and masks.
def model_2(x):
    norm = x.detach().norm()
    x = torch.where(norm > 1.0, x / norm, x)
    scale = x.detach().sum().item()
    return x.relu() * scale + x[x > 0].sum()


def good():
    return model_2, [(torch.randn(2, 4),)] * 3
