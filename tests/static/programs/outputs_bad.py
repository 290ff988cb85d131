"""Output from inside of the region."""

import logging
import sys
import warnings

import torch

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


def make():
    warnings.simplefilter("ignore")
    return every, [(torch.rand(4),)] * 2
