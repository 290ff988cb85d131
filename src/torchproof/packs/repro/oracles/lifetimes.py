"""Recognises outputs of CUDA graphs that a later call overwrites."""

from __future__ import annotations

import torch

from torchproof.packs.repro.oracles.prelude import NONE, SAME, leaves, one_line


def run_oracle(program, expected):
    """Expects nothing else: only outputs that the program itself keeps count.

    If the oracle kept outputs over calls, every program would fail.
    """
    with torch.compiler.set_stance("force_eager"):
        right = outputs_of(program)
    try:
        actual = outputs_of(program, mode="reduce-overhead")
    except Exception as error:
        if "overwritten" not in str(error):
            raise
        return SAME, one_line(error)
    for index, (one, other) in enumerate(zip(actual, right, strict=True)):
        if not all(map(is_close, one, other)):
            return SAME, f"call {index} reads memory that a later call has overwritten"
    return NONE, "nothing that the program keeps is overwritten"


def outputs_of(program, **defaults):
    """Returns the output tensors of each call, copied before the next call."""
    fn, calls = program.build()
    compiled = program.compile(fn, **defaults) if defaults else fn
    outputs = []

    def after(index, output):
        tensors = [leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor)]
        outputs.append([leaf.detach().double().cpu().clone() for leaf in tensors])

    def before(fn, index):
        if program.before_call is not None:
            program.before_call(fn, index % len(calls))

    # Three passes over the calls: to warm up, to record and to replay.
    program.call_all(compiled, fn, calls * 3, before_call=before, after=after)
    return outputs


def is_close(one, other):
    return torch.allclose(one, other, rtol=0.02, atol=0.02, equal_nan=True)
