"""Recognises programs that use torch.compile although no compiled code runs."""

from __future__ import annotations

import functools

import torch
from torch.overrides import TorchFunctionMode

from torchproof.packs.repro.oracles.error_text import reason_of, without_values
from torchproof.packs.repro.oracles.prelude import NONE, OTHER, SAME, collect_trace


class FunctionCounter(TorchFunctionMode):
    """Counts torch functions in eager: without any, there is nothing to compile."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class CompileCounter:
    """Counts calls of torch.compile, and calls of the functions that it returns."""

    def __init__(self, make):
        marks = ("_torchdynamo_orig_callable", "_orig_mod")
        values = getattr(make, "__globals__", {}).values()
        # Decorators compile before this class can count; their calls are not counted.
        self.decorated = [v for v in values if any(mark in dir(v) for mark in marks)]
        self.compiles = self.calls = 0

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
        self.compiles += 1
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

    def mismatch(self, called):
        """Returns how the calls differ from the expectation; None if they agree."""
        if not (self.compiles or self.decorated):
            return "the program does not call torch.compile"
        if called and not (self.calls or self.decorated):
            return "the program never calls the compiled function"
        return "compiled code is called" if called is False and self.calls else None


def run_oracle(program, expected):
    """Expects `because`, the type of the graph break that left nothing, or None.

    `called`: whether the program calls the compiled function; None if unknown.
    """
    with CompileCounter(program.make) as compiles, collect_trace() as trace:
        program.run_compiled(backend="eager")
    graphs = len(list(trace.named("dynamo_output_graph")))
    if graphs:
        return NONE, f"{graphs} graphs are compiled"
    if mismatch := compiles.mismatch(expected.get("called")):
        return OTHER, mismatch
    with torch.compiler.set_stance("force_eager"):
        fn, calls = program.build()
        with FunctionCounter() as functions:
            program.call_all(fn, fn, calls)
    if not functions.count:
        return OTHER, "eager computes nothing either"
    because = expected.get("because")
    reasons = [text for _, text in trace.artifacts("dynamo_graph_break_reason")]
    reasons += [
        reason_of(str(metrics.get("fail_reason") or ""))["type"]
        for _, metrics in trace.named("compilation_metrics")
    ]
    if because and not any(
        without_values(because) in without_values(text) for text in reasons
    ):
        return OTHER, "nothing is compiled, for another reason"
    return SAME, f"nothing is compiled; eager runs {functions.count} torch functions"
