import logging
import sys
import warnings
import torch


# Output from inside of the region.
logger = logging.getLogger(__name__)


def every(x):
    print("mean", x.mean())  # <- GB104
    x = x + 1
    logger.info("shape %s", x.shape)  # <- GB104
    x = x + 1
    warnings.warn("slow path")  # <- GB104
    x = x + 1
    sys.stdout.write("")  # <- GB104
    if x.shape[0] > 2:
        logger.warning("long")  # <- GB104
    return x + 1


def bad():
    warnings.simplefilter("ignore")
    return every, [(torch.rand(4),)] * 2


# A home-made progress bar that writes to the terminal inside the layer loop.
def stack(x):
    for _ in range(3):
        x = x.tanh()
        sys.stdout.write("#")  # <- GB104
    return x


def bad_2():  # run: NC805
    return stack, [(torch.randn(2, 4),)] * 3
