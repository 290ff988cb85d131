"""Outputs of CUDA graphs that a later call overwrites."""

from __future__ import annotations

import torch

from torchproof.repro.judges.prelude import (
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


def judge(make, settings, expected, before_call=None):
    """Expected: nothing. Every output is kept, and read again after the last call."""
    own = failure_in_eager(make, settings, before_call)
    if own is not None:
        return OTHER, f"it fails in eager: {own}"
    kept = []

    def after(index, output):
        for number, leaf in enumerate(leaves(output)):
            if isinstance(leaf, torch.Tensor):
                kept.append((index, number, leaf, leaf.detach().clone()))

    try:
        fn, calls = made(make, settings)
        called = compiled(fn, settings, mode="reduce-overhead")
        call_all(called, fn, calls * 3, settings, repeated(before_call, calls), after)
        changed = [item for item in kept if not is_equal(item[2], item[3])]
    except Exception as error:
        if "overwritten" in str(error):
            return SAME, one_line(error)
        return OTHER, f"compiled it raises {one_line(error)}"
    if changed:
        index, number, *_ = changed[0]
        return SAME, f"output {number} of call {index} was overwritten by a later call"
    return NONE, "no output is overwritten"


def repeated(before_call, calls):
    """The calls are run three times: to warm up, to record and to replay."""
    if before_call is None:
        return None
    return lambda fn, index: before_call(fn, index % len(calls))


def is_equal(one, other):
    return torch.equal(one.detach().nan_to_num(), other.nan_to_num())
