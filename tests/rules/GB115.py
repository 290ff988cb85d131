import datetime
import os
import random
import time
import uuid
import torch


# The clock, files, the environment and random generators.
def dated(x):
    today = datetime.date.today()  # <- GB115
    return x + today.year * 0


def every(x):
    x = dated(x)
    started = time.perf_counter()  # <- GB115
    x = x + 1
    found = os.path.exists("/nowhere")  # <- GB115 # run: RC210
    x = x + 1
    os.environ["TORCHPROOF_TEST"] = "1"  # <- GB115
    x = x + 1
    name = uuid.uuid4()  # <- GB115
    x = x + 1
    torch.manual_seed(7)  # <- GB115
    x = x + random.choice([1, 1])  # <- GB115
    return x, started, found, name


def bad():
    return every, [(torch.rand(4),)] * 2


# A private torch.Generator for reproducible noise.
GENERATOR = torch.Generator()


def noisy(x):
    x = x * 2
    noise = torch.randn(x.shape, generator=GENERATOR)  # run: GB115
    return x + 0.1 * noise


def bad_2():
    return noisy, [(torch.randn(2, 4),)] * 3


# An optional dependency is probed with try/except ImportError in the function.
def norm(x):
    try:
        from fused_kernels_that_are_not_installed import rms_norm  # run: GB115
    except ImportError:
        return x * x.pow(2).mean(-1, keepdim=True).rsqrt()
    return rms_norm(x)


def bad_3():  # run: NC805
    return norm, [(torch.randn(2, 4),)] * 3


# fork_rng around a sampling step.
def sample(logits):
    probabilities = logits.softmax(-1)
    scope = torch.random.fork_rng()  # read: GB115 # run: GB115<2.14
    with scope:  # run: GB111
        noise = torch.rand_like(probabilities)
    return (probabilities / noise).argmax(-1)


def bad_4():
    return sample, [(torch.randn(2, 5),)] * 3
