"""Files that no one would write by hand are read, or named as not read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchproof.checking import source_reading, suspicions
from torchproof.cli import main
from torchproof.records import blame
from torchproof.targets.target import parse

MODULE = """import torch
class M(torch.nn.Module):
    def forward(self, x):
        {}
        return x
"""
READ = MODULE.format("y = x.item()")


def found(path: Path) -> list[tuple[str, int | None]]:
    return [
        (s.finding.code, s.finding.line) for s in suspicions.read([path]).suspicions
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + READ.encode(),
        b"# coding: latin-1\n# \xe9\n" + READ.encode(),
        READ.encode().rstrip(),
        READ.replace("    ", "\t").encode(),
        READ.replace("\n", "\r\n").encode(),
        READ.replace("import", "\f\nimport").encode(),
    ],
    ids=["mark", "latin-1", "no end of line", "tabs", "crlf", "form feed"],
)
def test_however_it_is_encoded(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.py").write_bytes(content)
    [(code, line)] = found(tmp_path / "m.py")
    lines = (tmp_path / "m.py").read_text(encoding="latin-1").split("\n")
    assert code == "GB101" and "item" in lines[(line or 0) - 1]


@pytest.fixture
def usual_depth() -> Iterator[None]:
    """As in a process that only reads; other tests load what raises the limit."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("usual_depth")
@pytest.mark.parametrize("form", ["x = {}x", "if k == 0: x = x\n{}"])
def test_what_is_nested_too_deeply_is_named_and_the_rest_is_read(
    tmp_path: Path, form: str
) -> None:
    branches = "".join(f"        elif k == {i}: x = x + {i}\n" for i in range(900))
    deep = form.format(branches if "if" in form else "x + " * 1500)
    other = READ.replace("class M", "class Other").replace("import torch\n", "")
    (tmp_path / "deep.py").write_text(MODULE.format(deep) + other)
    for read in (
        suspicions.read([tmp_path]),
        suspicions.read(
            [],
            roots={str(tmp_path / "deep.py"): ["M.forward", "Other.forward"]},
        ),
    ):
        [problem] = read.problems
        assert "deep.py" in problem
        assert "nested" in problem.replace(str(tmp_path), "")
        assert [s.finding.function for s in read.suspicions] == ["Other.forward"]


def test_every_file_that_is_not_understood_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abcde":
        Path(f"src_{name}.py").write_text("import torch\ndef broken(:")
    Path("fine.py").write_text(READ)
    notes: list[str] = []
    read = source_reading.read_target(parse("."), notes.append)
    whole = source_reading.part(read, []).why + "".join(notes)
    assert all(f"src_{name}.py" in whole for name in "abcde")


# -- a file that cannot be decoded or parsed -------------------------------------------

LINE = b"# -*- coding: %s -*-\n"
CODINGS = "no-such rot13 utf-16 zlib"  # unknown, of texts, of two bytes, of bytes
ODD: dict[str, bytes] = {
    **{name: LINE % name.encode() + READ.encode() for name in CODINGS.split()},
    "a mark and another coding": b"\xef\xbb\xbf" + LINE % b"latin-1" + READ.encode(),
    "bytes that are no UTF-8": READ.encode() + b"# \xff\xfe\n",
    "NUL": READ.encode() + b"\x00\n",
    "UTF-16 without a line": READ.encode("utf-16") + b"torch",
    "not ASCII as it says": LINE % b"ascii" + READ.encode() + b"# \xc3\xa4\n",
    "huge": READ.encode() + b"#" * (9 << 20),
    "no Python": READ.encode() + b"def broken(:\n",
    "deep": READ.encode() + b"x = " + b"-" * 100_000 + b"1\n",
    "deep brackets": READ.encode() + b"x = " + b"(" * 5_000 + b"\n",
    "deep attributes": READ.encode() + b"x = y" + b".a" * 100_000 + b"\n",
}


@pytest.mark.parametrize("name", ODD)
def test_one_odd_file_in_a_folder(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pkg").mkdir()
    Path("pkg/odd.py").write_bytes(ODD[name])
    Path("pkg/sound.py").write_text(READ)
    check = ["check", "pkg", "--effort", "static", "-q", "--format", "json"]
    assert main(check) in (0, 1)
    run = json.loads(capsys.readouterr().out)
    assert [f["code"] for f in run["findings"] if "sound" in f["file"]] == ["GB101"]
    found = [f for f in run["findings"] if "odd" in f["file"]]
    assert found or "pkg/odd.py" in run["parts"]["static"]["why"]
    if not found:
        assert main(["check", "pkg/odd.py", "--effort", "static", "-q"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1) and "odd.py" in err


def test_things_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "sound.py").write_text(READ)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "up").symlink_to("..")
    read = suspicions.read([tmp_path])
    assert [s.finding.code for s in read.suspicions] == ["GB101"]
    for name in ("pipe.py", "gone.py", "loop.py"):
        assert sum(name in problem for problem in read.problems) == 1
    assert len(read.problems) == 3


def test_a_defect_of_reading_ends_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text(READ)
    (tmp_path / "b.py").write_text(READ)
    plain = suspicions.Program.roots

    def broken(self: suspicions.Program, source: suspicions.Source) -> object:
        if source.path.name == "a.py":
            raise TypeError("a defect")
        return plain(self, source)

    monkeypatch.setattr(suspicions.Program, "roots", broken)
    read = suspicions.read([tmp_path])
    (crash,) = read.crashes
    assert len(read.suspicions) == 1 and str(tmp_path / "a.py") in crash


def test_lines_of_what_cannot_be_read_are_none(tmp_path: Path) -> None:
    """A name in a trace or a stack may be that of anything."""
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "odd.py").write_bytes(ODD["rot13"])
    (tmp_path / "fine.py").write_text("a\nb\n")
    assert blame.lines_of(str(tmp_path / "pipe.py")) == []
    assert blame.lines_of(str(tmp_path / "odd.py")) == []
    assert blame.lines_of(str(tmp_path / "fine.py")) == ["a\n", "b\n"]
    assert blame.source_line(str(tmp_path / "fine.py"), 2) == "b"
    assert blame.source_line(str(tmp_path / "fine.py"), 9) == ""
