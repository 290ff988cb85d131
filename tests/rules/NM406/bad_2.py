"""A convolution whose output need not keep eager's strides."""
import torch

COMPILE = {"options": {"keep_output_stride": False}}


def make():
    torch.manual_seed(0)
    return torch.nn.Conv2d(8, 16, 3), [(torch.randn(2, 8, 16, 16),)]


EXPECT = [{"code": "NM406", "kind": "numerics", "severity": "medium", "line": "def forward", "fix": ["contiguous()", "keep_output_stride"]}]
