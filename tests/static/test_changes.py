"""Edits of whole lines that rules offer, and where they offer none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from torchproof.checking.rules import recompile_marks
from torchproof.checking.static import changes
from torchproof.fixing.edits import applied
from torchproof.records import Argument, Call, Remedy, blame


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


def after(file: Path, remedy: Remedy | None) -> str | None:
    return applied(file.read_text(), remedy.replacements) if remedy else None


def written(file: Path, text: str, newline: str = "\n") -> str:
    file.write_text(text, newline=newline)
    blame.forget()
    return str(file)


@pytest.mark.parametrize(
    ("statement", "newline", "offered"),
    [
        ("out = step(x)", "\n", True),
        ("out = step(x if a else b)", "\n", True),
        ("out = step(  # now\n    x)", "\n", True),
        ("out = step(x)", "\r\n", False),
        ("out = step(x) if x is not None else x", "\n", False),
        ("out = x is not None and step(x)", "\n", False),
        ("out = [step(x) for x in xs]", "\n", False),
        ("a = 1; step(x)", "\n", False),
        ("step(x); a = 1", "\n", False),
    ],
)
def test_a_mark_goes_above_a_call_that_is_made(
    statement: str, newline: str, offered: bool, file: Path
) -> None:
    name = written(file, f"import torch\n{statement}\n", newline)
    call = Call(0, name, 2, "f", None, 1, {}, {})
    size = recompile_marks.VaryingSize(Argument("x", fixed=True), 0)
    edit = recompile_marks._before_call(recompile_marks._Site(call, (size,)))
    mark = "torch._dynamo.maybe_mark_dynamic(x, 0)"
    expected = f"import torch\n{mark}\n{statement}\n" if offered else None
    assert after(file, edit) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f()\ng()  # why\n", "f()\n"),
        (
            "if a:\n    g()  # why\nelse:\n    f()\n",
            "if a:\n    pass  # why\nelse:\n    f()\n",
        ),
        ("f(); g()\n", None),
    ],
)
def test_a_statement_that_is_removed(
    text: str, expected: str | None, file: Path
) -> None:
    source = changes.source_of(written(file, text))
    assert source is not None
    [node] = [n for n in source.of(ast.Expr) if ast.unparse(n) == "g()"]
    assert after(file, changes.removed("", source, node)) == expected


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("f(g,  # the net\n  mode=m)\n", False),
        ("f(g, mode=m)  # why\n", True),
        ("f(g,\n  mode=m)\n", True),
    ],
)
def test_no_edit_drops_a_comment(text: str, offered: bool, file: Path) -> None:
    source = changes.source_of(written(file, text))
    assert source is not None
    [call] = source.of(ast.Call)
    for edit in (
        changes.without_keyword("", source, call, "mode"),
        changes.edit("", source, {call: "f(g)"}),
    ):
        assert (after(file, edit) or "").startswith("f(g)") == offered
