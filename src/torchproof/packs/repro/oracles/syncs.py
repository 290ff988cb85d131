"""Recognises compiled calls in which the host waits for the device."""

from __future__ import annotations

import warnings

import torch

from torchproof.packs.repro.oracles.prelude import NONE, OTHER, SAME


def run_oracle(program, expected):
    """Expects nothing else; counts synchronisations after everything is compiled."""
    if not torch.cuda.is_available():
        return OTHER, "there is no CUDA device to wait for"
    fn, calls = program.build()
    compiled = program.compile(fn)
    for _ in range(3):
        program.call_all(compiled, fn, calls)
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        program.call_all(compiled, fn, calls)
        torch.cuda.set_sync_debug_mode("default")
    waits = [str(item.message) for item in caught if "synchroniz" in str(item.message)]
    if waits:
        return SAME, f"the host waits {len(waits)} times in {len(calls)} calls"
    return NONE, "the host never waits for the device"
