import torch
import torch._dynamo
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# The forward of the compiled module is disabled.
class Model(nn.Module):
    @torch.compiler.disable
    def forward(self, x):  # run: GB106
        return x.relu()


def bad():
    return torch.compile(Model(), backend="eager"), [(torch.randn(2, 4),)] * 3  # run: NC805


# suppress_errors hides that every frame fails.
@torch.library.custom_op("rules_nc805::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def bad_3():
    torch._dynamo.config.suppress_errors = True  # read: CF113

    def fn(x):
        return double(x).cos()  # run: GB114

    return torch.compile(fn, backend="eager"), [(torch.randn(4),)] * 3  # run: NC805


# module.compile() on a module whose class is torch's own.
def bad_5():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model.compile(backend="eager")  # run: NC805<2.14
    return lambda x: model(x).mean(), [(torch.randn(2, 4),)] * 3


# The module's own forward is compiled, and what is disabled is not reached.
@torch.compiler.disable
def dump(x):
    return float(x.sum())


class Model2(nn.Module):
    debug = False

    def forward(self, x):
        if self.debug:
            dump(x)
        return x.relu()


def good():
    return torch.compile(Model2(), backend="eager"), [(torch.randn(2, 4),)] * 3
