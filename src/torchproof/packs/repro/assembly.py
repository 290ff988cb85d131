"""Assembles `repro.py` from a candidate, a failure signature and an oracle's source.

Takes source that defines `make`, returns one file that needs only torch. It reads from
top to bottom: which failure, the program, the oracle that recognises the failure.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
import threading
from pathlib import Path

from torchproof.packs.repro.candidate import Candidate, Settings
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.programs.tree_shaking import shake
from torchproof.records import JsonObject

ORACLES = (
    "breaks",
    "recompiles",
    "errors",
    "no_ops",
    "answers",
    "hang",
    "slowdown",
    "compile_time",
    "memory",
    "skips",
    "lifetimes",
    "syncs",
)

_FOLDER = Path(__file__).parent / "oracles"
_WIDTH = 88
# In CPython 3.11, `ast.parse` in two threads at once raises SystemError.
_parsing = threading.Lock()
_SHARED = ("error_text", "prelude")
_USAGE = """\
Run it with `python repro.py`; it needs only torch. Its last line is the verdict:
    exit code 1  FAILS AS STATED
    exit code 0  DOES NOT FAIL
    exit code 3  FAILS IN ANOTHER WAY"""


def repro_text(
    candidate: Candidate,
    signature: FailureSignature,
    settings: Settings,
    header: str = "",
) -> str:
    """Returns the text of `repro.py`; `header` goes below the headline.

    The threads that try candidates call it.
    """
    with _parsing:
        return _repro_text(candidate, signature, settings, header)


def _repro_text(
    candidate: Candidate, signature: FailureSignature, settings: Settings, header: str
) -> str:
    body, futures = _without_futures(candidate.source)
    defines_before = re.search(r"^(?:def )?before_call\b", body, re.MULTILINE)
    before = "before_call" if defines_before else "None"
    entry = "recognise"
    while re.search(rf"\b{entry}\b", body):
        entry += "_"
    sections = (
        _docstring(signature.headline, header),
        futures,
        _rule("the program"),
        body.strip("\n"),
        _rule("the check for its failure"),
        f"def {entry}(make, before_call=None):\n"
        + textwrap.indent(_oracle_body(signature, settings), "    "),
        f'if __name__ == "__main__":\n    {entry}(make, {before})',
    )
    return "\n\n".join(part for part in sections if part) + "\n"


def _oracle_body(signature: FailureSignature, settings: Settings) -> str:
    """Returns a function body: the oracle's names cannot clash with the program's."""
    imports, bodies = _oracle_sources(signature.oracle)
    return "\n\n".join(
        (
            "\n".join(imports),
            f"EXPECTED = {_literal(signature.expected)}\n"
            f"SETTINGS = {_literal(settings.to_json())}",
            *(re.sub(r"\n\n\n+", "\n\n", body) for body in bodies),
            "PROGRAM = Program(make, SETTINGS, before_call)",
            "report_and_exit(run_oracle, PROGRAM, EXPECTED)",
        )
    )


def _docstring(headline: str, header: str) -> str:
    paragraphs = [textwrap.fill(headline, _WIDTH), header.strip("\n"), _USAGE]
    text = "\n\n".join(part for part in paragraphs if part)
    return '"""' + text.replace("\\", "\\\\").replace('"""', "'''") + '\n"""'


def _rule(title: str) -> str:
    return f"# -- {title} ".ljust(_WIDTH, "-")


def _literal(plain: JsonObject) -> str:
    """Returns a mapping as Python source, one key per line."""
    lines = [f"    {key!r}: {value!r},\n" for key, value in plain.items()]
    return "{\n" + "".join(lines) + "}" if lines else "{}"


def _without_futures(source: str) -> tuple[str, str]:
    """Splits off the `__future__` imports, which must come first in a file."""
    lines = source.splitlines()
    features = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            features |= {alias.name for alias in node.names}
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    statement = (
        f"from __future__ import {', '.join(sorted(features))}" if features else ""
    )
    return "\n".join(lines), statement


def _oracle_sources(name: str) -> tuple[list[str], list[str]]:
    """Returns the imports of an oracle and the sources that it consists of."""
    assert name in ORACLES, name
    imports: dict[str, None] = {}
    source = _source(name)
    sources = [_source(part) for part in _SHARED if f"oracles.{part} import" in source]
    if "import comparison" in source:
        sources.insert(0, _comparison())
        source = source.replace("comparison.compare_value", "compare_value")
    bodies = [_body(text, imports) for text in (*sources, source)]
    return sorted(imports, key=lambda line: (line == "import torch", line)), bodies


def _source(name: str) -> str:
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")


@functools.cache
def _comparison() -> str:
    """Returns the parts of torchproof's comparison that an oracle uses.

    It has no annotations of functions: they name classes that are defined below.
    """
    path = _FOLDER.parents[2] / "torch_private" / "comparison.py"
    tree = shake(ast.parse(path.read_text(encoding="utf-8")), ["compare_value"])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree)


def _body(source: str, imports: dict[str, None]) -> str:
    """Returns an oracle's source without docstring; moves its imports to `imports`."""
    lines = source.splitlines()
    begin = 0
    for node in ast.parse(source).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(
            node.value, ast.Constant
        )
        if not is_docstring and not isinstance(node, ast.Import | ast.ImportFrom):
            break
        begin = node.end_lineno or node.lineno
        is_ours = isinstance(node, ast.ImportFrom) and (
            node.module == "__future__" or (node.module or "").startswith("torchproof")
        )
        if not is_docstring and not is_ours:
            imports[ast.unparse(node)] = None
    return "\n".join(lines[begin:]).strip("\n")
