"""`try` around a tensor operation fails under torch.compile, although eager recovers.

An error that an operator raises while it is traced with fake tensors goes to the
caller, past the `except` that expects it.

Workaround: check the shape first.

Group: fails
Code: CE701
"""

import torch


def square(x):
    try:
        return x.view(3, 3)
    except RuntimeError:
        return x.view(2, 4)


failed = False
try:
    torch.compile(square, backend="eager")(torch.ones(8))
except torch._dynamo.exc.TorchRuntimeError:
    failed = True
assert failed and square(torch.ones(8)).shape == (2, 4)


# The workaround
def checked(x):
    return x.view(3, 3) if x.numel() == 9 else x.view(2, 4)


assert torch.compile(checked, backend="eager")(torch.ones(8)).shape == (2, 4)
