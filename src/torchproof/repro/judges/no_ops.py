"""Programs that are compiled, though no compiled code ever runs."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from torchproof.repro.judges.prelude import (
    NONE,
    OTHER,
    SAME,
    call_all,
    made,
    otherwise,
    run_compiled,
    traced,
)
from torchproof.repro.judges.words import reason_of, without_values


class Work(TorchFunctionMode):
    """Counts what eager computes: where there is no work, nothing is to be compiled."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def judge(make, settings, expected, before_call=None):
    """Expected: `because`, the type of the break that left nothing, or None."""
    with traced() as trace:
        error = run_compiled(make, settings, before_call, backend="eager")
    if error is not None:
        return otherwise(error, make, settings, before_call)
    graphs = len(list(trace.named("dynamo_output_graph")))
    if graphs:
        return NONE, f"{graphs} graphs are compiled"
    with torch.compiler.set_stance("force_eager"):
        fn, calls = made(make, settings)
        with Work() as work:
            call_all(fn, fn, calls, settings, before_call=before_call)
    if not work.count:
        return OTHER, "eager computes nothing either"
    because = expected.get("because")
    told = [text for _, text in trace.artifacts("dynamo_graph_break_reason")]
    told += [
        reason_of(str(metrics.get("fail_reason") or ""))["type"]
        for _, metrics in trace.named("compilation_metrics")
    ]
    if because and not any(
        without_values(because) in without_values(text) for text in told
    ):
        return OTHER, "nothing is compiled, for another reason"
    return SAME, f"nothing is compiled, and eager runs {work.count} torch functions"
