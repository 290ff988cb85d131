"""A custom operator changes its argument and does not say so."""
import torch

COMPILE = {"backend": "aot_eager"}


@torch.library.custom_op("torchproof_nm403::scale", mutates_args=())
def scale(x: torch.Tensor) -> None:
    x.mul_(2)


@scale.register_fake
def _(x):
    return None


def make():
    def f(x):
        y = x + 1
        scale(y)
        return y * 3

    return f, [(torch.ones(3),)]


EXPECT = [{"code": "NM403", "kind": "numerics", "severity": "high", "line": "scale(y)", "fix": ['mutates_args=("x",)']}]
