"""A negative number has no value of its own as uint8: eager and Inductor differ."""
import torch

SLOW = True


def make():
    def quantise(x):
        return (x * 10.0).to(torch.uint8)

    return quantise, [(torch.tensor([-1.53, 2.57, -0.37]),)]


EXPECT = [{"code": "NM401", "kind": "numerics", "severity": "high", "torch": "<2.14", "line": ".to(torch.uint8)", "fix": ["signed", "clamp"]}]
