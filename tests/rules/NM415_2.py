import torch

OPTIONS = {"bad_2": {"compile": {"backend": "eager"}}}


# Guards are switched off after the first call, and the input changes.
def bad_2():
    def f(x, how):
        return x * 2 if how == "double" else x * 3

    return f, [(torch.ones(3), how) for how in ("double", "triple")]


def before_call(fn, index):
    if index == 1:
        torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)  # <- NM415
