"""Recognises compiled code that uses more device memory than eager."""

from __future__ import annotations

import gc

import torch

from torchproof.packs.repro.oracles.prelude import NONE, OTHER, SAME

# Smaller differences do not count.
LEAST_SHARE = 0.1
LEAST_BYTES = 2**24


def run_oracle(program, expected):
    """Expects `ratio`: the peak memory of compiled code over that of eager."""
    if not torch.cuda.is_available():
        return OTHER, "there is no CUDA device to measure memory on"
    eager, compiled = (peak_bytes(program, wrap) for wrap in (False, True))
    numbers = f"{compiled / 2**20:.0f} MiB compiled, {eager / 2**20:.0f} MiB in eager"
    more = compiled - eager
    if more <= LEAST_SHARE * eager or more <= LEAST_BYTES:
        return NONE, numbers
    if compiled / eager < 1 + (expected["ratio"] - 1) / 2:
        return OTHER, f"{numbers}: much less than stated"
    return SAME, numbers


def peak_bytes(program, wrap):
    """Measures the third pass over the calls, which compiles nothing any more."""
    gc.collect()
    torch.cuda.empty_cache()
    fn, calls = program.build()
    called = program.compile(fn) if wrap else fn
    with torch.compiler.set_stance("default" if wrap else "force_eager"):
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            program.call_all(called, fn, calls)
    return torch.cuda.max_memory_allocated()
