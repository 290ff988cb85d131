"""docs/getting-started.md: its commands run in order, and lead to a running recipe."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "docs"))

import generate  # noqa: E402
import getting_started  # noqa: E402
import run_parts  # noqa: E402

from torchproof.records import store  # noqa: E402


def runs(folder: Path) -> list[dict[str, object]]:
    """Oldest first."""
    paths = (folder / ".torchproof" / "runs").glob("*/run.json")
    files = sorted(paths, key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_text()) for path in files]


def statuses(run: dict[str, object]) -> dict[str, str]:
    findings = run["findings"]
    assert isinstance(findings, list)
    return {finding["code"]: finding["status"] for finding in findings}


def assert_checks(folder: Path) -> None:
    """The first finds a break, the second finds that it is gone."""
    before, after = runs(folder)[:2]
    assert statuses(before)["GB101"] == "open"
    assert set(statuses(before)) == set(statuses(after))
    assert set(statuses(after).values()) == {"resolved"}
    assert (before["counts"]["graph_breaks"], after["counts"]["graph_breaks"]) == (1, 0)  # type: ignore[index]


@pytest.mark.slow
def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    steps = {step.name: step for step in getting_started.walk(tmp_path)}
    assert list(steps) == [
        "first check",
        "rule",
        "second check",
        "bench",
        "tune",
        "serve",
    ]
    # A machine that is busy may measure no gain: `tune` then recommends eager.
    allowed = {"first check": {1}, "tune": {0, 1}}
    for step in steps.values():
        assert step.code in allowed.get(step.name, {0}), step.stderr
        assert "Traceback" not in step.stderr
    assert_checks(tmp_path)
    page = generate.lasting(getting_started.PAGE.read_text())
    for name in ("first check", "second check"):
        shown = generate.lasting(getting_started.shown(steps[name].stdout))
        assert shown in page, "run `make docs`"
    _, _, bench, tune = runs(tmp_path)
    rows = bench["measurements"]
    assert isinstance(rows, list) and [row["strategy"] for row in rows] == [
        "eager",
        "full",
    ]
    recipe = tomllib.loads((tmp_path / "torchproof.toml").read_text())
    assert recipe["run"] == tune["id"]
    served = steps["serve"].stdout
    assert "torch.Size([2048])" in served
    assert f"Ranker: {recipe['strategy']} (recipe torchproof.toml)" in served


def test_saved_runs_are_those_of_the_page() -> None:
    saved = getting_started.SAVED
    commands = [
        run_parts.command_of(store.read(saved / f"{name}.json"))
        for name in getting_started.MEASURING
    ]
    shown = re.findall(
        r"^torchproof (?:bench|tune) .*$", getting_started.PAGE.read_text(), re.M
    )
    assert commands == shown
    recipe = tomllib.loads((saved / "torchproof.toml").read_text())
    assert recipe["gain"]["low"] > 1, "the page ends with a gain"
