"""The programs in tests/rules: one file for each rule, one factory for each program.

`bad*` factories return what the rule finds, `good*` factories the same without the
pattern; other functions are only read. `# <- GB101` marks a line that reading suspects
and a run confirms, `# read: GB101` one that only reading reports, and `# run: GB101`
one that only a run reports (`# run: GB117<2.14`: with older versions of torch).

A program is the factory with the lines above it, up to the factory before; the last one
goes on to the end. `OPTIONS` has the options of a run by factory, and under `*` those
of all others.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from packaging.specifiers import SpecifierSet

from torchproof.checking.rules.rule import MESSAGE, PROSE
from torchproof.fixing.edits import applied
from torchproof.records import Finding

FOLDER = Path(__file__).resolve().parent / "rules"
_MARKS = re.compile(r"# (<-|read:|run:) ([^#]+)")
_MARK = re.compile(r"([A-Z]{2}\d{3})(.*)")


@dataclass(frozen=True)
class Program:
    path: Path
    factory: str

    @property
    def name(self) -> str:
        return f"{self.path.stem}-{self.factory}"

    @property
    def rule(self) -> str:
        return self.path.stem.partition("_")[0]

    @property
    def target(self) -> str:
        return f"{self.path}:{self.factory}"

    @property
    def options(self) -> Mapping[str, Any]:
        options = _read(self.path)[1]
        return options.get(self.factory, options.get("*", {}))

    @property
    def expected(self) -> set[tuple[str, int]]:
        """The codes and lines of all findings, with the installed torch."""
        first, last = _read(self.path)[0][self.factory]
        found = marked(self.path, "run:")
        return {each for each in found if first <= each[1] <= last}

    @property
    def text(self) -> str:
        """The lines of this program alone, without imports."""
        first, last = _read(self.path)[0][self.factory]
        lines = self.path.read_text().splitlines(keepends=True)[first - 1 : last]
        return "".join(line for line in lines if "import " not in line)


def marked(path: Path, own: str) -> set[tuple[str, int]]:
    """The codes and lines that `<-` marks in a file, and `read:` or `run:`."""
    found = set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for sign, marks in _MARKS.findall(line):
            for mark in marks.split(", ") if sign in ("<-", own) else ():
                code, versions = _MARK.fullmatch(mark.strip()).groups()  # type: ignore[union-attr]
                if SpecifierSet(versions).contains(torch.__version__.split("+")[0]):
                    found.add((code, number))
    return found


def repaired(path: Path, findings: Iterable[Finding]) -> str:
    """The text of a file with the edits that its findings offer."""
    remedies = [f.remedy for f in findings if f.remedy and f.remedy.kind == "edit"]
    changes = {each: None for remedy in remedies for each in remedy.replacements}
    return applied(path.read_text(), changes)


def too_long(findings: Iterable[Finding], *codes: str) -> list[str]:
    """The texts of findings, of these codes, that are longer than a user reads."""
    return [
        f"{finding.code} too long: {text}"
        for finding in findings
        if finding.code.startswith(codes or "")
        for text, most in zip(
            (finding.message, finding.cause, finding.fix),
            (MESSAGE, PROSE, PROSE),
            strict=True,
        )
        if len(text) > most or text.endswith("...")
    ]


def programs(pattern: str = "*") -> list[Program]:
    """All programs of the rules whose codes match."""
    paths = sorted(FOLDER.glob(f"{pattern}.py"))
    return [Program(path, name) for path in paths for name in _read(path)[0]]


@functools.cache
def _read(path: Path) -> tuple[dict[str, tuple[int, int]], dict[str, dict[str, Any]]]:
    """The lines of each program, and the options of runs, without an import."""
    lines: dict[str, tuple[int, int]] = {}
    options: dict[str, dict[str, Any]] = {}
    last, latest = 0, ""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="OPTIONS")]):
                options = ast.literal_eval(node.value)
            case ast.FunctionDef(name=name) if name.startswith(("bad", "good")):
                lines[name] = (last + 1, node.end_lineno or node.lineno)
                last, latest = node.end_lineno or node.lineno, name
    if latest:
        lines[latest] = lines[latest][0], tree.body[-1].end_lineno or last
    return lines, options
