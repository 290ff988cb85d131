"""Compilations that take longer than is stated, with empty caches."""

from __future__ import annotations

import os
import tempfile
import time

import torch

from torchproof.packs.repro.oracles.prelude import NONE, SAME, otherwise, run_compiled

SHARE = 0.25  # of the seconds that are stated: other machines are faster
TIMES = 4.0  # what a small function takes


def run_oracle(make, settings, expected, before_call=None):
    """Expected: the `seconds` that compiling it took."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
        # What is loaded once in a process is not part of either time.
        seconds_of(small, settings, None)
        torch.compiler.reset()
        yardstick, _ = seconds_of(small, settings, None)
        seconds, error = seconds_of(make, settings, before_call)
    if error is not None:
        return otherwise(error, make, settings, before_call)
    told = f"the first pass over the calls takes {seconds:.1f} s compiled"
    told += f", a small function {yardstick:.1f} s"
    if seconds >= max(SHARE * expected["seconds"], TIMES * yardstick):
        return SAME, told
    return NONE, told


def seconds_of(make, settings, before_call):
    began = time.perf_counter()
    error = run_compiled(make, settings, before_call)
    return time.perf_counter() - began, error


def small():
    shift = torch.rand(()).item()  # another constant, another graph
    return lambda x: x.sin() + shift, [(torch.ones(8),)]
