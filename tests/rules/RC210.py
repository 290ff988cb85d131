import torch


def before_call(fn, index):
    if index and hasattr(fn, "cool"):
        fn.cool()


# A Python int argument.
def warmup_scale(x, step):
    return x * (step / 100)  # run: RC210


def bad():
    return warmup_scale, [(torch.randn(4), step) for step in (10, 11, 12, 13, 14)]


# A closure value that a scheduler changes between calls.
def bad_5():
    temperature = 1.0

    def sample(logits):
        return (logits / temperature).softmax(-1)  # run: RC210

    def cool():
        nonlocal temperature
        temperature *= 0.9

    sample.cool = cool
    return sample, [(torch.randn(5),)] * 5


# The changing number is a tensor.
def good():
    return warmup_scale, [(torch.randn(4), torch.tensor(float(step))) for step in (10, 11, 12)]
