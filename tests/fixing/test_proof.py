"""When a proof rejects edits: what counts as a new finding, and as progress."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from unittest.mock import Mock

import pytest

from torchproof.fixing.proof import (
    Located,
    Proof,
    Prover,
    new_findings,
    reason_to_reject,
)
from torchproof.fixing.proof_child import _reference
from torchproof.fixing.proof_job import NOT_FRESH, Equality
from torchproof.process import JobEnding
from torchproof.records import Finding, Observation, Overlay
from torchproof.targets import Job, Options, parse

SAME = Equality("eager", "same", None, 1, 0, 0, (), ())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text("def step(x):\n    y = copy(x)\n    return other(y)\n")
    return path


def found(file: Path, kind: str, line: int = 2) -> Finding:
    return Finding(
        "GB109",
        {"splits": "graph_break", "skips": "skipped_frame"}[kind],
        "high",
        "",
        "",
        "",
        file=str(file),
        line=line,
        function="step",
        key=f"line {line}",
        source=file.read_text().splitlines()[line - 1],
    )


def proof(file: Path, *findings: Finding, skipped: int = 0, graphs: int = 1) -> Proof:
    observation = Observation((), {}, traced={str(file): {"step": (1, 2, 3)}})
    return Proof(
        Overlay(),
        observation,
        tuple(Located(each, ()) for each in findings),
        {"graphs": graphs, "recompiles": 0, "skipped_frames": skipped},
        SAME,
    )


def test_a_break_at_the_same_line_in_another_frame_is_not_new(file: Path) -> None:
    before = proof(file, found(file, "splits"), skipped=1)
    assert not new_findings(before, proof(file, found(file, "skips"), skipped=1))
    # More functions are skipped now, or the line is another one.
    assert new_findings(before, proof(file, found(file, "skips"), skipped=2))
    assert new_findings(before, proof(file, found(file, "skips", 3), skipped=1))


def test_a_graph_of_a_function_that_was_skipped_is_progress(file: Path) -> None:
    break_ = found(file, "skips")
    before = proof(file, break_, skipped=1, graphs=0)
    assert reason_to_reject(before, proof(file, graphs=1), [[break_]]) is None
    split = proof(file, break_, graphs=1)
    rise = reason_to_reject(split, proof(file, graphs=2), [[break_]])
    assert rise == "graphs rise from 1 to 2"


def test_an_edit_that_leaves_its_finding_is_rejected(file: Path) -> None:
    break_ = found(file, "splits")
    same = proof(file, break_)
    assert reason_to_reject(same, same, [[break_]]) == "GB109 is still there"
    assert reason_to_reject(same, proof(file), [[break_]]) is None


UNSTEADY = """
import os

import torch


def step(x, ids):
    if bool((ids < 0).any()):  # as an operator that reads beyond its input
        return x * {factor}
    return x + ids


def make():
    return step, [(torch.randn(4), torch.arange(4))]
"""


@pytest.mark.parametrize(
    ("factor", "is_kept"), [("int.from_bytes(os.urandom(4))", False), ("3", True)]
)
def test_a_variation_that_the_original_answers_differently_each_time_proves_nothing(
    factor: str, is_kept: bool, tmp_path: Path
) -> None:
    file = tmp_path / "unsteady.py"
    file.write_text(UNSTEADY.format(factor=factor))
    reference = _reference(Job(parse(f"{file}:make")))
    assert reference.unrepeatable is None
    assert ("a negative integer in call 0" in reference.eager.unseen) == is_kept
    assert "other integers in call 0" in reference.eager.unseen


def test_edits_of_a_file_that_a_server_has_imported_go_to_a_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def server(code: int) -> Mock:
        ending: Future[JobEnding] = Future()
        ending.set_result(JobEnding(code, 1.0))
        return Mock(submit=Mock(return_value=ending))

    first, second = server(NOT_FRESH), server(0)
    prover = Prover(parse("workload:gpt"), Options(), tmp_path)
    prover._server = first
    monkeypatch.setattr(prover, "_new_server", Mock(side_effect=[second]))
    edits = Overlay({"model.py": "x = 1"})
    for _ in range(2):
        child = prover._followed(prover._start(edits))
        assert (child.code, child.ending) == (0, "finished")
    assert first.submit.call_count == 1 and second.submit.call_count == 2


BROKEN = """
import torch


def step(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def make():
    return step, [(torch.ones(4),)] * 2
"""


def test_an_edit_that_raises_is_a_failure_with_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    prover = Prover(parse(f"{file}:make"), Options(), tmp_path)
    wrong = BROKEN.replace("y * 2", "y.absent")
    right = BROKEN.replace("    torch._dynamo.graph_break()\n", "")
    with prover:
        assert prover.original().failure is None
        proof = prover.prove(Overlay({str(file): wrong}))
        [screen] = prover.screen_each([Overlay({str(file): right})])
        assert prover.any_backend
    assert "return y.absent" in proof.raised
    assert screen.counts["calls"] == 1 and screen.open == []
    assert screen.equality and not screen.equality.problems
