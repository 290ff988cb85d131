"""Recognises compilations that take longer than stated, with empty caches."""

from __future__ import annotations

import os
import tempfile
import time

import torch

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    SAME,
    run_compiled,
    unexpected_error,
)

SHARE = 0.25  # of the stated seconds: another machine may be faster
TIMES = 4.0  # the compile time of a small function, at least


def run_oracle(make, settings, expected, before_call=None):
    """Expects the `seconds` that compilation took."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
        # The first compilation also imports the compiler; it is not counted.
        compile_seconds(small, settings, None)
        torch.compiler.reset()
        baseline, _ = compile_seconds(small, settings, None)
        seconds, error = compile_seconds(make, settings, before_call)
    if error is not None:
        return unexpected_error(error, make, settings, before_call)
    numbers = f"the first pass over the calls takes {seconds:.1f} s compiled"
    numbers += f", a small function {baseline:.1f} s"
    if seconds >= max(SHARE * expected["seconds"], TIMES * baseline):
        return SAME, numbers
    return NONE, numbers


def compile_seconds(make, settings, before_call):
    start = time.perf_counter()
    error = run_compiled(make, settings, before_call)
    return time.perf_counter() - start, error


def small():
    shift = torch.rand(()).item()  # another constant makes another graph
    return lambda x: x.sin() + shift, [(torch.ones(8),)]
