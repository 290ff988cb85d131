"""Measured times, memory, guards and loops become findings where they are large."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from rule_programs import Program, programs
from test_rules import describe

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


# -- tables of measurements ------------------------------------------------------------

GAP = {"file": "/m.py", "line": 7}
SLOWER: dict[str, dict[str, Any]] = {
    "recompiles in steps": {"recompiles_in_steps": 3},
    "skipped frames": {"graphs": 0},
    "one break": {"gaps": [{**GAP, "us": 900.0}], "graphs": 2},
    "overhead": {"overhead_us": 800.0},
    "many graphs": {"graphs": 9, "overhead_us": None},
    "kernels": {"overhead_us": 10.0},
    "a break and graphs": {
        "gaps": [{**GAP, "us": 90.0}],
        "graphs": 2,
        "overhead_us": None,
    },
    "nothing measured": {"overhead_us": None},
}


def test_slower_than_eager_says_why(snapshot: Callable[[str, str], None]) -> None:
    texts = []
    for name, data in SLOWER.items():
        [finding] = timing(0.5, **data)
        assert (finding.code, finding.severity) == ("SP501", "high")
        assert finding.cost_us == pytest.approx(1000)
        where = (finding.file, finding.function)
        assert where == ("tests/test_speed_rules.py", "target")
        words = (finding.message, finding.cause, finding.fix)
        texts.append("\n    ".join([f"{name}:", *words]) + "\n")
    snapshot("slower_than_eager.txt", "".join(texts))


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


def test_a_small_loss_is_not_high() -> None:
    [finding] = timing(0.5, eager_ms=0.01, compiled_ms=0.02, overhead_us=9.0)
    assert finding.severity == "medium"


def swept(*recompiles: int) -> dict[str, Any]:
    rows = [
        {"value": value, "ms": 1.0, "recompiles": count, "peak_bytes": None}
        for value, count in zip([4, 8, 6, 10, 1], recompiles, strict=True)
    ]
    return {"dimension": "batch", "rows": rows}


def latency(full_s: float, regional_s: float | None, *, shared: bool) -> dict[str, Any]:
    seconds = {"full_s": full_s, "regional_s": regional_s}
    return {"blocks": 12, "block_class": "Block", "shared": shared, **seconds}


def guards(lookup_us: float, step_us: float, share: float) -> dict[str, Any]:
    return {"guards": 40, "lookup_us": lookup_us, "step_us": step_us, "share": share}


def memory(eager_mib: int | None, compiled_mib: int) -> dict[str, Any]:
    eager = eager_mib and eager_mib << 20
    return {"eager_bytes": eager, "compiled_bytes": compiled_mib << 20}


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("guard_cost", guards(60.0, 120.0, 0.5), ("SP541", "medium")),
        ("guard_cost", guards(60.0, 400.0, 0.15), ("SP541", "low")),
        ("guard_cost", guards(60.0, 1200.0, 0.05), None),
        ("guard_cost", guards(5.0, 10.0, 0.5), None),
        ("memory", memory(1000, 1500), ("SP521", "medium")),
        ("memory", memory(1000, 2500), ("SP521", "high")),
        ("memory", memory(1000, 1150), None),
        ("memory", memory(100, 150), None),  # half as much again, and only 50 MiB
        ("memory", memory(None, 1500), None),
        ("shape_sweep", swept(0, 0, 0, 0, 0), None),
        ("shape_sweep", swept(0, 1, 0, 0, 0), ("SP531", "low")),
        ("shape_sweep", swept(0, 1, 0, 0, 1), ("SP531", "low")),  # the last: size 1
        ("shape_sweep", swept(0, 1, 1, 0, 0), ("SP531", "medium")),
        ("shape_sweep", swept(0, 1, 1, 1, 1), ("SP531", "high")),
        ("latency", latency(30.0, 5.0, shared=True), ("SP512", "low")),
        ("latency", latency(30.0, 5.0, shared=False), None),
        ("latency", latency(30.0, 20.0, shared=True), None),
        ("latency", latency(2.0, 0.9, shared=True), None),
        ("latency", latency(30.0, None, shared=True), None),
    ],
)
def test_a_cost_is_reported_where_it_is_large(
    kind: str, data: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    reported = found(kind, **data)
    assert [(f.code, f.severity) for f in reported] == ([expected] if expected else [])
    assert all(f.cost_us == 60 for f in reported if f.code == "SP541")


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
