"""Reading the source joined with real runs: confirmed, refuted, out of reach, gone."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import checker, observed_parts, source_reading, suspicions
from torchproof.cli import main
from torchproof.records import store
from torchproof.records.events import Observation
from torchproof.records.options import Options
from torchproof.records.run import Finding, Run
from torchproof.targets.target import parse

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.careful = False

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:  # shown
            y = y + 1
        if x.shape[0] > 64:
            if y.mean() > 3:  # out of reach
                y = y * 2
        total = y.max().item()  # meant  # torchproof: ignore[GB101]
        return y * total


def make():
    return Net(), [(torch.randn({rows}, 8),) for _ in range({calls})]
"""

Check = Callable[..., Run]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def observed(folder: Path, observe: Any) -> Callable[[str, str], Observation]:
    """Observes a program by the real child, and each text once."""
    return cache(lambda target, text: observe(str(folder / target)))


@pytest.fixture
def check(folder: Path, monkeypatch: pytest.MonkeyPatch, observed: Any) -> Check:
    """A check of a program at effort quick."""

    def run(text: str, **options: Any) -> Run:
        (folder / "model.py").write_text(text)
        return checker.check("model.py:make", **{"effort": "quick", **options})

    def observe_once(target: Any, options: Options, progress: Any) -> Observation:
        found: Observation = observed(target.text, (folder / "model.py").read_text())
        return found

    shutil.rmtree(folder / ".torchproof", ignore_errors=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(observed_parts, "observe", observe_once)
    return run


def model(*, above: int = 0, rows: int = 4, calls: int = 3) -> str:
    text = MODEL.format(rows=rows, calls=calls)
    return "# a line\n" * above + text


def at(run: Run, mark: str) -> list[Finding]:
    lines = Path("model.py").read_text().splitlines()
    number = next(i for i, text in enumerate(lines, 1) if f"# {mark}" in text)
    return [f for f in run.findings if f.line == number]


def test_source_and_run_are_joined(check: Check) -> None:
    run = check(model())
    [shown] = at(run, "shown")
    assert (shown.origin, shown.kind, shown.status) == ("both", "graph_break", "open")
    assert shown.severity == "high" and shown.count
    assert shown.context and shown.source in shown.context
    [hazard] = at(run, "out of reach")
    assert (hazard.origin, hazard.kind, hazard.severity) == ("static", "hazard", "low")
    assert hazard.suspects == "graph_break"
    assert re.search(r"\bcompile\b", hazard.evidence[-1])
    [meant] = at(run, "meant")
    assert meant.status == "intentional" and meant.origin == "dynamic"
    assert run.parts["static"].status == "found"
    assert run.parts["static"].why.startswith("1 file")
    assert run.options["effort"] == "quick" and run.baseline is None


def test_what_the_source_suggests_a_run_can_refute(check: Check) -> None:
    captured = (
        "import torch._dynamo\ntorch._dynamo.config.capture_scalar_outputs = True"
    )
    text = f"{captured}\n{model()}".replace("  # torchproof: ignore[GB101]", "")
    alone = check(text, effort="static")
    assert [f.code for f in at(alone, "meant")] == ["GB101"]
    joined = check(text)
    assert at(joined, "meant") == []
    assert not [f for f in joined.findings if f.status == "resolved"], "it never was"


def test_static_part_can_be_left_out(check: Check) -> None:
    run = check(model(), skip=["static"])
    assert {f.origin for f in run.findings} == {"dynamic"}
    assert run.parts["static"].status == "skipped"
    assert "--skip" in run.parts["static"].why
    assert run.configuration == ()


def test_where_all_that_breaks_is_meant_the_part_passes(check: Check) -> None:
    run = check(model(calls=1).replace("if y.sum() > 0:", "if x.dim() > 0:"))
    assert [f.status for f in run.findings if f.origin == "dynamic"] == ["intentional"]
    assert run.parts["breaks"].status == "passed"
    assert run.counts["graph_breaks"] == 1


def test_a_reader_that_fails_costs_the_run_nothing(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> Any:
        raise RecursionError("deep")

    monkeypatch.setattr(source_reading, "read_with_run", fails)
    run = check(model())
    static = run.parts["static"]
    assert static.status == "failed" and static.why.startswith("RecursionError: deep")
    assert at(run, "shown") and run.ending == "finished"


def test_identities_survive_edits_and_what_was_mended_is_resolved_once(
    check: Check,
) -> None:
    first = check(model())
    moved = check(model(above=7, rows=6, calls=5))
    assert [f.identity for f in moved.findings] == [f.identity for f in first.findings]
    assert [f.line for f in moved.findings] != [f.line for f in first.findings]
    assert moved.baseline and moved.baseline.id == first.id

    def resolved(run: Run) -> list[tuple[str, int | None]]:
        gone = (f for f in run.findings if f.status == "resolved")
        return [(f.identity, f.line) for f in gone]

    first = check(model())
    [shown] = at(first, "shown")
    gone = [(shown.identity, shown.line)]  # where it was
    mended = model(above=2).replace("if y.sum() > 0:", "if x.dim() > 0:")
    second = check(mended)
    assert resolved(second) == gone
    assert second.baseline and second.baseline.findings
    assert second.baseline.findings["high"] == 1
    assert store.load(second.id) == second
    assert resolved(check(mended)) == []
    assert resolved(check(mended, baseline=first)) == gone


def test_what_was_not_looked_for_is_not_resolved(check: Check) -> None:
    check(model())
    clean = "import torch\n\ndef make():\n    return torch.sin, [(torch.ones(2),)]\n"
    for narrow in ({"skip": ["breaks"]}, {"select": ["RC"]}, {"effort": "static"}):
        run = check(clean, **narrow)
        gone = [f for f in run.findings if f.status == "resolved"]
        assert {f.origin for f in gone} <= {"static"}, narrow
        assert not [f for f in gone if f.kind != "hazard"], narrow


# -- the command line ------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    text = model().replace("import torch\n", "import torch\nraise SystemExit(3)\n", 1)
    (tmp_path / "src" / "model.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "target", ["src", "src/model.py", "src/model.py:make", "src.model:make"]
)
def test_static_effort_reads_what_could_not_even_be_imported(
    target: str, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", target, "--effort", "static", "--format", "json"]
    assert main(command) == 0  # nothing high
    run = json.loads(capsys.readouterr().out)
    assert {f["kind"] for f in run["findings"]} == {"hazard"}
    assert {f["file"] for f in run["findings"]} == {"src/model.py"}
    parts = {name: part["status"] for name, part in run["parts"].items()}
    assert (parts["static"], parts["breaks"]) == ("found", "skipped")
    assert run["parts"]["static"]["why"].startswith("1 file")
    assert run["environment"]["torch"] is None and run["counts"]["calls"] is None


def test_a_folder_is_read_and_not_run(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "src"]) == 2
    assert "--effort static" in capsys.readouterr().err
    medium = ["check", "src", "--effort", "static", "--fail-on", "medium"]
    assert main(medium) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("src: 1 file") and "GB102" in shown
    assert main([*medium, "--ignore", "GB"]) == 0
    assert "GB1" not in capsys.readouterr().out


def test_a_baseline_that_is_not_there_fails_before_the_work(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "src", "--effort", "static", "--baseline", "nope"]) == 2
    assert "'nope'" in capsys.readouterr().err
    assert not (program / ".torchproof").exists()


@pytest.mark.parametrize(("module", "is_read"), [("own", True), ("torch.own", False)])
def test_imports_of_the_user_are_read_and_a_torch_beside_them_is_not(
    tmp_path: Path, module: str, is_read: bool
) -> None:
    imported = (tmp_path / module.replace(".", "/")).with_suffix(".py")
    imported.parent.mkdir(exist_ok=True)
    imported.write_text("def ask(x):\n    return x * x.sum().item()\n")
    (tmp_path / "net.py").write_text(
        f"import torch\nfrom {module} import ask\n\n"
        "class Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        return ask(x)\n"
    )
    found = source_reading.read_target(parse(str(tmp_path / "net.py")), print)
    places = [
        (s.finding.code, s.finding.file, s.finding.line) for s in found.suspicions
    ]
    assert places == [("GB101", str(imported), 2)] * is_read
    roots = {str(tmp_path / "net.py"): ["Net.forward"]}
    alone = suspicions.read([tmp_path / "net.py"], roots=roots).suspicions
    assert len(alone) == is_read


def test_a_finding_of_a_retired_rule_is_neither_open_nor_resolved(check: Check) -> None:
    """No rule looks for it any more."""
    text = MODEL.format(rows=2, calls=1)
    first = check(text, effort="static")
    dynamic = replace(first.findings[0], code="RC219", key="", origin="dynamic")
    gone = replace(first.findings[0], code="CF103", key="")
    before = replace(first, findings=(*first.findings, gone, dynamic))
    second = check(text, effort="static", baseline=before)
    assert not {f.code for f in second.findings} & {"CF103", "RC219"}
    assert second.baseline and second.baseline.unjudged == 2
