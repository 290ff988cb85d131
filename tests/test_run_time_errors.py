"""An error is a compile error only if a compilation raised it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchproof.checking import rules
from torchproof.records import Event, Frame, Observation, RaisedError

PROGRAM = """\
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


def overwritten():
    return raising(RuntimeError(OVERWRITTEN))


def shape():
    return raising(RuntimeError("shape '[3, 3]' is invalid for input of size 8"))


def index():
    return raising(IndexError("index 5 is out of bounds for dimension 0"))


def caught():
    return raising(ArithmeticError("caught by the program"))


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
AT_RUN_TIME = "raise error  # at run time"
CASES = {
    "overwritten": {("CG301", AT_RUN_TIME)},
    "shape": {("NM407", AT_RUN_TIME)},
    "index": {("NM407", AT_RUN_TIME)},
    "caught": set(),
    "backend_fails": {("CE703", "# while compiling")},
    "backward_fails": {("CE703", "# while compiling the backward")},
    "own_error": {("GB102", "# a break")},
    "caught_inside": {("CE701", "# the traced code catches it")},
}


def test_compile_errors_are_told_from_run_time_errors(
    observe_all: Any, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    lines = PROGRAM.splitlines()
    runs = observe_all([(f"{file}:{name}", {"as_written": True}) for name in CASES])
    for (name, case), run in zip(CASES.items(), runs, strict=True):
        found = [f for f in rules.check(run) if f.severity != "low"]
        expected = {
            (code, next(n for n, line in enumerate(lines, 1) if line.endswith(text)))
            for code, text in case
        }
        assert {(f.code, f.line) for f in found} == expected, name


FUNCTION = Frame("model.py", 1, "driver")
OVERWRITTEN = (
    "Error: accessing {}tensor output of CUDAGraphs that has been overwritten by a"
    ' subsequent run. Stack trace:   File "model.py", line 3, in f\n    return x.sin().'
)
DEAD = {"role": "output", "holder": "outs[0]", "operation": "stack", "times": 1}


def raised(message: str, phase: str | None = None) -> Event:
    site = (("model.py", 7, "driver"),)
    return RaisedError("RuntimeError", message, phase, site).event(FUNCTION)


def found_in(*events: Event) -> list[tuple[str, int | None]]:
    return [(f.code, f.line) for f in rules.check(Observation(events, {}))]


def test_torchs_error_about_overwritten_outputs_is_a_lifetime() -> None:
    assert found_in(raised(OVERWRITTEN.format(""))) == [("CG301", 7)]
    assert found_in(raised(OVERWRITTEN.format("gradient "))) == [("CG302", 7)]
    assert found_in(raised("shape '[3, 3]' is invalid")) == [("NM407", 7)]
    assert found_in(raised("shape '[3, 3]' is invalid", "frame")) == [("CE701", 7)]


def test_an_error_is_evidence_of_the_lifetime_that_was_seen() -> None:
    stacks: dict[str, Any] = {"overwriter": (), "reader": (), "stored": ()}
    at = (Frame("model.py", 5, "driver", "outs.append(f(x))"),)
    seen = Event("dead_read", frames=at, data={**DEAD, **stacks}, call=0)
    error = raised(OVERWRITTEN.format(""))
    assert found_in(seen, error) == [("CG301", 5)]
    [finding] = rules.check(Observation((seen, error), {}))
    assert any("accessing tensor output" in each for each in finding.evidence)
