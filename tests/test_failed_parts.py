"""A part that could not run: a finding or exit code 2, never a clean result."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked_commands
import pytest
from check_runs import ITEM

from torchproof.checking import suspicions
from torchproof.checking.measured_parts import PartsMeasurer
from torchproof.cli import exit_codes, flags, main
from torchproof.records.raised_error import RaisedError
from torchproof.records.run import Finding, Part, Run
from torchproof.report import render, terminal
from torchproof.targets.options import Options
from torchproof.targets.target import parse

RULE = Path(__file__).parent / "rules" / "CE705"


def run_of(*findings: Finding, **parts: Part) -> Run:
    return Run(
        id="1",
        target="m.py:make",
        strategy="full",
        environment={},
        counts={},
        findings=findings,
        parts={"breaks": Part("passed"), **parts},
    )


def exit_code(run: Run, fail_on: str = "high") -> int:
    return exit_codes.check_code(run, argparse.Namespace(fail_on=fail_on))


@pytest.mark.parametrize("fail_on", ["high", "low", "never"])
def test_a_failed_part_ends_with_2(
    fail_on: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(baseline=Part("failed", "full: was killed by SIGKILL"))
    assert exit_code(run, fail_on) == 2
    assert (
        "part baseline failed: full: was killed by SIGKILL" in capsys.readouterr().err
    )
    assert "No findings in the parts that ran" in terminal.render(run)


def test_a_skipped_part_is_no_failure() -> None:
    run = run_of(batch=Part("skipped", "the factory has no keyword 'batch'"))
    assert exit_code(run) == 0
    assert "No findings: no graph break" in terminal.render(run)


def test_findings_come_before_a_failed_part() -> None:
    failed = Part("failed", "full: InductorError: no")
    assert exit_code(run_of(ITEM, baseline=failed)) == 1
    error = replace(ITEM, kind="compile_error")
    assert exit_code(run_of(error, baseline=failed), "never") == 0


REASON = "made-up-reason"


def assert_shown(text: str, format: str, reason: str = REASON) -> None:
    """Whether a document shows a failure, where its format has such things."""
    assert reason in text
    if format == "sarif":
        [invocation] = json.loads(text)["runs"][0]["invocations"]
        assert not invocation["executionSuccessful"]
        notifications = invocation["toolExecutionNotifications"]
        errors = [n["message"]["text"] for n in notifications if n["level"] == "error"]
        assert reason in errors[0]
    if format == "gitlab":
        [entry] = [e for e in json.loads(text) if e["check_name"] == "incomplete"]
        assert reason in entry["description"] and entry["severity"] == "critical"
    if format == "github":
        assert text.startswith("::error title=torchproof::")
    if format == "json":
        assert "failed" in {
            part["status"] for part in json.loads(text)["parts"].values()
        }


@pytest.mark.parametrize("format", flags.FORMATS)
@pytest.mark.parametrize("findings", [(), (ITEM,)])
def test_every_format_shows_a_part_that_failed(
    format: str, findings: tuple[Finding, ...]
) -> None:
    failed = run_of(*findings, baseline=Part("failed", REASON))
    assert_shown(render(failed, format), format)
    clean = render(run_of(*findings), format)
    assert "failed:" not in clean and '"incomplete"' not in clean
    if format == "sarif":
        assert json.loads(clean)["runs"][0]["invocations"][0]["executionSuccessful"]


@pytest.mark.parametrize("format", flags.FORMATS)
def test_every_format_shows_a_run_that_did_not_finish(format: str) -> None:
    run = replace(run_of(breaks=Part("failed", REASON)), error=REASON)
    text = render(run, format)
    assert_shown(text, format)
    if format in ("github", "gitlab", "sarif", "agent"):
        assert text.count(REASON) == 1


@pytest.mark.parametrize("target", ["m.py", ".", "m.py:make"])
def test_crash_of_reading_is_a_failed_part(
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def crash(*_: object) -> Any:
        raise TypeError(REASON)

    monkeypatch.setattr(suspicions, "_of_file", crash)
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text("import torch\n\ndef make():\n    return f, [()]\n")
    Path("other.py").write_text("x = 1\n")
    code = main(["check", target, "--effort", "static", "--format", "json", "-q"])
    captured = capsys.readouterr()
    assert code == 2 and "Traceback" not in captured.err
    assert_shown(captured.out, "json")


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
    assert [e.data["error"] for e in measurer.collected.events] == expected


def test_without_a_compiler_nothing_is_clean(tmp_path: Path) -> None:
    line = ["check", f"{RULE / 'bad.py'}:make", "--format", "json"]
    done = forked_commands.torchproof(*line, cwd=tmp_path)
    run = json.loads(done.stdout)
    [found] = run["findings"]
    facts = done.returncode, found["code"], found["severity"], found["line"]
    assert facts == (1, "CE705", "high", 10)
    assert run["parts"]["baseline"]["status"] == "failed"
