"""A candidate, its symptom and the judge of it as one file that needs torch alone.

Comes in: source that defines `make`. Goes out: the text of a `repro.py`, read top down:
what fails, what makes it fail, how the failure is recognised.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchproof.packs.repro.candidate import Candidate, Settings
from torchproof.packs.repro.failure_signature import Symptom

JUDGES: tuple[str, ...] = (
    *("breaks", "recompiles", "errors", "no_ops", "answers", "hang"),
    *("slowdown", "compile_time", "memory", "skips", "lifetimes", "syncs"),
)

_FOLDER = Path(__file__).parent / "oracles"
_WIDTH = 88
_BEFORE = "before_call"
_SHARED = ("error_text", "prelude")
_USAGE = """\
Run it with `python repro.py`; it needs torch alone. Its last line is the verdict:
    exit code 1  FAILS AS STATED
    exit code 0  DOES NOT FAIL
    exit code 3  FAILS IN ANOTHER WAY"""


def repro_text(
    candidate: Candidate, symptom: Symptom, settings: Settings, header: str = ""
) -> str:
    """The whole of `repro.py`; `header` is put below the headline."""
    body, futures = _without_futures(candidate.source)
    taken = _names(body)
    before = _BEFORE if _BEFORE in taken else "None"
    entry = "recognise"
    while entry in taken:
        entry += "_"
    sections = (
        _docstring(symptom.headline, header),
        futures,
        _rule("the program"),
        body.strip("\n"),
        _rule("how its failure is recognised"),
        f"def {entry}(make, before_call=None):\n"
        + textwrap.indent(_recognising(symptom, settings), "    "),
        f'if __name__ == "__main__":\n    {entry}(make, {before})',
    )
    return "\n\n".join(part for part in sections if part) + "\n"


def _recognising(symptom: Symptom, settings: Settings) -> str:
    """The body of a function: a judge's names never meet those of the program."""
    imports, bodies = _judge(symptom.judge)
    return "\n\n".join(
        (
            "\n".join(imports),
            f"EXPECTED = {_literal(symptom.expected)}\n"
            f"SETTINGS = {_literal(settings.to_json())}",
            *(re.sub(r"\n\n\n+", "\n\n", body) for body in bodies),
            "conclude(judge(make, SETTINGS, EXPECTED, before_call))",
        )
    )


def _docstring(headline: str, header: str) -> str:
    paragraphs = [textwrap.fill(headline, _WIDTH), header.strip("\n"), _USAGE]
    text = "\n\n".join(part for part in paragraphs if part)
    return '"""' + text.replace("\\", "\\\\").replace('"""', "'''") + '\n"""'


def _rule(title: str) -> str:
    return f"# -- {title} ".ljust(_WIDTH, "-")


def _literal(plain: Mapping[str, Any]) -> str:
    """A mapping as Python writes it, one line a key."""
    lines = [f"    {key!r}: {value!r},\n" for key, value in plain.items()]
    return "{\n" + "".join(lines) + "}" if lines else "{}"


def _without_futures(source: str) -> tuple[str, str]:
    """The program, and what of it must stand at the top of a file."""
    lines, features = source.splitlines(), set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            features |= {alias.name for alias in node.names}
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    ahead = f"from __future__ import {', '.join(sorted(features))}" if features else ""
    return "\n".join(lines), ahead


def _judge(name: str) -> tuple[list[str], list[str]]:
    """What a judge imports, and the sources that it is made of, each once."""
    assert name in JUDGES, name
    imports: dict[str, None] = {}
    own = _source(name)
    parts = [part for part in _SHARED if f"oracles.{part} import" in own]
    bodies = [_body(_source(part), imports) for part in (*parts, name)]
    return sorted(imports, key=lambda line: (line == "import torch", line)), bodies


def _source(name: str) -> str:
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")


def _body(source: str, imports: dict[str, None]) -> str:
    """A judge's file without its docstring and imports, which go to `imports`."""
    lines = source.splitlines()
    begin = 0
    for node in ast.parse(source).body:
        documents = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not documents and not isinstance(node, ast.Import | ast.ImportFrom):
            break
        begin = node.end_lineno or node.lineno
        ours = isinstance(node, ast.ImportFrom) and (
            node.module == "__future__" or (node.module or "").startswith("torchproof")
        )
        if not documents and not ours:
            imports[ast.unparse(node)] = None
    return "\n".join(lines[begin:]).strip("\n")


def _names(source: str) -> set[str]:
    """Every name that a program reads or binds, at whatever depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found |= set(node.names)
    return found
