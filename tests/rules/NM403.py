import torch

OPTIONS = {"*": {"compile": {"backend": "aot_eager"}}}


# A custom operator changes its argument and does not say so; another one says so.
def operator(name, **declared):
    def scale(x: torch.Tensor) -> None:
        x.mul_(2)

    made = torch.library.custom_op(f"torchproof_nm403::{name}", scale, **declared)
    made.register_fake(lambda x: None)
    return made


silent = operator("silent", mutates_args=())
declared = operator("declared", mutates_args=("x",))


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
