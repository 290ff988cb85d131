"""The same operator, declared as what it is."""
import torch

COMPILE = {"backend": "aot_eager"}


@torch.library.custom_op("torchproof_nm403_good::scale", mutates_args=("x",))
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


EXPECT = []
