"""`make prove`: it continues at the same commit, and never mixes two."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import prove  # noqa: E402


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that were run; `bad` fails the first time."""
    names: list[str] = []

    def run(step: prove.Step) -> dict[str, object]:
        names.append(step.name)
        passed = step.name != "bad" or names.count("bad") > 1
        return {"passed": passed, "exit_code": int(not passed), "seconds": 1}

    steps = tuple(prove.Step(name, "a claim", ("-V",)) for name in ("good", "bad"))
    monkeypatch.setattr(prove, "STEPS", steps)
    monkeypatch.setattr(prove, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(prove, "SUMMARY", tmp_path / "prove.json")
    monkeypatch.setattr(prove, "run", run)
    monkeypatch.setattr(prove, "fingerprint", lambda: "one")
    monkeypatch.setattr(sys, "argv", ["prove.py"])
    return names


def summary() -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(prove.SUMMARY.read_text())
    return plain


def test_only_what_has_not_passed_runs_again(ran: list[str]) -> None:
    assert prove.main() == 1
    assert prove.main() == 0
    assert ran == ["good", "bad", "bad"]
    assert summary()["commit"] == "one"
    assert all(each["passed"] for each in summary()["steps"].values())


def test_another_commit_starts_anew(
    ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prove.main()
    monkeypatch.setattr(prove, "fingerprint", lambda: "two")
    prove.main()
    assert ran == ["good", "bad", "good", "bad"]
    assert summary()["commit"] == "two"


def test_every_step_is_a_file_of_the_project() -> None:
    for step in prove.STEPS:
        script = [word for word in step.arguments if word.endswith(".py")]
        module = [word for word in step.arguments if word.startswith("benchmarks.")]
        files = [*script, *(f"{name.replace('.', '/')}.py" for name in module)]
        assert files or "pytest" in step.arguments
        assert all((ROOT / file).exists() for file in files)


def test_every_folder_of_slow_tests_is_a_step() -> None:
    paths = {word for step in prove.slow_tests() for word in step.arguments}
    for file in (ROOT / "tests").rglob("test_*.py"):
        if "gpu" not in file.parts:
            place = file if file.parent.name == "tests" else file.parent
            assert str(place.relative_to(ROOT)) in paths
