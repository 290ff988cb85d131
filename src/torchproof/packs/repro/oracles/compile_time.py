"""Recognises compilations that take longer than stated, with empty caches."""

from __future__ import annotations

import os
import tempfile
import time

import torch

from torchproof.packs.repro.oracles.prelude import NONE, SAME, Program

SHARE = 0.25  # of the stated seconds: another machine may be faster
TIMES = 4.0  # the compile time of a small function, at least


def run_oracle(program, expected):
    """Expects the `seconds` that compilation took."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
        # The first compilation also imports the compiler; it is not counted.
        compile_seconds(Program(small, program.settings))
        torch.compiler.reset()
        baseline = compile_seconds(Program(small, program.settings))
        seconds = compile_seconds(program)
    numbers = f"the first pass over the calls takes {seconds:.1f} s compiled"
    numbers += f", a small function {baseline:.1f} s"
    if seconds >= max(SHARE * expected["seconds"], TIMES * baseline):
        return SAME, numbers
    return NONE, numbers


def compile_seconds(program):
    start = time.perf_counter()
    program.run_compiled()
    return time.perf_counter() - start


def small():
    shift = torch.rand(()).item()  # another constant makes another graph
    return lambda x: x.sin() + shift, [(torch.ones(8),)]
