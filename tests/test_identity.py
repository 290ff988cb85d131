"""A finding's identity: the same after edits elsewhere, another after its own."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import suspicions
from torchproof.checking.rules import keys
from torchproof.records import Frame, blame
from torchproof.records.run import Finding

FOUND = Finding(
    code="RC201",
    kind="recompile",
    severity="medium",
    message="size 0 of `x` changed (4, 6)",
    cause="size 0 of `x` was compiled in as 4",
    fix="mark it",
    file="model.py",
    line=7,
    function="Net.forward",
)


def test_identity_has_code_function_and_key_but_no_lines_counts_or_texts() -> None:
    same: dict[str, Any] = {"line": 70, "count": 3, "steps": 4, "cost_us": 1.5}
    same |= {"message": "m", "cause": "c", "fix": "f", "source": "s"}
    moved = replace(FOUND, kind="hazard", severity="low", **same)
    assert moved.identity == FOUND.identity
    for name, value in {"code": "R", "function": "g", "key": "size 1"}.items():
        assert replace(FOUND, **{name: value}).identity != FOUND.identity  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a/model.py", "b/model.py", False),
        ("/home/a/model.py", "/root/model.py", True),
        ("In [2]", "In [7]", True),  # a cell that ran again
        ("/v/lib/python3.11/site-packages/p/m.py", "/w/site-packages/p/m.py", True),
        ("/w/site-packages/p/m.py", "/w/site-packages/q/m.py", False),
        (
            "src/torchproof/targets/workloads/gpt.py",
            "/x/torchproof/targets/workloads/gpt.py",
            True,
        ),
    ],
)
def test_file_is_named_as_on_every_machine(one: str, other: str, same: bool) -> None:
    found = [replace(FOUND, file=file).identity for file in (one, other)]
    assert (found[0] == found[1]) is same


def test_record_without_a_key_keeps_its_identity() -> None:
    plain = {n: v for n, v in FOUND.to_json().items() if n != "key"}
    older = Finding.from_json({**plain, "identity": "0123456789abcdef"})
    assert older.identity == "0123456789abcdef"
    assert Finding.from_json(older.to_json()) == older
    assert Finding.from_json(FOUND.to_json()).identity == FOUND.identity


# -- the same program, written in another way ------------------------------------------

PROGRAM = """
import torch

LIMIT = 3


class Net(torch.nn.Module):
    def forward(self, x, mask):
        h = self.proj(x)
        print("start", h.shape)
        if h.sum() > 0:
            h = h + 1
        val = h.max().item()
        low = h.min().item()
        rows = torch.nonzero(mask)
        for layer in self.layers:
            h = layer(h)
        print("end", h.shape)
        while h.mean() > LIMIT:
            h = h / 2
        val = h.max().item()
        return [h * v for v in rows.tolist()], val, low


def helper(t):
    import numpy as np
    s = t.std().item()
    if t.min() < 0:
        return np.float32(s)
    return torch.equal(t, t.t()) and s
"""


def _renamed(text: str) -> str:
    names = {"h": "hidden", "val": "peak", "low": "n", "rows": "where", "x": "inputs"}
    names |= {"layer": "block", "mask": "keep", "t": "tensor", "s": "spread", "v": "w"}
    for old, new in names.items():
        text = re.sub(rf'(?<![\w."]){old}(?![\w"(])', new, text)
    return re.sub(r"\blayer\(", "block(", text)


def _split(text: str) -> str:
    """Calls over several lines, in brackets."""
    return re.sub(r"= (\w+)(\.\w+\(\).item\(\))", r"= (\n  \1\n  \2\n )", text)


MUTATIONS: dict[str, Callable[[str], str]] = {
    "statements before": lambda text: text.replace(
        "        h = self.proj(x)\n", "        k = 7\n        h = self.proj(x)\n"
    ),
    "other constants": lambda text: re.sub(r"(?<!\w)[0-3]\b", "77", text).replace(
        "start", "another text"
    ),
    "moved and renamed": lambda text: _split("import math\n\n" + _renamed(text)),
}


def _suspected(text: str, path: Path) -> list[Finding]:
    path.write_text(text)
    linecache.checkcache()
    blame.forget()
    reading = suspicions.read([path], roots={str(path): ["Net.forward", "helper"]})
    return [each.finding for each in reading.suspicions]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_edited_program_has_the_same_findings(mutation: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    text = MUTATIONS[mutation](PROGRAM)
    assert text != PROGRAM
    before, after = _suspected(PROGRAM, path), _suspected(text, path)
    assert len(before) >= 7
    assert {f.identity for f in after} == {f.identity for f in before}
    assert [f.code for f in after] == [f.code for f in before]
    assert len({(f.identity, f.line) for f in before}) == len(
        {f.identity for f in before}
    )


def test_added_line_is_another_finding(tmp_path: Path) -> None:
    before = {f.identity for f in _suspected(PROGRAM, tmp_path / "m.py")}
    for old, new in (
        ('print("end", h.shape)', 'print("end", h.shape)\n        x.sum().item()'),
        ("torch.nonzero(mask)", "torch.unique(mask)"),
        ("self.layers:", "self.layers:\n            print(layer)"),
        ("h = h / 2", 'print("end", h.shape)'),  # of two alike, both count
    ):
        text = PROGRAM.replace(old, new)
        after = {f.identity for f in _suspected(text, tmp_path / "m.py")}
        assert len(after - before) == 1, new


@pytest.mark.parametrize(
    ("line", "columns", "key"),
    [
        (8, None, "self.proj(_)"),
        (10, (3, 14), "Compare(_.sum(), Gt, #)"),
        (12, (6, 20), "_.max().item()"),
        (20, (6, 20), "_.max().item() #2"),
        (16, (4, 12), "_(_)"),
        (7, None, "def"),
    ],
)
def test_key_of_a_line_in_a_stack(
    line: int, columns: tuple[int, int] | None, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.py"
    path.write_text(PROGRAM.lstrip("\n"))
    blame.forget()
    code = path.read_text().splitlines()[line - 1].strip()
    frame = Frame(str(path), line, "forward", code, columns)
    assert keys.of_frame(frame) == key


@pytest.mark.parametrize(
    ("source", "subject"),
    [
        ("x", "argument 1"),
        ("mask[0].data", "argument 2[0].data"),
        ("self.step", "self.step"),
        ("h", "_"),
        ("LIMIT", "_"),
        ("torch.backends", "torch.backends"),
    ],
)
def test_guard_names_parameters_by_position(
    source: str, subject: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.py"
    path.write_text(PROGRAM)
    blame.forget()
    assert keys.of_name(source, Frame(str(path), 8, "forward")) == subject
