"""Advice, followed to the letter, cures its finding, and changes no output.

Advice that does not apply to the source at hand is not given.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import rules
from torchproof.checking.rules.advice import NO_EDIT, Piece, assembled
from torchproof.checking.static.attribute_facts import attribute_facts
from torchproof.checking.static.line_facts import facts_at, marks_in, sets
from torchproof.records import blame
from torchproof.records.events import Observation
from torchproof.records.run import Finding

HEAD = "import torch\nfrom torch import nn\n"
TAIL = "\nopen(__file__ + '.out', 'w').write(repr(out))\n"
COMPILED = '@torch.compile(backend="eager")\n'


class Program:
    """A script that leaves its outputs beside it."""

    def __init__(self, folder: Path, text: str) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "program.py"
        self.text = HEAD + textwrap.dedent(text) + TAIL

    def write(self) -> str:
        self.path.write_text(self.text)
        blame.forget()
        return str(self.path)

    def findings(self, observation: Observation) -> tuple[list[Finding], str]:
        saved = Path(f"{self.path}.out")
        return rules.check(observation), saved.read_text() if saved.exists() else ""

    def follow(self, fix: str) -> None:
        """Makes the first edit of an advice, as its words say."""
        lines = self.text.splitlines()
        for number, code in re.findall(r"mark at \S+:(\d+) \(`(.+?)`\)", fix):
            at = int(number) - 1
            assert ast.dump(ast.parse(lines[at].strip())) == ast.dump(ast.parse(code))
            lines[at] = ""
        edited = "\n".join(lines) + "\n"
        assert edited != self.text, fix
        self.text = edited


# Each program, and the codes that following the advice removes.
CURED = {
    "an unbacked size that the code decides by": (
        "GB102",
        """
        from torch._dynamo.decorators import mark_unbacked
        @torch.compile(backend="eager")
        def f(x):
            if x.shape[0] > 4:
                return x * 2
            return x + 1
        for n in (6, 7, 8):
            x = torch.ones(n, 8)
            mark_unbacked(x, 0)
            out = f(x)
        """,
    ),
}


def test_advice_cures_and_changes_no_output(tmp_path: Path, observe_all: Any) -> None:
    programs = {
        name: Program(tmp_path / str(number), text)
        for number, (name, (_, text)) in enumerate(CURED.items())
    }

    def check_all() -> dict[str, tuple[list[Finding], str]]:
        observed = observe_all([(each.write(), {}) for each in programs.values()])
        return {
            name: programs[name].findings(observation)
            for name, observation in zip(programs, observed, strict=True)
        }

    before = check_all()
    for name, (findings, _) in before.items():
        [finding] = [f for f in findings if f.code == CURED[name][0]]
        programs[name].follow(finding.fix)
    for name, (findings, outputs) in check_all().items():
        codes = {f.code for f in findings}
        assert outputs and outputs == before[name][1], name
        assert CURED[name][0] not in codes, name
        assert codes <= {f.code for f in before[name][0]} | {"RC201"}, name


HELPER = """
import json
def options(text, y):
    return json.loads(text)["k"] * y
@torch.compile(backend="eager")
def f(x, text):
    return {} * x
for i in range(2):
    out = f(torch.ones(4), '{{"k": 2}}')
"""
SCALARS = """
{}
@torch.compile(backend="eager"{})
def f(x):
    y = x.sin()
    with torch.no_grad():
        for value in x.tolist():
            y = y + value
    return y
for i in range(2):
    try:
        out = f(torch.ones(4))
    except Exception:
        out = None
"""
CAPTURE = "torch._dynamo.config.capture_scalar_outputs"
SET = "setattr(torch._dynamo.config, 'capture_scalar_outputs', True)"
BEFORE = "before the compiled call"
# Each program with a code, and what the advice of its findings says and does not say.
ADVICE: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "code of the function": (
        HELPER.format('json.loads(text)["k"]'),
        "GB105",
        (BEFORE,),
        (),
    ),
    "code of a helper": (HELPER.format("options(text, x)"), "GB105", (), (BEFORE,)),
    "a setting": (SCALARS.format("", ""), "GB101", (CAPTURE,), ()),
    "a setting in force": (
        SCALARS.format(SET, ""),
        "GB101",
        (),
        (CAPTURE, "fullgraph"),
    ),
    "an argument in force": (
        SCALARS.format("", ", fullgraph=True"),
        "CE704",
        ("fullgraph",),
        (),
    ),
}


def test_advice_that_does_not_apply_is_not_given(
    tmp_path: Path, observe_all: Any
) -> None:
    programs = [
        Program(tmp_path / str(number), text)
        for number, (text, *_) in enumerate(ADVICE.values())
    ]
    observed = observe_all([(each.write(), {}) for each in programs])
    for program, seen, name in zip(programs, observed, ADVICE, strict=True):
        _, code, present, absent = ADVICE[name]
        findings = program.findings(seen)[0]
        fixes = [f.fix for f in findings if f.code.startswith(code)]
        assert fixes, name
        for fix in fixes:
            assert all(words in fix for words in present), (name, fix)
            assert not any(words in fix for words in absent), (name, fix)


# -- the facts -------------------------------------------------------------------------

LINES = """\
def f(self, x, table):
    y = x * 2
    print(y)
    with lock:
        z = sorted(table)
    for row in table:
        try:
            y = row[x]
        except KeyError:
            log(y)
    if torch.equal(x, table):
        x += 1
    return sorted(y)
