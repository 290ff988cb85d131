import random
import torch

OPTIONS = {"good": {"compile": {"backend": "aot_eager"}}}


def before_call(fn, index):
    random.seed(index)


# Dropout under Inductor: another random stream, which is no more than that.
def bad():  # run: NM404
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5))
    return net, [(torch.randn(8, 16),)]


# Random numbers drawn from eager's stream, and from Python's.
def good():
    def f(x):
        y = torch.nn.functional.dropout(x, 0.5)
        return y * random.uniform(0.9, 1.1)

    return f, [(torch.ones(64),)] * 3
