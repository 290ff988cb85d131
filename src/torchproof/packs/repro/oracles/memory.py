"""Compiled code that needs more device memory than eager."""

from __future__ import annotations

import gc

import torch

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    call_all,
    compiled,
    failure_in_eager,
    made,
    otherwise,
)

SHARE, LEAST_BYTES = 0.1, 2**24  # less is no difference


def run_oracle(make, settings, expected, before_call=None):
    """Expected: `ratio`, compiled to eager, of the largest amounts in use."""
    if not torch.cuda.is_available():
        return OTHER, "there is no CUDA device whose memory could be measured"
    own = failure_in_eager(make, settings, before_call)
    if own is not None:
        return OTHER, f"it fails in eager: {own}"
    try:
        eager, other = (
            peak_of(make, settings, before_call, wrap) for wrap in (False, True)
        )
    except Exception as error:
        return otherwise(error, make, settings, before_call)
    told = f"{other / 2**20:.0f} MiB compiled, {eager / 2**20:.0f} MiB in eager"
    more = other - eager
    if more <= SHARE * eager or more <= LEAST_BYTES:
        return NONE, told
    if other / eager < 1 + (expected["ratio"] - 1) / 2:
        return OTHER, f"{told}: much less than is stated"
    return SAME, told


def peak_of(make, settings, before_call, wrap):
    """Of the third pass over the calls: what compiling itself needs is not counted."""
    gc.collect()
    torch.cuda.empty_cache()
    fn, calls = made(make, settings)
    called = compiled(fn, settings) if wrap else fn
    with torch.compiler.set_stance("default" if wrap else "force_eager"):
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            call_all(called, fn, calls, settings, before_call=before_call)
    return torch.cuda.max_memory_allocated()
