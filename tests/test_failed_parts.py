"""A part that could not run: a finding or exit code 2, never a clean result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forked_commands import forked
from rule_programs import programs

from torchproof.checking import suspicions
from torchproof.checking.measured_parts import PartsMeasurer
from torchproof.cli import main
from torchproof.records.options import Options
from torchproof.records.raised_error import RaisedError
from torchproof.targets.target import parse


@pytest.mark.parametrize("target", ["m.py", ".", "m.py:make"])
def test_crash_of_reading_is_a_failed_part(
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def crash(*_: object) -> Any:
        raise TypeError("made-up-reason")

    monkeypatch.setattr(suspicions, "_of_file", crash)
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text("import torch\n\ndef make():\n    return f, [()]\n")
    Path("other.py").write_text("x = 1\n")
    code = main(["check", target, "--effort", "static", "--format", "json", "-q"])
    captured = capfd.readouterr()
    assert code == 2 and "Traceback" not in captured.err
    static = json.loads(captured.out)["parts"]["static"]
    assert static["status"] == "failed" and "made-up-reason" in static["why"]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (RaisedError("InductorError", "X: no", "frame"), ["InductorError"]),
        (RaisedError("ValueError", "wrong", None), ["ValueError"]),
        (RaisedError("OutOfMemoryError", "CUDA out of memory", None), []),
        (None, []),  # it was killed, or gave no answer in time
    ],
)
def test_errors_of_compiled_code_are_events(
    raised: RaisedError | None, expected: list[str]
) -> None:
    measurer = PartsMeasurer(parse("workload:gpt"), Options(), print)
    measurer._add_error(raised)
    assert [e.error for e in measurer.collected.events] == expected


def test_without_a_compiler_nothing_is_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [program] = programs("CE705")
    with forked():
        code = main(["check", program.target, "--format", "json"])
    run = json.loads(capfd.readouterr().out)
    [found] = run["findings"]
    assert {(found["code"], found["line"])} == program.expected
    assert (code, found["severity"]) == (1, "high")
    assert run["parts"]["baseline"]["status"] == "failed"
