"""`bench` and its trace in the processes that users run, and `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import torchproof

from torchproof.cli import main
from torchproof.records import Run

MODEL = """
import torch

def make():
    return torch.nn.Linear(8, 8), [(torch.ones(4, 8),)]
"""


def test_bench_measures_what_compare_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    flags = ("--strategies", "full", "--compile", "backend=eager", "--repeats", "1")
    output = ("--seconds", "0.2", "--format", "json", "--trace", "trace.json")
    done = torchproof("bench", "model.py:make", *flags, *output, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.from_json(json.loads(done.stdout))
    eager, full = run.measurements
    assert (eager.verdict, full.verification) == ("reference", "verified")
    assert eager.median_ms and full.median_ms and full.vs_eager
    assert full.counts and full.counts["graphs"] == 1
    assert full.start and full.start["label"] == "cold"
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {each["name"]: each for each in trace}
    assert {"sample", "tracing", "first call", "call 1"} <= names.keys()
    processes = {e["args"]["name"] for e in trace if e["name"] == "process_name"}
    assert {"eager", "full"} <= processes
    sampled = names["sample"]["args"]
    assert sampled["calls"] >= sampled["calls_shown"] > 0
    monkeypatch.chdir(tmp_path)
    assert main(["compare", run.id, run.id, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "not significant"
