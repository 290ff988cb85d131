"""docs/llms.txt: an index of the documents for language models (llmstxt.org).

A title, a summary, and lists of links with a note each: the pages in the order of the
site's navigation, each with the first sentence of its text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from tables import ROOT

FIRST = ("agents.md", "index.md", "getting-started.md")
OPTIONAL = ("architecture.md",)
# Pages that the site makes of files outside docs/.
MADE = ("overview.md", "contributing.md", "changelog.md")
ABOUT = """\
Run `torchproof check TARGET --effort quick -q --format agent` to find out what goes
wrong when a model compiles; each finding has its source, its fix and the command that
verifies it. `torchproof mcp` serves the same to MCP clients."""


def page() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    blocks = [f"# {project['name']}", f"> {project['description']}.", ABOUT]
    for title, files in sections().items():
        links = [f"- [{name}]({file}): {note(file)}" for name, file in files]
        blocks.append("\n".join([f"## {title}", "", *links]))
    return "\n\n".join(blocks) + "\n"


def sections() -> dict[str, list[tuple[str, str]]]:
    """The pages by section; what a reader may skip comes last."""
    every = dict[str, list[tuple[str, str]]]()
    for section, name, file in _navigation():
        if file in FIRST:
            section = "Start here"
        elif file in OPTIONAL:
            section = "Optional"
        every.setdefault(section, []).append((name, file))
    every["Start here"].sort(key=lambda pair: FIRST.index(pair[1]))
    first, last = every.pop("Start here"), every.pop("Optional")
    return {"Start here": first, **every, "Optional": last}


def _navigation() -> Iterator[tuple[str, str, str]]:
    """Section, name and file of each page, from mkdocs.yml."""
    text = (ROOT / "mkdocs.yml").read_text()
    [tree] = re.findall(r"^nav:\n((?:  .*\n)+)", text, re.MULTILINE)
    section = ""
    for line in tree.splitlines():
        [(indent, name, file)] = re.findall(r"^( +)- (.+?): ?(\S*)$", line)
        if not file:
            section = name
        elif file not in MADE:
            yield ("" if len(indent) == 2 else section), name, file


def note(file: str) -> str:
    """The first sentence of a page, as plain text."""
    paragraphs = (ROOT / "docs" / file).read_text().split("\n\n")
    plain = re.compile(r"[\w`*\[]")
    first = next(text for text in paragraphs if plain.match(text))
    text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.:]) (?=[A-Z`])", text.replace("**", ""))[0]
