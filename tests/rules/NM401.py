import torch


# The kernel Inductor generates for acosh overflows on the CPU.
def bad():
    def f(x):
        y = x * 1.5
        return torch.acosh(y) + 0.5  # run: NM401<2.14

    return f, [(torch.tensor([2.0, 1e20, 1e30]),)]


# A backend that computes cos for sin, in the second of two graphs, in place.
def lying(gm, inputs):
    for node in gm.graph.nodes:
        if node.target == "sin_":
            node.target = "cos_"
    gm.recompile()
    return gm


class Inner(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        y.sin_()  # run: NM401
        return y + 1


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        h = x.exp()
        torch._dynamo.graph_break()
        return self.inner(h) * 3


def bad_2():
    return torch.compile(Outer(), backend=lying), [(torch.randn(4),)] * 2


# A remainder by infinity is NaN in generated code, inside a module.
class Wrap(torch.nn.Module):
    def forward(self, x):
        h = torch.nn.functional.gelu(x)
        return h % float("inf")  # run: NM401


def bad_3():
    return Wrap(), [(torch.tensor([-1.5, 2.5]),)]


# A negative number has no value of its own as uint8: eager and Inductor differ.
def bad_4():
    def quantise(x):
        return (x * 10.0).to(torch.uint8)  # run: NM401<2.14

    return quantise, [(torch.tensor([-1.53, 2.57, -0.37]),)]
