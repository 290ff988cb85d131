"""A convolution whose output need not keep eager's strides."""
import torch

COMPILE = {"options": {"keep_output_stride": False}}


def make():
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(8, 16, 3)

    def f(x):
        return convolution(x)

    return f, [(torch.randn(2, 8, 16, 16),)]


EXPECT = [{"code": "NM406", "kind": "numerics", "severity": "medium", "line": "def f(x)", "fix": ["contiguous()", "keep_output_stride"]}]
