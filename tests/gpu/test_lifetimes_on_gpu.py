"""The programs about lifetimes against torch's real graph trees: the same findings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "audit"))

from programs import PROGRAMS, assert_expected, audited, describe, findings_of, watched
from rule_programs import FOLDER, Program

from torchproof.checking.checker import check
from torchproof.targets import Options

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGET_DEVICE", "cuda")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.name)
def test_real_trees_give_the_same_diagnosis(program: Program) -> None:
    # A module's own tensor counts as one that never moves: in dead memory, the next
    # recording takes it for an output and torch gives up, after the read was seen.
    state = program.factory == "bad_state"
    assert_expected(program, audited(program, may_fail=state))


RAISING = ("bad", "bad_closure", "bad_recurrent")
SERIOUS = {"compile_error", "numerics", "stale_state", "cudagraph_lifetime"}


@pytest.mark.parametrize("name", RAISING)
def test_torchs_error_at_run_time_is_no_finding_of_its_own(
    name: str, tmp_path: Path
) -> None:
    run = check(
        f"{FOLDER / 'CG301.py'}:{name}",
        Options(device="cuda", as_written=True),
        effort="full",
        skip=("batch", "sequence", "latency", "guards"),
        save_in=tmp_path,
    )
    findings = [f for f in run.findings if f.kind in SERIOUS]
    assert {f.code for f in findings} == {"CG301"}, describe(findings)


def test_the_trees_are_real() -> None:
    entries = watched(f"{FOLDER / 'CG301.py'}:bad", as_written=True)
    asked = [entry for entry in entries if entry["kind"] == "graph_asked"]
    assert asked and not any(entry["simulated"] for entry in asked)


WHOLE = Path(__file__).resolve().parent.parent / "models" / "lifetimes.py"
CLEAN = ("validation", "inference_mode", "param_return", "input_return", "graph_break")


@pytest.mark.parametrize("name", CLEAN)
def test_whole_programs_are_left_alone(name: str) -> None:
    entries = watched(f"{WHOLE}:clean_{name}", as_written=True)
    assert "call_failed" not in {entry["kind"] for entry in entries}
    findings = findings_of(entries)
    assert not findings, describe(findings)


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


def test_replays_overwrite_silently_and_are_found(tmp_path: Path) -> None:
    """The first outputs are dropped, so that all is recorded before any is kept."""
    (tmp_path / "steady.py").write_text(STEADY)
    entries = watched(f"{tmp_path}/steady.py:make", as_written=True)
    assert not [entry for entry in entries if entry["kind"] == "call_failed"]
    [read, *_] = [entry for entry in entries if entry["kind"] == "dead_read"]
    assert read["holder"] == "kept[0]" and read["producer"][-1][1] == 11
