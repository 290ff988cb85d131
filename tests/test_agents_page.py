"""docs/agents.md and docs/llms.txt: what they tell agents is so."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from pathlib import Path

from test_cli import COUNT_FIELDS, FINDING_FIELDS, RUN_FIELDS

from torchproof.cli import verbs
from torchproof.records import Fix, Measurement
from torchproof.report import agent

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "agents.md").read_text()
INDEX = (DOCS / "llms.txt").read_text()


def section(title: str) -> str:
    _, _, rest = PAGE.partition(f"\n## {title}\n")
    assert rest, title
    return rest.partition("\n## ")[0]


def cells(title: str) -> list[list[str]]:
    rows = re.findall(r"^\| (.*) \|$", section(title), re.MULTILINE)
    return [re.split(r" \| ", row) for row in rows[1:]]


def test_every_configuration_starts_the_server() -> None:
    page = (DOCS / "mcp.md").read_text()
    texts = re.findall(r"^```(json|toml)\n(.*?)^```$", page, re.M | re.S)
    read = {"json": json.loads, "toml": tomllib.loads}
    found = [
        entry["torchproof"]
        for language, text in texts
        for entry in read[language](text).values()
    ]
    assert len(found) == 3
    for entry in found:
        options = verbs._parser("mcp").parse_args(entry["args"])
        assert entry["command"] == "torchproof" and options.verb is verbs.mcp


def test_every_label_is_one_that_is_printed() -> None:
    printed = inspect.getsource(agent)
    labels = [
        label
        for first, *_ in cells("How to read an answer")
        for label in re.findall(r"`([A-Za-z ]+)`", first)
    ]
    assert len(labels) > 20
    for label in labels:
        quoted = rf'["(]{label}\b' if label != "REGRESSION" else label
        assert re.search(quoted, printed), label


def test_every_field_is_one_of_the_json() -> None:
    known = {*RUN_FIELDS, *FINDING_FIELDS, *COUNT_FIELDS}
    known |= {field for kind in (Fix, Measurement) for field in kind.__annotations__}
    known |= {"why", "open", "resolved", "intentional", "finished"}
    known |= {"passed", "found", "skipped", "failed"}
    named = re.findall(r"`([\w.\[\]]+)`", " ".join(map(" ".join, cells("JSON"))))
    assert "counts" in named
    for name in named:
        assert name.rpartition(".")[2].removesuffix("[]") in known, name


def test_every_verb_that_is_named_exists() -> None:
    names = {function.__name__ for function, *_ in verbs._verbs()}
    used = {row[1].strip("`").split()[0] for row in cells("When to run what")}
    assert used <= names and {"check", "fix", "bench", "compare"} <= used


def test_the_index_follows_the_convention_and_lists_every_page() -> None:
    title, summary, *rest = INDEX.split("\n\n")
    assert re.fullmatch(r"# \S+", title) and summary.startswith("> ")
    lines = [line for line in INDEX.splitlines() if line.startswith("- ")]
    links = [re.fullmatch(r"- \[[^]]+\]\(([^)]+)\): \S.*\S", line) for line in lines]
    assert all(links) and [text for text in rest if text.startswith("## ")]
    files = [link[1] for link in links if link]
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(files) == sorted(pages)
    assert files[0] == "agents.md"
