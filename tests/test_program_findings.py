"""Programs whose findings are known: code, line, and the fields that are at stake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import rules
from torchproof.records import DeadTensorEvent, Event, Frame, Observation, RaisedError

SKIPPED = """\
import logging

import torch

log = logging.getLogger("x")


class Net(torch.nn.Module):
    def forward(self, x):
        x = x.sin()
        first = [v.nonzero() for v in x]  # list
        rest = [torch.unique(t) for t in first]  # runs alone
        return x.relu() + len(rest)


def logs(x):
    y = x.sin()
    log.info("mean %s", y.mean())  # logging
    return y.cos()


def loops(x):
    y = x.sin()
    for i in range(2):
        print(i)  # loop
        y = y + 1
    return y.cos()


def calls(x):
    y = x.sin()
    return loops(y).cos()


comprehensions = lambda: (Net(), [(torch.ones(2, 4),)])
logging_call = lambda: (logs, [(torch.ones(4),)])
loop = lambda: (loops, [(torch.ones(4),)])  # nothing compiled
called_loop = lambda: (calls, [(torch.ones(4),)])
"""
BYPASSED = """\
import torch


class Net(torch.nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x):
        return self.layer(x)

    def encode(self, x):
        return self.layer(x) + 1

    def nested(self, x):
        y = self.inner.encode(x)  # a method of another compiled module
        return self(y) + self.encode(y)


class Around(Net):
    def forward(self, x):
        return self.inner(x)


def compiled(*modules):
    return [torch.compile(module, backend="eager") for module in modules]


def make(*lines):
    def driver(x):
        for line in lines:
            line(x)
        return x
    return driver, [(torch.ones(2, 4),)]


def repeat(count, call):
    return lambda x: [call(x) for _ in range(count)]


def methods():
    first, second = compiled(Net(), Net())
    return make(
        first,
        second,
        repeat(2, lambda x: first.encode(x)),  # first
        repeat(5, lambda x: second.encode(x)),  # second
    )


def originals():
    one, other = Net(), Net()
    compiled(other)
    [first] = compiled(one)
    return make(
        first,
        repeat(2, lambda x: one(x)),  # one
        repeat(3, lambda x: other(x)),  # other
        repeat(1, lambda x: one(x)),  # one again
    )


def nested_methods():
    [inner] = compiled(Net())
    [outer] = compiled(Net(inner))
    return make(inner, outer, repeat(3, lambda x: outer.nested(x)))  # outer.nested


def nested_originals():
    inner = Net()
    outer = Around(inner)
    return make(*compiled(inner, outer), repeat(3, lambda x: outer(x)))  # outer(x)


def used():
    [net] = compiled(Net())
    return make(net)
"""
# The module of UNUSED, whose import compiles something.
IMPORTED = """\
import torch

@torch.compile(backend="eager")  # decorator
def step(x):
    return x + 1

def slow(x):
    return x * 2

fast = torch.compile(slow, backend="eager")  # call

def build(model):
    torch.compile(model, backend="eager")
    return model
"""
UNUSED = """\
import torch
import imported_by_program as steps

def make():
    model = steps.build(torch.nn.ReLU())
    return (lambda x: model(x)), [(torch.ones(2),)] * 2  # bypassed
"""
FAILING = """\
import torch
from torch._dynamo.backends.common import aot_autograd

OVERWRITTEN = '''Error: accessing tensor output of CUDAGraphs that has been \
overwritten by a subsequent run. Stack trace: File "model.py", line 3, in f
    return x.sin(). To prevent overwriting, clone the tensor outside'''


def f(x):
    return x.sin() + 1


def raising(error):
    def backend(graph, inputs):
        def run(*args):
            raise error  # at run time
        return run
    return at_run_time(torch.compile(f, backend=backend))


def at_run_time(compiled, *shape, grad=False):
    def driver(x):
        try:
            y = compiled(x)
        except ArithmeticError:
            return f(x)
        if grad:
            y.sum().backward()
        return y
    return driver, [(torch.ones(*(shape or (4,)), requires_grad=grad),)]


overwritten = lambda: raising(RuntimeError(OVERWRITTEN))
shape = lambda: raising(RuntimeError("shape '[3, 3]' is invalid for input of size 8"))
index = lambda: raising(IndexError("index 5 is out of bounds for dimension 0"))
caught = lambda: raising(ArithmeticError("caught by the program"))


def backend_fails():
    def backend(graph, inputs):
        raise RuntimeError("shape '[3, 3]' is invalid")  # while compiling
    return at_run_time(torch.compile(f, backend=backend))


def backward_fails():
    def backward(graph, inputs):
        raise RuntimeError("no such kernel")  # while compiling the backward
    backend = aot_autograd(fw_compiler=lambda g, _: g, bw_compiler=backward)
    return at_run_time(torch.compile(f, backend=backend), grad=True)


@torch.compile(backend="eager")
def own(x):
    if x.sum() > 100:  # a break
        raise ArithmeticError
    return x.view(3, 3) + 1


