"""The compiled function only forwards to a disabled one."""
import torch

AS_WRITTEN = True


@torch.compiler.disable
def kernel(x):
    return x.sin() * 2


def make():
    def entry(x):
        return kernel(x)

    return torch.compile(entry, backend="eager"), [(torch.randn(4),)] * 3


EXPECT = [{"code": "NC805", "kind": "no_op", "line": "return kernel(x)", "severity": "high", "fix": ["disable", "remove"]}]
