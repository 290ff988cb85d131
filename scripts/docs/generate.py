"""Writes the parts of the documents that come from code and results: `make docs`.

    python scripts/docs/generate.py [DOCUMENT ...]

Without arguments it also runs the commands whose output documents show. With the paths
of documents, it only writes these again, from code and the stored results.
docs/reference/rules.md, docs/reference/json.md, docs/llms.txt and docs/man/torchproof.1
are generated whole. In the other documents the text between `<!-- begin NAME -->` and
`<!-- end NAME -->` is replaced by the part of this name: see `PARTS` of survey_parts,
run_parts and torch_parts.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import getting_started
import json_page
import llms_page
import man_page
import run_parts
import survey_parts
import tables
import torch_parts

from torchproof.checking.rules import RULES
from torchproof.records.run import CATEGORIES
from torchproof.targets.workloads import WORKLOADS

COMMAND = ("check", "workload:gpt-original", "--effort", "quick")
FIX = ("fix", "workload:nanovlm-original")

Parts = Mapping[str, Callable[[], str]]
Captured = Mapping[tuple[str, str], str]  # text by document and part


# -- parts made of code ----------------------------------------------------------------


def rules_page() -> str:
    """Every rule: a table of all, then the text that `torchproof rule` prints."""
    bodies = {rule.code: _body(rule.documentation()) for rule in RULES}
    return tables.render("rules", rules=RULES, categories=CATEGORIES, bodies=bodies) + (
        "\n"
    )


def _body(text: str) -> str:
    """A rule's sections, with bold titles: as headings they would fill the contents."""
    lines = text.split("\n")[1:]
    bold = [re.sub(r"^## (.*)$", r"**\1**\n", line) for line in lines]
    return "\n".join(bold)


def package_table() -> str:
    """Each package with the first line of its docstring and the file to read first."""
    cells = []
    for path in sorted((ROOT / "src" / "torchproof").glob("*/__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = re.findall(r"Start\s+with\s+`([^`]+)`", text)
        cells.append((f"`{path.parent.name}`", text.splitlines()[0], f"`{first[0]}`"))
    return tables.plain("package | what it does | read first", cells)


def sizes_table() -> str:
    """Every fixed form with its sizes; the one that a GPU gets by default is bold."""
    cells = []
    for name, workload in WORKLOADS.items():
        sizes = [
            f"{f'**{size}**' if size == workload.gpu_size else size} {count:,}"
            for size, count in workload.sizes.items()
        ]
        if not name.endswith("-original"):
            cells.append((f"`{name}`", workload.summary, "; ".join(sizes)))
    return tables.plain("workload | what it is | sizes and parameters", cells)


# -- parts made of runs ----------------------------------------------------------------


def captured() -> Captured:
    """The output of the commands that `make docs` runs."""
    checks = getting_started.checks()
    steps = {("docs/getting-started.md", name): text for name, text in checks.items()}
    first = getting_started.shown(_printed("first check", COMMAND), effects=False)
    fixes = first_fix(_printed("proved fixes", FIX))
    return {("README.md", "output"): first, ("README.md", "fix"): fixes, **steps}


def _printed(name: str, words: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        line = " ".join(["torchproof", *words, "-q"])
        step = getting_started.run(name, line, Path(folder))
    return getting_started.expect(step).stdout


def first_fix(text: str) -> str:
    """What `fix` prints: the first fix with its diff and proof, and the summary."""
    fixes = re.split(r"\n\n(?=\S+:\d+  [A-Z]{2}\d{3}|settings  )", text)
    summary = re.findall(r"^\d+ fix.*?\.$", fixes[-1], re.MULTILINE | re.DOTALL)[-1]
    rest = ["..."] if len(fixes) > 2 else []
    return tables.fenced("\n\n".join([*fixes[:2], *rest, summary]))


# -- documents -------------------------------------------------------------------------

_CODE: dict[str, Parts] = {
    "docs/architecture.md": {"packages": package_table},
    "docs/reference/workloads.md": {"sizes": sizes_table},
}


def parts(document: str) -> dict[str, Callable[[], str]]:
    """The generated parts of a document, by their names."""
    sources = (_CODE, survey_parts.PARTS, run_parts.PARTS, torch_parts.PARTS)
    return {n: make for each in sources for n, make in each.get(document, {}).items()}


def _documents() -> list[str]:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(path.relative_to(ROOT).as_posix() for path in pages)]


def filled(text: str, name: str, body: str) -> str:
    """A document with one of its generated parts replaced."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.escape(begin) + r"\n.*?" + re.escape(end)
    assert len(re.findall(pattern, text, re.DOTALL)) == 1, f"{name} is not marked once"
    return re.sub(pattern, lambda _: f"{begin}\n{body}\n{end}", text, flags=re.DOTALL)


def _current(document: str) -> str:
    """A document with the parts that it marks."""
    text, known = (ROOT / document).read_text(), parts(document)
    for name in re.findall(r"<!-- begin (.+?) -->", text):
        if name in known:
            text = filled(text, name, known[name]())
    return text


_WHOLE: dict[str, Callable[[], str]] = {
    "docs/reference/rules.md": rules_page,
    "docs/reference/json.md": json_page.page,
    "docs/man/torchproof.1": man_page.page,
    "docs/llms.txt": llms_page.page,
}


def documents(captured: Captured | None = None) -> dict[Path, str]:
    """Each document with current parts; `captured` are those that need a run."""
    texts = {ROOT / name: written(name) for name in (*_documents(), *_WHOLE)}
    for (name, part), body in (captured or {}).items():
        texts[ROOT / name] = filled(texts[ROOT / name], part, body)
    return texts


def written(name: str) -> str:
    """One document, from code and the stored results."""
    return _WHOLE[name]() if name in _WHOLE else _current(name)


def lasting(text: str) -> str:
    """Without what differs from run to run: a run's date, and the build of torch."""
    return re.sub(r"\d{8}-\d{4}-[\w-]+|torch \d\S+", "-", text)


def chosen(names: list[str]) -> dict[Path, str]:
    """These documents, from stored results; without names all, with runs."""
    if not names:
        return documents(captured())
    return {ROOT / name: written(name) for name in names}


if __name__ == "__main__":
    for path, text in chosen(sys.argv[1:]).items():
        if not path.is_file() or lasting(path.read_text()) != lasting(text):
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")
