"""What measuring shows becomes a finding only where it is worth one."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from rule_programs import Program, programs
from test_rules import describe
from torch._dynamo.utils import counters

from torchproof.checking import rules
from torchproof.checking.rules.compile_cost import loop_at
from torchproof.observe.break_cost import BreakCost, Gap
from torchproof.records.run import Event, Finding, Frame, Observation

HERE = Frame(__file__, 1, "target")
TIMING = {
    "strategy": "full",
    "eager_ms": 1.0,
    "compiled_ms": 0.5,
    "ratio": 2.0,
    "low": 1.9,
    "high": 2.1,
    "first_call_s": 5.0,
    "overhead_us": 20.0,
    "gaps": [],
    "graphs": 1,
    "recompiles_in_steps": 0,
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # other tests run beside these
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


def found(kind: str, **data: Any) -> list[Finding]:
    return rules.check(Observation((Event(kind, function=HERE, data=data),), {}))


def timing(ratio: float, **data: Any) -> list[Finding]:
    spread = {"ratio": ratio, "low": ratio * 0.98, "high": ratio * 1.02}
    times = {"compiled_ms": TIMING["eager_ms"] / ratio}  # type: ignore[operator]
    return found("timing", **TIMING | spread | times | data)


# -- slower, and no faster -------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "cause", "fix"),
    [
        ({"recompiles_in_steps": 3}, r"\b3 times\b", r"\bRC\b"),
        ({"graphs": 0}, r"\bframes\b.*\bskipped\b", r"\bGB\b"),
        (
            {"gaps": [{"file": "/m.py", "line": 7, "us": 900.0}], "graphs": 2},
            r"\b900 us\b",
            r"\bline 7\b",
        ),
        ({"overhead_us": 800.0}, r"\b800 us\b", r"\bregion\b"),
        ({"graphs": 9, "overhead_us": None}, r"\b9\b.*\bgraphs\b", r"\bregion\b"),
        ({"overhead_us": 10.0}, r"\b10 us\b.*\bkernels\b", "--backends"),
        (
            {
                "gaps": [{"file": "/m.py", "line": 7, "us": 90.0}],
                "graphs": 2,
                "overhead_us": None,
            },
            r"\b90 us\b.* rest of the 1 ms goes to the 2 graphs\b",
            r"\bline 7\b",
        ),
        ({"overhead_us": None}, r"\bnot measured\b", "--backends"),
    ],
)
def test_slower_than_eager_says_why(data: Any, cause: str, fix: str) -> None:
    [finding] = timing(0.5, **data)
    assert (finding.code, finding.kind, finding.severity) == (
        "SP501",
        "slowdown",
        "high",
    )
    assert "2.00x slower" in finding.message
    assert re.search(cause, finding.cause) and re.search(fix, finding.fix)
    assert finding.cost_us == pytest.approx(1000)
    assert (finding.file, finding.function) == ("tests/test_speed_rules.py", "target")


@pytest.mark.parametrize(
    ("ratio", "data", "codes"),
    [
        (2.0, {}, []),
        (0.8, {}, ["SP501"]),
        (0.8, {"high": 1.05}, ["SP502"]),  # not certain that it is slower
        (0.97, {}, ["SP502"]),  # certain, and not worth a word
        (1.0, {}, ["SP502"]),
        (1.0, {"high": 1.4}, []),  # it may well be faster: not enough evidence
        (1.0, {"low": None}, []),
        (1.08, {}, []),
    ],
)
def test_only_what_is_certain_is_reported(
    ratio: float, data: Any, codes: list[str]
) -> None:
    assert [finding.code for finding in timing(ratio, **data)] == codes


def test_a_loss_nobody_notices_is_not_high() -> None:
    [finding] = timing(0.5, eager_ms=0.01, compiled_ms=0.02, overhead_us=9.0)
    assert finding.severity == "medium"


# -- guards, memory, shapes, first calls -----------------------------------------------


@pytest.mark.parametrize(
    ("data", "severity"),
    [
        ({"lookup_us": 60.0, "step_us": 120.0, "share": 0.5}, "medium"),
        ({"lookup_us": 60.0, "step_us": 400.0, "share": 0.15}, "low"),
        ({"lookup_us": 60.0, "step_us": 1200.0, "share": 0.05}, None),
        ({"lookup_us": 5.0, "step_us": 10.0, "share": 0.5}, None),
    ],
)
def test_guards_are_reported_by_their_share(data: Any, severity: str | None) -> None:
    reported = found("guard_cost", guards=40, **data)
    assert [(f.code, f.severity) for f in reported] == (
        [("SP541", severity)] if severity else []
    )
    assert all(f.cost_us == 60 and "(40 " in f.cause for f in reported)


@pytest.mark.parametrize(
    ("eager", "compiled", "severity"),
    [
        (1000, 1500, "medium"),
        (1000, 2500, "high"),
        (1000, 1150, None),
        (100, 150, None),  # half as much again, and only 50 MiB
        (None, 1500, None),
    ],
)
def test_memory_is_reported_if_it_is_much(
    eager: int | None, compiled: int, severity: str | None
) -> None:
    data = {"eager_bytes": eager and eager << 20, "compiled_bytes": compiled << 20}
    reported = found("memory", **data)
    assert [f.severity for f in reported] == ([severity] if severity else [])
    assert all((f.code, f.kind) == ("SP521", "memory") for f in reported)


@pytest.mark.parametrize(
    ("recompiles", "severity"),
    [
        ([0, 0, 0, 0, 0], None),
        ([0, 1, 0, 0, 0], "low"),
        ([0, 1, 0, 0, 1], "low"),  # the last one is of size 1
        ([0, 1, 1, 0, 0], "medium"),
        ([0, 1, 1, 1, 1], "high"),
    ],
)
def test_sizes_that_compile_again_are_counted(
    recompiles: list[int], severity: str | None
) -> None:
    rows = [
        {"value": value, "ms": 1.0, "recompiles": count, "peak_bytes": None}
        for value, count in zip([4, 8, 6, 10, 1], recompiles, strict=True)
    ]
    reported = found("shape_sweep", dimension="batch", rows=rows)
    assert [f.severity for f in reported] == ([severity] if severity else [])
    assert all((f.code, f.kind) == ("SP531", "recompile") for f in reported)


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        ({"full_s": 30.0, "regional_s": 5.0, "shared": True}, ["SP512"]),
        ({"full_s": 30.0, "regional_s": 5.0, "shared": False}, []),
        ({"full_s": 30.0, "regional_s": 20.0, "shared": True}, []),
        ({"full_s": 2.0, "regional_s": 0.9, "shared": True}, []),
        ({"full_s": 30.0, "regional_s": None, "shared": True}, []),
    ],
)
def test_a_late_start_is_reported_where_sharing_was_seen(
    data: Any, codes: list[str]
) -> None:
    reported = found("latency", blocks=12, block_class="Block", **data)
    assert [f.code for f in reported] == codes
    assert all("6.0x" in f.message and f.severity == "low" for f in reported)


# -- unrolled loops --------------------------------------------------------------------


def test_a_loop_is_known_by_its_outermost_header(tmp_path: Path) -> None:
    program = tmp_path / "loops.py"
    program.write_text(
        "for name in names:\n"  # 1
        "    def f(x):\n"
        "        y = x + 1\n"  # 3
        "        for t in x:\n"
        "            while y:\n"  # 5
        "                y = y * t\n"
        "            y = [u for u in\n"  # 7
        "                 y]\n"
        "        return [g(u)\n"  # 9
        "                for u in y]\n"
    )
    loops = [loop_at(str(program), line) for line in range(1, 11)]
    assert loops == [1, None, None, 4, 4, 4, 4, 4, 9, 9]


@pytest.mark.parametrize("change", [{"backend_s": 1.0}, {"eager_ms": 500.0}, {}])
def test_an_unrolled_loop_is_fine_if_it_compiles_fast(change: Any) -> None:
    line = {"file": __file__, "line": 1, "function": "f", "nodes": 90, "repeats": 45}
    source = Path(__file__).read_text().splitlines()
    line["line"] = 1 + source.index("    for _ in range(3):  # a loop to be found")
    data = {"graph": "0/0", "nodes": 100, "backend_s": 20.0, "eager_ms": 1.0}
    lines = [line | {"copies": 0, "block": None}]
    reported = found("graph_lines", **data | {"lines": lines} | change)
    assert [f.code for f in reported] == ([] if change else ["SP511"])


def _loop() -> None:
    for _ in range(3):  # a loop to be found
        pass


# -- programs --------------------------------------------------------------------------


def graph_lines(fn: Any, calls: Any) -> Iterator[Event]:
    """What each line adds to the graphs of a program; Inductor's seconds are invented.

    The first calls compile, so they are not measured.
    """
    with torch.no_grad(), BreakCost() as anatomy:
        compiled = torch.compile(fn, backend="eager")
        compiled(*calls[0])
        with anatomy.watching():
            for _ in range(3):
                with anatomy.call(0):
                    compiled(*calls[0])
        graphs = anatomy.costs().to_json()["graphs"]
    for graph in graphs:
        data = graph | {"backend_s": 20.0, "eager_ms": 1.0}
        yield Event("graph_lines", function=Frame(*graph["function"]), data=data)


@pytest.mark.parametrize("program", programs("SP51*"), ids=lambda each: each.name)
def test_program_gets_its_diagnosis(program: Program) -> None:
    fn, calls = runpy.run_path(str(program.path))[program.factory]()
    reported = rules.check(Observation(tuple(graph_lines(fn, calls)), {}))
    assert {(f.code, f.line) for f in reported} == program.expected, describe(reported)


@pytest.mark.parametrize(("dynamic", "codes"), [(False, ["SP531"]), (None, [])])
def test_each_batch_size_compiles_again_only_where_it_is_static(
    dynamic: bool | None, codes: list[str]
) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    compiled = torch.compile(net, backend="eager", dynamic=dynamic)
    rows: list[dict[str, Any]] = []
    for batch in (4, 8, 6, 10, 1):
        before = counters["stats"]["unique_graphs"]
        compiled(torch.randn(batch, 4))
        count = counters["stats"]["unique_graphs"] - before - (not rows)
        rows.append({"value": batch, "ms": 1.0, "recompiles": count})
    reported = found("shape_sweep", dimension="batch", rows=rows)
    assert [f.code for f in reported if f.severity != "low"] == codes


# -- costs of breaks -------------------------------------------------------------------


def a_break(line: int, severity: Any = "high", kind: str = "graph_break") -> Finding:
    texts = {"message": "m", "cause": "c", "fix": "f"}
    return Finding("GB101", kind, severity, file="model.py", line=line, **texts)


def test_breaks_are_ranked_by_what_they_cost() -> None:
    gaps = [
        Gap(str(Path("model.py").resolve()), line, us, together)
        for line, us, together in [
            (7, 80.0, ()),
            (9, 900.0, ((str(Path("model.py").resolve()), 10),)),
            (20, 5000.0, ()),
            (30, 70.0, ()),
        ]
    ]
    findings = [a_break(3), a_break(7), a_break(9), a_break(10), a_break(20, "low")]
    findings.append(a_break(30, kind="skipped_frame"))
    priced = rules.with_costs(findings, gaps)
    assert [(f.line, f.cost_us) for f in priced] == [
        (9, 900.0),
        (7, 80.0),
        (3, None),
        (10, None),
        (30, None),
        (20, 5000.0),
    ]
    [shared] = priced[3].evidence
    assert "line 9" in shared
