"""Measured times, memory, guards and loops become findings where they are large."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from facts import missing
from rule_programs import Program, programs, too_long
from test_rules import describe

from torchproof.checking import rules
from torchproof.checking.measured_events import (
    GraphLinesEvent,
    GuardCostEvent,
    LatencyEvent,
    MemoryEvent,
    SweepEvent,
    TimingEvent,
)
from torchproof.checking.rules.compile_cost import loop_at
from torchproof.observe.break_cost import BreakCost, Gap, GraphLines, TracedLine
from torchproof.records import Event, Finding, Frame, Observation, WrapperEvent

HERE = Frame(__file__, 1, "target")
TIMING = {
    "eager_ms": 1.0,
    "compiled_ms": 0.5,
    "ratio": 2.0,
    "low": 1.9,
    "high": 2.1,
    "first_call_s": 5.0,
    "overhead_us": 20.0,
    "gaps": (),
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


def found(kind: type[Event], **data: Any) -> list[Finding]:
    reported = rules.check(Observation((kind(function=HERE, **data),), {}))
    assert not too_long(reported, "SP")
    return reported


def timing(ratio: float, **data: Any) -> list[Finding]:
    spread = {"ratio": ratio, "low": ratio * 0.98, "high": ratio * 1.02}
    times = {"compiled_ms": TIMING["eager_ms"] / ratio}  # type: ignore[operator]
    return found(TimingEvent, **TIMING | spread | times | data)


# -- tables of measurements ------------------------------------------------------------

SLOWER: dict[str, dict[str, Any]] = {
    "recompiles in steps": {"recompiles_in_steps": 3},
    "skipped frames": {"graphs": 0},
    "one break": {"gaps": (Gap("/m.py", 7, 900.0),), "graphs": 2},
    "overhead": {"overhead_us": 800.0},
    "many graphs": {"graphs": 9, "overhead_us": None},
    "kernels": {"overhead_us": 10.0},
    "a break and graphs": {
        "gaps": (Gap("/m.py", 7, 90.0),),
        "graphs": 2,
        "overhead_us": None,
    },
    "nothing measured": {"overhead_us": None},
}


def test_slower_than_eager_says_why() -> None:
    """Each situation has a cause of its own."""
    causes = set()
    for name, data in SLOWER.items():
        [finding] = timing(0.5, **data)
        assert (finding.code, finding.severity) == ("SP501", "high")
        assert finding.cost_us == pytest.approx(1000)
        where = (finding.file, finding.function)
        assert where == ("tests/test_speed_rules.py", "target")
        causes.add(finding.cause)
        if "gaps" in data:
            assert missing(finding.fix, "/m.py:7") == [], name
    assert len(causes) == len(SLOWER)


@pytest.mark.parametrize(
    ("ratio", "data", "codes"),
    [
        (2.0, {}, []),
        (0.8, {}, ["SP501"]),
        (0.8, {"high": 1.05}, ["SP502"]),  # not certain that it is slower
        (0.97, {}, ["SP502"]),  # certain, and not worth a word
        (1.0, {}, ["SP502"]),
        (1.0, {"high": 1.4}, []),  # it may well be faster: not enough evidence
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
    by_size = dict(zip([4, 8, 6, 10, 1], recompiles, strict=True))
    return {"dimension": "batch", "recompiles": by_size}


def latency(full_s: float, regional_s: float, *, shared: bool) -> dict[str, Any]:
    seconds = {"full_s": full_s, "regional_s": regional_s}
    return {"blocks": 12, "block_class": "Block", "shared": shared, **seconds}


def guards(lookup_us: float, share: float) -> dict[str, Any]:
    return {"guards": 40, "lookup_us": lookup_us, "share": share}


def memory(eager_mib: int, compiled_mib: int) -> dict[str, Any]:
    sizes = {"eager_bytes": eager_mib << 20, "compiled_bytes": compiled_mib << 20}
    return {"strategy": "full", **sizes}


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (GuardCostEvent, guards(60.0, 0.5), ("SP541", "medium")),
        (GuardCostEvent, guards(60.0, 0.15), ("SP541", "low")),
        (GuardCostEvent, guards(60.0, 0.05), None),
        (GuardCostEvent, guards(5.0, 0.5), None),
        (MemoryEvent, memory(1000, 1500), ("SP521", "medium")),
        (MemoryEvent, memory(1000, 2500), ("SP521", "high")),
        (MemoryEvent, memory(1000, 1150), None),
        (MemoryEvent, memory(100, 150), None),  # half as much again, and only 50 MiB
        (SweepEvent, swept(0, 0, 0, 0, 0), None),
        (SweepEvent, swept(0, 1, 0, 0, 0), ("SP531", "low")),
        (SweepEvent, swept(0, 1, 0, 0, 1), ("SP531", "low")),  # the last: size 1
        (SweepEvent, swept(0, 1, 1, 0, 0), ("SP531", "medium")),
        (SweepEvent, swept(0, 1, 1, 1, 1), ("SP531", "high")),
        (LatencyEvent, latency(30.0, 5.0, shared=True), ("SP512", "low")),
        (LatencyEvent, latency(30.0, 5.0, shared=False), None),
        (LatencyEvent, latency(30.0, 20.0, shared=True), None),
        (LatencyEvent, latency(2.0, 0.9, shared=True), None),
    ],
)
def test_a_cost_is_reported_where_it_is_large(
    kind: type[Event], data: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    reported = found(kind, **data)
    assert [(f.code, f.severity) for f in reported] == ([expected] if expected else [])
    assert all(f.cost_us == 60 for f in reported if f.code == "SP541")


def test_sizes_may_vary_where_the_program_forbids_it() -> None:
    """The setting is known where torch was told to keep sizes fixed."""
    sweep = SweepEvent(function=HERE, **swept(0, 1, 1, 1, 1))
    for dynamic, kind in (("False", "setting"), ("None", "none")):
        fixed = WrapperEvent(arguments={"dynamic": dynamic})
        reported = rules.check(Observation((sweep, fixed), {}))
        [found] = [each for each in reported if each.code == "SP531"]
        assert found.remedy and found.remedy.kind == kind


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
    source = Path(__file__).read_text().splitlines()
    at = 1 + source.index("    for _ in range(3):  # a loop to be found")
    line = TracedLine(__file__, at, "f", nodes=90, repeats=45, copies=0, block=None)
    measured = {"backend_s": 20.0, "eager_ms": 1.0} | change
    graph = GraphLines("0/0", HERE, 100, measured["backend_s"], (line,))
    reported = found(GraphLinesEvent, graph=graph, eager_ms=measured["eager_ms"])
    assert [f.code for f in reported] == ([] if change else ["SP511"])


def _loop() -> None:
    for _ in range(3):  # a loop to be found
        pass


# -- programs --------------------------------------------------------------------------


def graph_lines(fn: Any, calls: Any) -> Iterator[GraphLinesEvent]:
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
        graphs = anatomy.costs().graphs
    for graph in graphs:
        slow = replace(graph, backend_s=20.0)
        yield GraphLinesEvent(function=graph.function, graph=slow, eager_ms=1.0)


@pytest.mark.parametrize("program", programs("SP51*"), ids=lambda each: each.name)
def test_program_gets_its_diagnosis(program: Program) -> None:
    fn, calls = runpy.run_path(str(program.path))[program.factory]()
    reported = rules.check(Observation(tuple(graph_lines(fn, calls)), {}))
    assert {(f.code, f.line) for f in reported} == program.expected, describe(reported)
    assert not too_long(reported, "SP")


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
    priced = sorted(rules.with_costs(findings, gaps), key=rules.by_cost)
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
