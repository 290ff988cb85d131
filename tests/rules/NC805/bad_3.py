"""suppress_errors hides that every frame fails: no graph at all, and no error."""
import torch
import torch._dynamo

AS_WRITTEN = True


@torch.library.custom_op("rules_nc805::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def make():
    torch._dynamo.config.suppress_errors = True

    def fn(x):
        return double(x).cos()

    return torch.compile(fn, backend="eager"), [(torch.randn(4),)] * 3


EXPECT = [{"code": "NC805", "kind": "no_op", "line": "return double(x).cos()", "severity": "high", "fix": ["suppress_errors", "register_fake", "fake"]}]