def own_error():
    def driver(x):
        try:
            return own(x)
        except RuntimeError:
            return x.view(2, 4)
    return driver, [(torch.ones(8),)]


@torch.compile(backend="eager")
def inside(x):
    try:
        return x.view(3, 3) + 1  # the traced code catches it
    except RuntimeError:
        return x.view(2, 4)


def caught_inside():
    return at_run_time(inside, 8)
"""
# A program, the fields of a finding that its cases list, and the findings of each
# factory: the code, the end of the line, and those fields.
FAMILIES: dict[str, tuple[str, tuple[str, ...], dict[str, set[tuple[Any, ...]]]]] = {
    "skipped only if torch skips it": (
        SKIPPED,
        ("kind", "function"),
        {
            "comprehensions": {
                ("GB103", "# list", "graph_break", "Net.forward"),
                ("GB103", "# runs alone", "graph_break", "Net.forward"),
            },
            "logging_call": {("GB104", "# logging", "graph_break", "logs")},
            "loop": {
                ("GB104", "# loop", "skipped_frame", "loops"),
                ("NC805", "# nothing compiled", "no_op", "<lambda>"),
            },
            "called_loop": {("GB104", "# loop", "skipped_frame", "loops")},
        },
    ),
    "bypasses counted for each module and line": (
        BYPASSED,
        ("count", "severity"),
        {
            "methods": {
                ("NC802", "# first", 2, "high"),
                ("NC802", "# second", 5, "high"),
            },
            "originals": {
                ("NC803", "# one", 2, "medium"),
                ("NC803", "# other", 3, "high"),  # the compiled one is never called
                ("NC803", "# one again", 1, "medium"),
            },
            "nested_methods": {("NC802", "# outer.nested", 3, "high")},
            "nested_originals": {("NC803", "# outer(x)", 3, "medium")},
            "used": set(),
        },
    ),
    "what an import compiles is low": (
        UNUSED,
        ("severity",),
        {
            "make": {
                ("NC801", "# decorator", "low"),
                ("NC801", "# call", "low"),
                ("NC803", "# bypassed", "high"),
            }
        },
    ),
    "a compile error only if a compilation raised it": (
        FAILING,
        (),
        {
            "overwritten": {("CG301", "# at run time")},
            "shape": {("NM407", "# at run time")},
            "index": {("NM407", "# at run time")},
            "caught": set(),
            "backend_fails": {("CE703", "# while compiling")},
            "backward_fails": {("CE703", "# while compiling the backward")},
            "own_error": {("GB102", "# a break")},
            "caught_inside": {("CE701", "# the traced code catches it")},
        },
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_program_gives_exactly_these_findings(
    family: str, observe_all: Any, tmp_path: Path
) -> None:
    program, fields, cases = FAMILIES[family]
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "imported_by_program.py").write_text(IMPORTED)
    lines = {
        text.rpartition("  ")[2]: number
        for source in (program, IMPORTED)
        for number, text in enumerate(source.splitlines(), 1)
    }
    as_written = {"as_written": program is not SKIPPED}
    runs = observe_all([(f"{tmp_path}/program.py:{n}", as_written) for n in cases])
    for (case, expected), run in zip(cases.items(), runs, strict=True):
        findings = {
            (f.code, f.line, *(getattr(f, name) for name in fields))
            for f in rules.check(run)
            if "severity" in fields or f.severity != "low"
        }
        placed = {(code, lines[end], *values) for code, end, *values in expected}
        assert findings == placed, case


OVERWRITTEN = (
    "Error: accessing {}tensor output of CUDAGraphs that has been overwritten by a"
    ' subsequent run. Stack trace:   File "model.py", line 3, in f\n    return x.sin().'
)


def raised(message: str, phase: str | None = None) -> Event:
    site = (("model.py", 7, "driver"),)
    error = RaisedError("RuntimeError", message, phase, site)
    return error.event(Frame("model.py", 1, "driver"))


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (raised(OVERWRITTEN.format("")), "CG301"),
        (raised(OVERWRITTEN.format("gradient ")), "CG302"),
        (raised("shape '[3, 3]' is invalid"), "NM407"),
        (raised("shape '[3, 3]' is invalid", "frame"), "CE701"),
    ],
)
def test_error_about_overwritten_outputs_is_a_lifetime(event: Event, code: str) -> None:
    [finding] = rules.check(Observation((event,), {}))
    assert (finding.code, finding.line) == (code, 7)


def test_error_is_evidence_of_the_lifetime_that_was_seen() -> None:
    at = (Frame("model.py", 5, "driver", "outs.append(f(x))"),)
    seen = DeadTensorEvent(frames=at, call=0, holder="outs[0]", operation="stack")
    error = raised(OVERWRITTEN.format(""))
    [finding] = rules.check(Observation((seen, error), {}))
    assert (finding.code, finding.line) == ("CG301", 5)
    assert any("accessing tensor output" in each for each in finding.evidence)
