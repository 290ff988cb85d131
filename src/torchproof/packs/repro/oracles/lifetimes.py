"""Outputs of CUDA graphs that a later call overwrites."""

from __future__ import annotations

import torch

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    call_all,
    compiled,
    failure_in_eager,
    leaves,
    made,
    one_line,
)


def run_oracle(make, settings, expected, before_call=None):
    """Expected: nothing. What the program itself keeps must still be there.

    No output is kept here: then every program would fail.
    """
    own = failure_in_eager(make, settings, before_call)
    if own is not None:
        return OTHER, f"it fails in eager: {own}"
    with torch.compiler.set_stance("force_eager"):
        right = answers(make, settings, before_call)
    try:
        given = answers(make, settings, before_call, mode="reduce-overhead")
    except Exception as error:
        if "overwritten" in str(error):
            return SAME, one_line(error)
        return OTHER, f"compiled it raises {one_line(error)}"
    for index, (one, other) in enumerate(zip(given, right, strict=True)):
        if not all(map(is_close, one, other)):
            return SAME, f"call {index} reads memory that a later call has overwritten"
    return NONE, "nothing that the program keeps is overwritten"


def answers(make, settings, before_call, **defaults):
    """The tensors that each call gave, copied before the next one."""
    fn, calls = made(make, settings)
    called = compiled(fn, settings, **defaults) if defaults else fn
    found = []

    def after(index, output):
        tensors = [leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor)]
        found.append([leaf.detach().double().cpu().clone() for leaf in tensors])

    before = repeated(before_call, calls)
    call_all(called, fn, calls * 3, settings, before_call=before, after=after)
    return found


def repeated(before_call, calls):
    """The calls are run three times: to warm up, to record and to replay."""
    if before_call is None:
        return None
    return lambda fn, index: before_call(fn, index % len(calls))


def is_close(one, other):
    return torch.allclose(one, other, rtol=0.02, atol=0.02, equal_nan=True)
