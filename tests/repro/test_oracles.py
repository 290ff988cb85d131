"""Each oracle on a program that fails, one that does not, and one that fails otherwise.

Backends that are written in the program stand for what Inductor or a GPU would do:
what is tested is that an oracle distinguishes failures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from oracle_runs import RunOracle


class Case(NamedTuple):
    oracle: str
    expected: dict[str, Any]
    fails: str
    fine: str
    other: str
    settings: Mapping[str, Any] = MappingProxyType({})


def function(*lines: str, arguments: str = "x", calls: str = "(torch.ones(4),)") -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return (
        f"import torch\n\ndef f({arguments}):\n{body}\n\n"
        f"def make():\n    return f, [{calls}]\n"
    )


def backend(*lines: str, calls: str = "(torch.ones(4),)") -> str:
    """A program that compiles itself with a backend of these lines."""
    body = "\n".join(f"    {line}" for line in lines)
    return (
        f"import time\nimport torch\n\ndef own(graph, inputs):\n{body}\n\n"
        "def f(x):\n    return x.sin() + 1\n\n"
        f"def make():\n    return torch.compile(f, backend=own), [{calls}]\n"
    )


PLAIN = function("return x.sin()")
BROKEN = function("return x.no_such_method()")
EAGER = backend("return graph.forward")
RAISES = backend("raise ValueError('unknown operator')")
PRINTS = function("y = x.sin()", "print('y')", "return y.cos()")
BRANCHES = function("if x.sum() > 0:", "    x = x + 1", "return x.cos()")
LOOPS = function(
    "for i in range(2):", "    if x.sum() > i:", "        x = x + 1", "return x"
)
PRINT = {
    "type": "Failed to trace builtin operator",
    "id": "GB0059",
    "names": ["print"],
}
AS_WRITTEN = {"as_written": True}
UNUSED = PLAIN.replace("make():\n", "make():\n    torch.compile(f)\n", 1)
LOG = "log = __import__('logging').getLogger('torch._inductor.{}.__cudagraphs')"
SKIPS = backend(
    LOG.format("cudagraph_utils"),
    "log.warning('skipping cudagraphs due to mutated inputs (3 instances). Found from '"
    "'x\\n')",
    "return graph.forward",
)
RECORDS = backend(
    LOG.format("cudagraph_trees"),
    "log.debug('Recording function 1 of graph recording id 1')",
    "log.debug('Recording function 1 of graph recording id 2')",
    "return graph.forward",
)

# One memory for all outputs, and a program that looks at two of them together.
KEEPS = (
    backend(
        "kept = torch.zeros(4)",
        "return lambda *a: [kept.copy_(v) for v in graph.forward(*a)]",
    )
    + "\ninner = make()[0]\n\ndef make():\n"
    "    return lambda x: inner(x) - inner(x + 1), [(torch.ones(4),)]\n"
)

CASES = {
    "break": Case("breaks", {**PRINT, "skips": False}, PRINTS, PLAIN, BRANCHES),
    "skip": Case(
        "breaks",
        {
            "type": "Data-dependent branching",
            "id": "GB0170",
            "names": [],
            "skips": True,
        },
        LOOPS,
        PLAIN,
        BRANCHES,
    ),
    "recompile": Case(
        "recompiles",
        {"kind": "rank", "times": 2},
        function(
            "return x + 1",
            calls="(torch.ones(2),), (torch.ones(2, 2),), (torch.ones(2, 2, 2),)",
        ),
        PLAIN,
        function("return x + 1", calls="(torch.ones(2),), (torch.ones(2).int(),)"),
    ),
    "limit": Case(
        "recompiles",
        {"limit": True, "kind": "length"},
        function(
            "return sum(x)",
            calls="*[([torch.ones(2)] * n,) for n in range(1, 12)]",
        ),
        PLAIN,
        BROKEN,
    ),
    "size compiled in": Case(
        "recompiles",
        {"specialized": True},
        function("return x + 1 if x.shape[0] == 4 else x - 1"),
        function("return x + 1"),
        BROKEN,
        {"compile": {"dynamic": True}},
    ),
    "error": Case(
        "errors",
        {**PRINT, "error": "Unsupported", "message": PRINT["type"]},
        PRINTS,
        PLAIN,
        BRANCHES,
        {"compile": {"backend": "eager", "fullgraph": True}},
    ),
    "error of a backend": Case(
        "errors",
        {"error": "BackendCompilerFailed", "message": "ValueError: unknown operator"},
        RAISES,
        EAGER,
        RAISES.replace("unknown operator", "no memory left"),
        AS_WRITTEN,
    ),
    "nothing compiled": Case(
        "no_ops",
        {"because": "Data-dependent branching"},
        LOOPS,
        PLAIN,
        function("return x"),
    ),
    "compiled in vain": Case(
        "no_ops", {"because": None, "called": False}, UNUSED, EAGER, PLAIN, AS_WRITTEN
    ),
    "wrong values": Case(
        "answers",
        {"how": "value", "error": 0.5},
        backend("return lambda *a: [v * 2 for v in graph.forward(*a)]"),
        backend("return lambda *a: [v * (1 + 1e-7) for v in graph.forward(*a)]"),
        backend("return lambda *a: [v * torch.nan for v in graph.forward(*a)]"),
        AS_WRITTEN,
    ),
    "stale": Case(
        "answers",
        {"how": "value", "error": None, "later": True},
        backend(
            "kept = []",
            "def run(*a):",
            "    kept.append(graph.forward(*a))",
            "    return kept[0]",
            "return run",
            calls="(torch.ones(4),), (torch.zeros(4),)",
        ),
        EAGER,
        backend("return lambda *a: [v * 2 for v in graph.forward(*a)]"),
        AS_WRITTEN,
    ),
    "hang": Case(
        "hang",
        {"seconds": 6, "place": "torch._dynamo"},
        backend("time.sleep(60)"),
        EAGER,
        RAISES,
        AS_WRITTEN,
    ),
    "slower": Case(
        "slowdown",
        {"what": "slower", "ratio": 0.5},
        backend("return lambda *a: time.sleep(0.004) or graph.forward(*a)"),
        backend("return graph.forward").replace(
            "    return x.sin() + 1",
            "    torch.compiler.is_compiling() or time.sleep(0.004)\n    return x + 1",
        ),
        RAISES,
        AS_WRITTEN,
    ),
    "skipped graph": Case(
        "skips",
        {"reason": "skipping cudagraphs due to mutated inputs (N instances)"},
        SKIPS,
        EAGER,
        SKIPS.replace("mutated inputs", "cpu device"),
        AS_WRITTEN,
    ),
    "recorded again": Case(
        "skips",
        {"recordings": 2},
        RECORDS,
        EAGER,
        RAISES,
        AS_WRITTEN,
    ),
    "overwritten": Case(
        "lifetimes",
        {},
        KEEPS,
        EAGER,
        RAISES,
        AS_WRITTEN,
    ),
}


# They wait, or vary a case that is quicker.
LONG = {"slower", "limit", "skip", "size compiled in", "error of a backend"}
LONG |= {"recorded again", "compiled in vain", "stale"}
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_oracle_distinguishes_same_none_and_other(
    name: str, run_oracle: RunOracle
) -> None:
    case = CASES[name]
    for verdict, source in (
        ("same", case.fails),
        ("none", case.fine),
        ("other", case.other),
    ):
        outcome = run_oracle(case.oracle, case.expected, source, **case.settings)
        assert outcome.verdict == verdict, outcome.output


def test_training_runs_a_backward(run_oracle: RunOracle) -> None:
    """An error in a hook of the backward is seen only if there is one."""
    source = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.scale

    def make():
        net = Net()
        net.scale.register_hook(lambda g: (_ for _ in ()).throw(ValueError("hooked")))
        return net, [{"x": torch.ones(4)}]
    """
    expected = {"error": "ValueError", "message": "hooked"}
    quick = {"compile": {"backend": "eager"}}
    assert run_oracle("errors", expected, source, **quick).verdict == "none"
    trained = run_oracle("errors", expected, source, train=True, **quick)
    assert trained.verdict == "other"  # eager raises it too
    assert re.search(r"\beager\b.*\bValueError: hooked", trained.text)


def test_before_call_runs(run_oracle: RunOracle) -> None:
    source = """
    import torch

    class Net(torch.nn.Module):
        scale = 1.5
        flag = "a"

        def forward(self, x):
            return x * len(self.flag)

    def make():
        return Net(), [(torch.ones(4),)] * 4

    def before_call(fn, index):
        fn.flag = "a" * index
    """
    expected = {"kind": "value", "times": 3}
    assert run_oracle("recompiles", expected, source).is_same
    without = source.replace("def before_call", "def another")
    assert run_oracle("recompiles", expected, without).verdict == "none"


@pytest.mark.parametrize("oracle", ["syncs", "memory"])
def test_what_only_a_device_shows_is_not_seen_without_one(
    oracle: str, run_oracle: RunOracle
) -> None:
    outcome = run_oracle(oracle, {"ratio": 2.0}, PLAIN)
    assert outcome.verdict == "other"
    assert "no CUDA device" in outcome.text
