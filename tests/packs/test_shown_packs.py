"""`torchproof show PACK` says what a pack is and holds, and runs nothing of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_packs
import pytest
from pack_keys import KEY, OTHER_PUBLIC, PUBLIC

from torchproof import packs
from torchproof.packs.inspection import inspect
from torchproof.report import pack as report

ENVIRONMENT = {"torch": "2.13.0", "python": "3.11.7", "gpu": None, "variables": {}}
SYMPTOM = {"headline": "`.item()` splits the graph", "ids": ["GB0170"], "kind": "x"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shown")
    with packs.archive(root / "a.tar.gz") as stage:
        made_packs.fill(stage)
        details = {"symptom": SYMPTOM, "form": "graph", "rows": list(range(99))}
        stage.seal(
            packs.Manifest(
                "repro",
                "a",
                "0.1.0",
                made="2026-01-02T03:04:05+00:00",
                target="a.py:make",
                command="torchproof pack a.py:make --for repro",
                environment=ENVIRONMENT,
                details=details,
            ),
            {"repro.py": "the program"},
        )
    with packs.folder(root / "d") as stage:
        made_packs.fill(stage)
        manifest = packs.Manifest(
            "deploy", "d", "0.1.0", details={"artifact": "caches"}
        )
        stage.seal(manifest, key=KEY)
    return root


def test_a_repro_pack_as_text_markdown_and_json(
    root: Path, answer: Any, snapshot: Callable[[str, str], None]
) -> None:
    os.chdir(root)  # until the test ends
    code, out, err = answer("show", "a.tar.gz")
    assert (code, err) == (0, "")
    snapshot("packs/repro.txt", out)
    found = inspect(Path("a.tar.gz"))
    snapshot("packs/repro.md", report.render(found, "md"))
    shown = json.loads(report.render(found, "json"))
    assert shown["intact"] is True and shown["signature"] == "none"
    assert shown["manifest"]["details"]["rows"] == list(range(99))
    assert shown["manifest"]["environment"]["gpu"] is None


def test_a_deploy_pack_says_how_it_is_loaded_and_whether(
    root: Path, tmp_path: Path
) -> None:
    text = report.render(inspect(root / "d"), "text")
    assert f"model = torchproof.load('{root / 'd'}', model)" in text
    found = inspect(root / "d")
    assert (found.signature, found.refusal) == ("not checked", None)
    assert "TORCHPROOF_PACK_KEY" in dict(report.facts(found))["signature"]
    ours = inspect(root / "d", PUBLIC)
    assert (ours.signature, ours.refusal) == ("fits", None)
    other = inspect(root / "d", OTHER_PUBLIC)
    assert other.signature == "does not fit" and other.refusal
    shown = [dict(report.facts(it)) for it in (found, ours, other)]
    assert len({rows["signature"] for rows in shown}) == 3
    assert shown[0]["trust"] == shown[1]["trust"]
    assert other.refusal in shown[2]["trust"]
    assert other.refusal in report.render(other, "text", width=200)


def test_a_damaged_pack_is_exit_1_and_is_not_to_be_run(
    tmp_path: Path, answer: Any
) -> None:
    at = made_packs.folder(tmp_path / "a")
    (at / "repro.py").write_text("print(2)\n")
    code, out, _ = answer("show", "a")
    assert code == 1 and "NOT INTACT (1 file)" in out
    assert "python -I repro.py" not in out
    (why,) = inspect(at).damage.values()
    assert f"DAMAGED: {why}" in " ".join(out.split())


def test_texts_of_others_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    with packs.folder(tmp_path / "a") as stage:
        (stage.path / "x").write_text("")
        evil = "\x1b]0;owned\x07\n\u202eevil"
        details = {"evil\x1b[2J": evil, "deep": {"x": [evil]}}
        manifest = packs.Manifest(
            "repro", evil, evil, target=evil, environment=details, details=details
        )
        stage.seal(manifest, {"x": evil})
    found = inspect(tmp_path / "a")
    for format in ("text", "md", "json"):
        text = report.render(found, format)
        assert not set("\x1b\x07\u202e") & set(text), format
