import os
import torch

OPTIONS = {"good": {"compile": {"backend": "eager"}}}


# Read when the module is made, guarded, without effect, or outside of the call.
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = float(os.environ.get("TORCHPROOF_NM411_INIT", "1"))

    def forward(self, x):
        if os.environ.get("TORCHPROOF_NM411_UNUSED") == "hi":
            return self.gain * x
        return x * self.gain


def good():
    return Net(), [(torch.ones(3),)] * 2


def before_call(net, index):
    os.environ["TORCHPROOF_NM411_OUTSIDE"] = str(index)
    net.gain = float(os.environ["TORCHPROOF_NM411_OUTSIDE"])
