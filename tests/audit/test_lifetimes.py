"""Tensors that outlive their memory are found at their line; clean twins are not.

Without a GPU the programs run as captured, with the lifetimes that graph trees would
give their outputs; on a GPU they run with torch's real trees.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from programs import PROGRAMS, assert_expected, audited, describe, findings_of, watched
from rule_programs import FOLDER, Program

from torchproof.checking.checker import check
from torchproof.targets import Options

pytestmark = pytest.mark.usefixtures("small_heap")
WHOLE = Path(__file__).resolve().parent.parent / "models" / "lifetimes.py"
SLOW = ("clean_hugging_face_training", "clean_static_cache")  # with transformers
ON_GPU = ("validation", "inference_mode", "param_return", "input_return", "graph_break")
CLEAN = [
    node.name
    for node in ast.parse(WHOLE.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("clean_")
]
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device of the programs."""
    chosen: str = request.param
    monkeypatch.setenv("TARGET_DEVICE", chosen)
    return chosen


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.name)
def test_program_gets_its_diagnosis(program: Program, device: str) -> None:
    # A module's own tensor counts as one that never moves: in dead memory, the next
    # recording takes it for an output and torch gives up, after the read was seen.
    raises = device == "cuda" and program.factory == "bad_state"
    findings = audited(program, may_fail=raises)
    assert_expected(program, findings)
    if program.name == "CG301-bad":
        assert findings[0].severity == "high" and "`outs[0]`" in findings[0].message


@pytest.mark.parametrize(
    ("factory", "device"),
    [
        *(
            pytest.param(each, "cpu", marks=pytest.mark.slow if each in SLOW else ())
            for each in CLEAN
        ),
        *(pytest.param(f"clean_{e}", "cuda", marks=pytest.mark.gpu) for e in ON_GPU),
    ],
    indirect=["device"],
)
def test_whole_clean_programs_give_no_findings(factory: str, device: str) -> None:
    entries = watched(f"{WHOLE}:{factory}", as_written=True)
    kinds = {entry["kind"] for entry in entries}
    assert "graph_asked" in kinds and "call_failed" not in kinds, entries
    requests = [entry for entry in entries if entry["kind"] == "graph_asked"]
    assert all(entry["simulated"] is (device == "cpu") for entry in requests)
    findings = findings_of(entries)
    assert not findings, describe(findings)


@pytest.mark.slow
def test_a_cache_that_grows_is_found() -> None:
    [found] = findings_of(watched(f"{WHOLE}:growing_cache", as_written=True))
    assert (found.code, found.severity) == ("CG301", "high")
    assert "`past.layers[0].keys`" in found.message


# -- real graph trees ------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_torchs_error_at_run_time_is_no_finding_of_its_own(
    device: str, tmp_path: Path
) -> None:
    run = check(
        f"{FOLDER / 'CG301.py'}:bad",
        Options(device=device, as_written=True),
        effort="full",
        skip=("batch", "sequence", "latency", "guards"),
        save_in=tmp_path,
    )
    serious = {"compile_error", "numerics", "stale_state", "cudagraph_lifetime"}
    findings = [f for f in run.findings if f.kind in serious]
    assert {f.code for f in findings} == {"CG301"}, describe(findings)


STEADY = """
import torch


def make():
    f = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")
    kept = []

    def driver(x):
        with torch.no_grad():
            out = f(x)
        if x[0, 0] >= 6:
            kept.append(out)
        return sum(each.sum() for each in kept)

    xs = [torch.full((8, 8), i + 1.0, device="cuda") for i in range(9)]
    return driver, [(x,) for x in xs]
"""


@pytest.mark.gpu
def test_replays_overwrite_silently_and_are_found(tmp_path: Path) -> None:
    """The first outputs are dropped, so that all is recorded before any is kept."""
    (tmp_path / "steady.py").write_text(STEADY)
    entries = watched(f"{tmp_path}/steady.py:make", as_written=True)
    assert not [entry for entry in entries if entry["kind"] == "call_failed"]
    [read, *_] = [entry for entry in entries if entry["kind"] == "dead_read"]
    assert read["holder"] == "kept[0]" and read["frames"][-1]["line"] == 11
