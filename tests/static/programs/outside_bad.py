"""The clock, files, the environment and random generators."""

import datetime
import os
import random
import time
import uuid

import torch


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


def make():
    return every, [(torch.rand(4),)] * 2
