import torch

OPTIONS = {"*": {"compile": {"backend": "aot_eager"}}}


# A custom operator changes its argument and does not say so; another one says so.
@torch.library.custom_op("torchproof_nm403::silent", mutates_args=())
def silent(x: torch.Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("torchproof_nm403::declared", mutates_args=("x",))
def declared(x: torch.Tensor) -> None:
    x.mul_(2)


silent.register_fake(lambda x: None)
declared.register_fake(lambda x: None)


def bad():
    def f(x):
        y = x + 1
        silent(y)  # run: NM403
        return y * 3

    return f, [(torch.ones(3),)]


def good():
    def f(x):
        y = x + 1
        declared(y)
        return y * 3

    return f, [(torch.ones(3),)]
