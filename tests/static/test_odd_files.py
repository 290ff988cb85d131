"""Files that no one would write by hand are read, or named as not read."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchproof.checking import source_reading, suspicions
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
    told: list[str] = []
    read = source_reading.read_target(parse("."), told.append)
    whole = source_reading.part(read, []).why + "".join(told)
    assert all(f"src_{name}.py" in whole for name in "abcde")


def test_many_findings_of_one_file_take_their_lines_at_once(tmp_path: Path) -> None:
    count = 4000
    functions = "".join(f"def f{i}(x):\n    return x\n" for i in range(count))
    path = tmp_path / "many.py"
    path.write_text(functions)
    blame.forget()
    begun = time.process_time()
    for number in range(count):
        lines, first = blame.around(str(path), 2 * number + 2)
        assert (len(lines), first) == (2, 2 * number + 1)
    assert time.process_time() - begun < 2  # each function asked for each: 8 s


@pytest.mark.slow
def test_an_interrupt_ends_the_processes_that_read(tmp_path: Path) -> None:
    branch = "if x.sum() > 0: x = x.view(-1) + x.mean().item()\n        "
    for number in range(81):  # a process is given 40 at a time: ten seconds and more
        (tmp_path / f"m{number}.py").write_text(MODULE.format(branch * 1500))
    code = "from torchproof.cli import main; raise SystemExit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check", str(tmp_path), "--effort", "static"],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(2)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, b"")
    assert time.monotonic() - begun < 4
