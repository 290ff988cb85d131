"""Programs that are compiled, though no compiled code ever runs."""

from __future__ import annotations

import functools

import torch
from torch.overrides import TorchFunctionMode

from torchproof.packs.repro.oracles.error_text import reason_of, without_values
from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    call_all,
    made,
    otherwise,
    run_compiled,
    traced,
)


class Work(TorchFunctionMode):
    """Counts what eager computes: where there is no work, nothing is to be compiled."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Asked:
    """What is given to torch.compile, and how often what comes back is called."""

    def __init__(self, make):
        marks = ("_torchdynamo_orig_callable", "_orig_mod")
        there = getattr(make, "__globals__", {}).values()
        # By decorators, before anybody could look; their calls are not counted.
        self.before = [v for v in there if any(mark in dir(v) for mark in marks)]
        self.given = self.calls = 0

    def __enter__(self):
        self.original = torch.compile
        torch.compile = self.compile
        return self

    def __exit__(self, *_):
        torch.compile = self.original

    def compile(self, model=None, **settings):
        compiled = self.original(model, **settings)
        if model is None:
            return lambda model: self.compile(model, **settings)
        self.given += 1
        if not isinstance(compiled, torch.nn.Module):
            return self.counted(compiled)
        compiled.forward = self.counted(compiled.forward)
        return compiled

    def counted(self, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            self.calls += 1
            return function(*args, **kwargs)

        return call

    def differs(self, called):
        """What is wrong where compiled code is to be called, or is not to be."""
        if not (self.given or self.before):
            return "nothing is given to torch.compile"
        if called and not (self.calls or self.before):
            return "what torch.compile gives is never called"
        return "compiled code is called" if called is False and self.calls else None


def run_oracle(make, settings, expected, before_call=None):
    """Expected: `because`, the type of the break that left nothing, or None.

    `called`: whether what torch.compile gave is called at all; None if unknown.
    """
    with Asked(make) as asked, traced() as trace:
        error = run_compiled(make, settings, before_call, backend="eager")
    if error is not None:
        return otherwise(error, make, settings, before_call)
    graphs = len(list(trace.named("dynamo_output_graph")))
    if graphs:
        return NONE, f"{graphs} graphs are compiled"
    if other := asked.differs(expected.get("called")):
        return OTHER, other
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
