"""Compiled calls in which the host waits for the device."""

from __future__ import annotations

import warnings

import torch

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    call_all,
    compiled,
    made,
    otherwise,
)


def run_oracle(make, settings, expected, before_call=None):
    """Expected: nothing. Waits are counted once everything is compiled."""
    if not torch.cuda.is_available():
        return OTHER, "there is no CUDA device to wait for"
    try:
        fn, calls = made(make, settings)
        called = compiled(fn, settings)
        for _ in range(3):
            call_all(called, fn, calls, settings, before_call=before_call)
        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            call_all(called, fn, calls, settings, before_call=before_call)
            torch.cuda.set_sync_debug_mode("default")
    except Exception as error:
        return otherwise(error, make, settings, before_call)
    waits = [str(item.message) for item in seen if "synchroniz" in str(item.message)]
    if waits:
        return SAME, f"the host waits {len(waits)} times in {len(calls)} calls"
    return NONE, "the host never waits for the device"
