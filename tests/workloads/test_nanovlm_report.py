"""The report of nanoVLM: what is wrong with the original, and resolved after."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import check_runs
import pytest
from commands import PROGRAM, Done
from test_nanovlm import DEFECTS, ORIGINAL
from workloads.conftest import Found, place

from torchproof.checking import history
from torchproof.records.run import Observation, Part, Run
from torchproof.report import render

PARTS = {"static": Part("found"), "breaks": Part("found")}


def entries(text: str) -> dict[str, str]:
    """The sections of the findings, by their heading."""
    part = text.partition("\n## Findings\n")[2].partition("\n## ")[0]
    found = re.split(r"\n### ", part)[1:]
    return {entry.partition("\n")[0]: entry for entry in found}


def assert_tells(text: str) -> None:
    """Each defect at its line, with its code, what to do and how to verify it."""
    told = list(entries(text).values())
    for code, _, source in DEFECTS.values():
        file, line = place(ORIGINAL, source)
        mine = [e for e in told if f"{file}:{line}`" in e and f"rule {code}`" in e]
        assert len(mine) == 1, (code, file, line)
        for label in ("Trigger", "Impact", "Fix", "Why", "Verification", "Reference"):
            assert f"**{label}:**" in mine[0]
    assert not any("print(" in heading for heading in entries(text))


def resolved(text: str) -> str:
    return text.partition("\n## Resolved\n")[2].partition("\n## ")[0]


def assert_resolved(text: str) -> None:
    rows = resolved(text).splitlines()
    for code, _, source in DEFECTS.values():
        file, line = place(ORIGINAL, source)
        assert any(f"| {code} |" in row and f"{file}:{line}`" in row for row in rows)
    codes = {code for code, _, _ in DEFECTS.values()}
    for entry in entries(text).values():
        assert not any(f"rule {code}`" in entry for code in codes), entry


def checked(found: Found, workload: str) -> Run:
    target = f"workload:{workload}"
    command = f"torchproof check {target} --effort quick"
    run = check_runs.check(*found(workload), target=target, parts=PARTS)
    return replace(run, command=command, id=f"20260101-0000-{workload}")


def test_the_report_tells_every_defect_of_the_original(found: Found) -> None:
    assert_tells(render(checked(found, ORIGINAL), "md"))


@pytest.mark.slow
def test_they_are_resolved_in_the_cured_one(
    found: Found, observed: Callable[..., Observation]
) -> None:
    before, after = checked(found, ORIGINAL), checked(found, "nanovlm")
    events = observed("nanovlm").events
    assert after.findings == () and [e.kind for e in events].count("graph") == 1
    gone = history.resolved(
        before, after, parts_of=lambda _: ["breaks"], suspected=lambda _: False
    )
    findings = (*after.findings, *gone)
    after = replace(after, findings=findings, baseline=history.for_comparison(before))
    text = render(after, "md")
    assert_resolved(text)
    assert re.search(rf"^\|[^|]*\bhigh \| {_high(before)} \| 0 \|", text, re.M)
    assert "`workload:nanovlm-original`" in text


def _high(run: Run) -> int:
    return sum(f.severity == "high" for f in run.findings)


def torchproof(*arguments: str, cwd: Path) -> Done:
    """A command that measures, with the time that it takes on a busy machine."""
    command = [*PROGRAM, *arguments]
    settings = {"cwd": cwd, "capture_output": True, "text": True, "timeout": 1200}
    return subprocess.run(command, check=False, **settings)


@pytest.mark.slow
def test_the_commands_themselves_tell_it(tmp_path: Path) -> None:
    first = torchproof("check", f"workload:{ORIGINAL}", "--format", "md", cwd=tmp_path)
    assert first.returncode == 1, first.stderr
    assert_tells(first.stdout)
    assert re.search(r"^\| eager \| [\d.]+ ms \|", first.stdout, re.M)
    assert re.search(r"\b[\d.]+ us a call\b", first.stdout)
    (run,) = re.findall(r"\*\*Run:\*\* `(.+)`", first.stdout)
    more = ("--format", "md", "--baseline", run)
    second = torchproof("check", "workload:nanovlm", *more, cwd=tmp_path)
    assert second.returncode in {0, 1}, second.stderr  # speed is the machine's
    assert_resolved(second.stdout)
    assert re.search(r"^\| full,[^|]*\bmedian\b[^|]*\| [\d.]+ ms", second.stdout, re.M)
    shown = re.findall(
        r"```bash\n(torchproof check .* --select GB102 .*)\n", first.stdout
    )
    verified = torchproof(*shlex.split(shown[0])[1:], cwd=tmp_path)
    assert verified.returncode == 1 and "GB102" in verified.stdout
