import torch

OPTIONS = {"bad_4": {"as_written": True}}


def before_call(fn, index):
    torch.set_grad_enabled(not (fn is validated and index == 2))


# Validation runs under no_grad.
def validated(x):  # run: RC216
    return x.softmax(-1)


def bad():
    return validated, [(torch.randn(2, 4, requires_grad=True),)] * 4


# The caller enters autocast only for some of the steps.
def mixed(x):  # run: RC216
    return x @ x.t()


def bad_4():
    compiled = torch.compile(mixed, backend="eager")

    def step(x, enabled):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            return compiled(x)

    return step, [(torch.randn(2, 4), enabled) for enabled in (False, True, False, True)]


# The global state is the same for every call.
def good():
    def model(x):
        with torch.no_grad():
            shift = x.mean()
        return (x - shift).softmax(-1)

    return model, [(torch.randn(2, 4),)] * 4
