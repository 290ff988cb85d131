import torch


# A closure value that a scheduler changes between calls.
def before_call(sample, index):
    if index:
        sample.cool()


def bad_5():
    temperature = 1.0

    def sample(logits):
        return (logits / temperature).softmax(-1)  # <- RC210

    def cool():
        nonlocal temperature
        temperature *= 0.9

    sample.cool = cool
    return sample, [(torch.randn(5),)] * 5
