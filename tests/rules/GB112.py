import torch

OPTIONS = {"bad_5": {"as_written": True}}


# A custom exception that carries a tensor is raised and caught as control flow.
class Done(Exception):
    def __init__(self, value):
        super().__init__("done")  # run: GB112<2.14
        self.value = value


def halting(x):
    x = x.tanh()
    try:
        raise Done(x * 2)
    except Done as stop:
        x = stop.value
    return x * 2


def bad():  # run: NC805
    return halting, [(torch.randn(2, 4),)] * 3


# A failed assert on a shape, caught.
def square_or_pad(x):
    x = x * 2
    try:
        assert x.shape[0] == x.shape[1]  # run: GB112
    except AssertionError:
        x = torch.nn.functional.pad(x, (0, x.shape[0] - x.shape[1]))
    return x.tril()


def bad_2():  # run: NC805
    return square_or_pad, [(torch.randn(4, 3),)] * 3


# except* (exception groups) has bytecode that Dynamo does not know.
def tolerant(x):
    x = x.relu()
    try:
        if x.dim() == 1:
            raise ExceptionGroup("shape", [ValueError("one dimension")])
    except* ValueError:  # run: GB112
        x = x.unsqueeze(0)
    return x * 2


def bad_3():  # run: NC805
    return tolerant, [(torch.randn(4),)] * 3


# The compiled function reports bad input by raising.
def strict(x):
    h = x * 2
    if x.shape[-1] != 4:
        raise ValueError("expected four features")  # run: GB112
    return h.relu()


def bad_5():
    compiled = torch.compile(strict, backend="eager")  # run: NC805

    def serve(x):
        try:
            return compiled(x)
        except ValueError:
            return None

    return serve, [(torch.randn(2, 5),)] * 3


# Ordinary try/except on Python values, raised and caught inside, is followed.
class Unsupported(Exception):
    pass


def fused(x, options):
    if "kernel" not in options:
        raise Unsupported("no kernel")
    return options["kernel"](x)


def norm(x):
    options = {}
    if x.shape[-1] != 4:
        raise ValueError(f"expected width 4, got {x.shape[-1]}")
    try:
        eps = options["eps"]
    except KeyError:
        eps = 1e-6
    try:
        return fused(x, options)
    except Unsupported:
        return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()


def good():
    return norm, [(torch.randn(2, 4),)] * 3