"""


def test_facts_about_lines(tmp_path: Path) -> None:
    file = tmp_path / "lines.py"
    file.write_text(LINES)
    at = {n: facts_at(str(file), n) for n in range(1, LINES.count("\n") + 1)}
    assert [n for n in at if at[n].is_unused] == [3, 10]
    assert [n for n in at if at[n].is_returned] == [13]
    assert {n: at[n].with_line for n in at if at[n].with_line} == {4: 4, 5: 4}
    assert {n for n in at if at[n].loop_line} == {6, 7, 8, 9, 10}
    assert {n: at[n].try_line for n in at if at[n].try_line} == {8: 7}
    assert {n for n in at if at[n].from_arguments} >= {5, 11}
    assert not at[3].from_arguments and not at[13].from_arguments
    assert facts_at(str(file), 11, "torch.equal(x, table)").is_test
    assert not facts_at(str(tmp_path / "absent.py"), 3).is_readable


def test_what_a_file_has_already(tmp_path: Path) -> None:
    file = tmp_path / "settings.py"
    file.write_text(
        "import torch._dynamo.config as config\n"
        "torch._dynamo.config.capture_scalar_outputs = True\n"
        "with config.patch(allow_rnn=True): pass\n"
        "torch._dynamo.config.reorderable_logging_functions.add(print)\n"
        "torch._dynamo.mark_dynamic(batch['x'], [0, 1])\n"
    )
    config = "torch._dynamo.config."
    assert sets(str(file), f"{config}capture_scalar_outputs", "True")
    assert not sets(str(file), f"{config}capture_scalar_outputs", "False")
    assert sets(str(file), f"{config}allow_rnn", "True")
    assert sets(str(file), f"{config}reorderable_logging_functions", "print")
    [mark] = marks_in(str(file))
    assert (mark.line, mark.tensor, mark.dimensions) == (5, 'batch["x"]', (0, 1))


CLASS = """\
class Net(Base):
    def __init__(self, n: int = 3):
        {first}
    def forward(self, x, table):
        {use}
"""


@pytest.mark.parametrize(
    ("use", "python"),
    [
        ("return x + self.n", None),
        ("self.n += 1; return self.lin(x * self.n) * 2", None),
        ("y = x - self.n; return y.view(4)", None),
        ("p = torch.arange(x.shape[1]) + self.n; return self.lin(p % 8)", None),
        ("k = self.n + x.shape[1]; return table[k]", "table[k]"),
        ("return table[self.n]", "table[self.n]"),
        ("return x[:, : self.n]", "x[:, :self.n]"),
        ("k = self.n + 1; return table[k]", "table[k]"),
        ("return [x for i in range(self.n)]", "range(self.n)"),
        ("return f'{self.n}'", "self.n"),
        ("if self.n > 3: return x", "self.n > 3"),
        ("return helper(x, self.n)", "helper(x, self.n)"),
        ("self.n = other(self.n); return x", "self.n = other(self.n)"),
    ],
)
def test_uses_of_a_number(use: str, python: str | None, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(CLASS.format(first="self.n = n", use=use))
    found = attribute_facts("n", [str(file)], line=5)
    assert found.first is not None and found.first.kind is int
    assert found.first.value == "n"
    code = found.python_use.code if found.python_use else None
    assert (python or "") in (code or "") and bool(code) == bool(python)


def test_a_value_that_the_source_does_not_show_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    for first in ("pass", "self.n = 1; self.n = 2"):
        file.write_text(CLASS.format(first=first, use="return x + self.n"))
        blame.forget()
        assert attribute_facts("n", [str(file)], line=5).first is None


def test_pieces_that_do_not_apply_are_left_out() -> None:
    assert assembled(Piece("a"), Piece("b", when=False), Piece("c")) == "a; or c"
    assert assembled(Piece("a", when=False)) == NO_EDIT
