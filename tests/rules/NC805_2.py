import torch
import torch._dynamo

OPTIONS = {"bad_3": {"as_written": True}}


# suppress_errors hides that every frame fails.
@torch.library.custom_op("rules_nc805::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def bad_3():
    torch._dynamo.config.suppress_errors = True

    def fn(x):
        return double(x).cos()  # <- GB114

    return torch.compile(fn, backend="eager"), [(torch.randn(4),)] * 3  # <- NC805
