"""Recognises compiled calls in which the host waits for the device."""

from __future__ import annotations

import warnings

import torch

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    build,
    call_all,
    compile_fn,
    unexpected_error,
)


def run_oracle(make, settings, expected, before_call=None):
    """Expects nothing else; counts synchronisations after everything is compiled."""
    if not torch.cuda.is_available():
        return OTHER, "there is no CUDA device to wait for"
    try:
        fn, calls = build(make, settings)
        compiled = compile_fn(fn, settings)
        for _ in range(3):
            call_all(compiled, fn, calls, settings, before_call=before_call)
        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            call_all(compiled, fn, calls, settings, before_call=before_call)
            torch.cuda.set_sync_debug_mode("default")
    except Exception as error:
        return unexpected_error(error, make, settings, before_call)
    waits = [str(item.message) for item in caught if "synchroniz" in str(item.message)]
    if waits:
        return SAME, f"the host waits {len(waits)} times in {len(calls)} calls"
    return NONE, "the host never waits for the device"
