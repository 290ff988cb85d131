import torch


def before_call(fn, index):
    if index and hasattr(fn, "cool"):
        fn.cool()


# A Python int argument.
def warmup_scale(x, step):
    return x * (step / 100)  # <- RC210


def bad():
    return warmup_scale, [(torch.randn(4), step) for step in (10, 11, 12, 13, 14)]


# A string argument picks the reduction.
def loss(error, reduction):
    if reduction == "sum":  # <- RC210
        return error.sum()
    return error.mean() if reduction == "mean" else error * 1


def bad_2():
    return loss, [(torch.randn(4), name) for name in ("mean", "sum", "none")]


# A closure value that a scheduler changes between calls.
def bad_5():
    temperature = 1.0

    def sample(logits):
        return (logits / temperature).softmax(-1)  # <- RC210

    def cool():
        nonlocal temperature
        temperature *= 0.9

    sample.cool = cool
    return sample, [(torch.randn(5),)] * 5


# A closure made anew for every call, each with another bound string.
def scorer(kind):
    def score(x):
        return x.pow(2) if kind.startswith("l2") else x.abs()  # <- RC210

    return score


def apply(x, fn):
    return fn(x).sum()


def bad_6():
    return apply, [(torch.randn(4), scorer(f"l2-{index}")) for index in range(4)]


# The changing number is a tensor.
def good():
    return warmup_scale, [(torch.randn(4), torch.tensor(float(step))) for step in (10, 11, 12)]
