import torch

OPTIONS = {"bad_3": {"as_written": True}}


# The factory decorates a function, and returns another one.
def bad_3():
    @torch.compile(backend="eager")  # <- NC801
    def double(x):
        return x * 2

    return torch.sin, [(torch.randn(2, 4),)] * 3
