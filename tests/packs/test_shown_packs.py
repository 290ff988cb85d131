"""`torchproof show PACK` says what a pack is and holds, and runs nothing of it."""

from __future__ import annotations

import json
from pathlib import Path

import made_packs
import pytest
from commands import torchproof
from made_packs import KEY

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
        told = packs.Manifest("deploy", "d", "0.1.0", details={"artifact": "caches"})
        stage.seal(told, key=KEY)
    return root


SHOWN = """\
a.tar.gz: a repro pack, 2.94 KiB in 3 files, intact.

is            a failure that anyone can run with torch alone
symptom       `.item()` splits the graph (GB0170)
made          2026-01-02 03:04:05 UTC, torchproof 0.1.0
target        a.py:make
command       torchproof pack a.py:make --for repro
environment   torch 2.13.0, python 3.11.7
form          graph
rows          99 of them (--format json has all)
signature     none

Files:
  empty                     0 B
  logs/torch/out.txt   2.93 KiB
  repro.py                  9 B  the program

To run it (it exits with 1 where it fails as stated):
    tar xzf a.tar.gz
    cd a
    python -I repro.py
"""


def test_a_repro_pack_as_text(root: Path) -> None:
    done = torchproof("show", "a.tar.gz", cwd=root)
    assert (done.returncode, done.stdout, done.stderr) == (0, SHOWN, "")


def test_as_json_and_markdown(root: Path) -> None:
    found = inspect(root / "a.tar.gz")
    told = json.loads(report.render(found, "json"))
    assert told["intact"] is True and told["signature"] == "none"
    assert told["manifest"]["details"]["rows"] == list(range(99))
    assert told["manifest"]["environment"]["gpu"] is None
    page = report.render(found, "md")
    assert "| `repro.py` | 9 B | the program |" in page
    assert "```bash\ntar xzf" in page


def test_a_deploy_pack_says_how_it_is_loaded_and_whether(
    root: Path, tmp_path: Path
) -> None:
    text = report.render(inspect(root / "d"), "text")
    assert f"model = torchproof.load('{root / 'd'}', model)" in text
    assert "trust         accepted here" in text
    assert "there is one, not checked: TORCHPROOF_PACK_KEY names no key" in text
    assert "made with your key" in report.render(inspect(root / "d", KEY), "text")
    other = report.render(inspect(root / "d", KEY[::-1]), "text", width=200)
    assert "made with another key than yours" in other
    assert "trust         refused: its signature does not fit the key" in other


def test_a_damaged_pack_is_exit_1_and_is_not_to_be_run(tmp_path: Path) -> None:
    at = made_packs.folder(tmp_path / "a")
    (at / "repro.py").write_text("print(2)\n")
    done = torchproof("show", "a", cwd=tmp_path)
    assert done.returncode == 1
    assert "NOT INTACT (1 file)" in done.stdout and "To run it" not in done.stdout
    assert "DAMAGED: repro.py was changed" in " ".join(done.stdout.split())
    assert done.stdout.endswith("run nothing of it, ask for it again.\n")


def test_what_cannot_be_read_is_one_line_and_exit_2(tmp_path: Path) -> None:
    at = made_packs.archive(tmp_path / "a.tar.gz")
    at.write_bytes(at.read_bytes()[:-20])
    done = torchproof("show", "a.tar.gz", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    said = "torchproof: error: a.tar.gz is refused: it is cut off: its end is missing\n"
    assert done.stderr == said
    done = torchproof("show", "a.tar.gz", "--format", "html", cwd=tmp_path)
    assert "a pack is shown as text, json, md, not as html" in done.stderr


def test_texts_of_others_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    with packs.folder(tmp_path / "a") as stage:
        (stage.path / "x").write_text("")
        evil = "\x1b]0;owned\x07\n\u202eevil"
        told = {"evil\x1b[2J": evil, "deep": {"x": [evil]}}
        manifest = packs.Manifest(
            "repro", evil, evil, target=evil, environment=told, details=told
        )
        stage.seal(manifest, {"x": evil})
    found = inspect(tmp_path / "a")
    for format in ("text", "md", "json"):
        text = report.render(found, format)
        assert not set("\x1b\x07\u202e") & set(text), format
