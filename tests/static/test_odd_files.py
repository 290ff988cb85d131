"""Files that no one would write by hand are read, or named as not read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchproof.checking import source_reading, suspicions
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
    told: list[str] = []
    read = source_reading.read_target(parse("."), told.append)
    whole = source_reading.part(read, []).why + "".join(told)
    assert all(f"src_{name}.py" in whole for name in "abcde")
