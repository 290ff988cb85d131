"""Recognises outputs of CUDA graphs that a later call overwrites."""

from __future__ import annotations

import torch

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    build,
    call_all,
    compile_fn,
    eager_error,
    leaves,
    one_line,
)


def run_oracle(make, settings, expected, before_call=None):
    """Expects nothing else: only outputs that the program itself keeps count.

    If the oracle kept outputs over calls, every program would fail.
    """
    in_eager = eager_error(make, settings, before_call)
    if in_eager is not None:
        return OTHER, f"eager fails: {in_eager}"
    with torch.compiler.set_stance("force_eager"):
        right = outputs_of(make, settings, before_call)
    try:
        actual = outputs_of(make, settings, before_call, mode="reduce-overhead")
    except Exception as error:
        if "overwritten" in str(error):
            return SAME, one_line(error)
        return OTHER, f"compiled code raises {one_line(error)}"
    for index, (one, other) in enumerate(zip(actual, right, strict=True)):
        if not all(map(is_close, one, other)):
            return SAME, f"call {index} reads memory that a later call has overwritten"
    return NONE, "nothing that the program keeps is overwritten"


def outputs_of(make, settings, before_call, **defaults):
    """Returns the output tensors of each call, copied before the next call."""
    fn, calls = build(make, settings)
    compiled = compile_fn(fn, settings, **defaults) if defaults else fn
    outputs = []

    def after(index, output):
        tensors = [leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor)]
        outputs.append([leaf.detach().double().cpu().clone() for leaf in tensors])

    before = repeated(before_call, calls)
    # Three passes over the calls: to warm up, to record and to replay.
    call_all(compiled, fn, calls * 3, settings, before_call=before, after=after)
    return outputs


def repeated(before_call, calls):
    """Returns a `before_call` that counts from 0 in each pass over the calls."""
    if before_call is None:
        return None
    return lambda fn, index: before_call(fn, index % len(calls))


def is_close(one, other):
    return torch.allclose(one, other, rtol=0.02, atol=0.02, equal_nan=True)
