import torch

OPTIONS = {"*": {"compile": {"backend": "aot_eager"}}}


# A custom operator changes its argument and does not say so.
@torch.library.custom_op("torchproof_nm403::scale", mutates_args=())
def scale(x: torch.Tensor) -> None:
    x.mul_(2)


@scale.register_fake
def _(x):
    return None


def bad():
    def f(x):
        y = x + 1
        scale(y)  # <- NM403
        return y * 3

    return f, [(torch.ones(3),)]


# The same operator, declared as what it is.
@torch.library.custom_op("torchproof_nm403_good::scale_1", mutates_args=("x",))
def scale_1(x: torch.Tensor) -> None:
    x.mul_(2)


@scale_1.register_fake
def _(x):
    return None


def good():
    def f(x):
        y = x + 1
        scale_1(y)
        return y * 3

    return f, [(torch.ones(3),)]
