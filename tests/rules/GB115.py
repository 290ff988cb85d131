import torch


# A private torch.Generator for reproducible noise.
GENERATOR = torch.Generator()


def noisy(x):
    x = x * 2
    noise = torch.randn(x.shape, generator=GENERATOR)  # <- GB115
    return x + 0.1 * noise


def bad():
    return noisy, [(torch.randn(2, 4),)] * 3


# An optional dependency is probed with try/except ImportError in the function.
def norm(x):
    try:
        from fused_kernels_that_are_not_installed import rms_norm  # <- GB115
    except ImportError:
        return x * x.pow(2).mean(-1, keepdim=True).rsqrt()
    return rms_norm(x)


def bad_8():  # <- NC805
    return norm, [(torch.randn(2, 4),)] * 3


# fork_rng around a sampling step.
def sample(logits):
    probabilities = logits.softmax(-1)
    scope = torch.random.fork_rng()  # <- GB115<2.14
    with scope:  # <- GB111
        noise = torch.rand_like(probabilities)
    return (probabilities / noise).argmax(-1)


def bad_9():
    return sample, [(torch.randn(2, 5),)] * 3
