"""Readers of reports: an HTML page as its tags and words, a valid SARIF document."""

from __future__ import annotations

import functools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema

from torchproof.records import Run
from torchproof.report import render

# The schema that OASIS publishes, as the package sarif-pydantic 0.6.2 (MIT) has it.
SARIF = Path(__file__).parent / "data" / "sarif-schema-2.1.0.json"

# Characters that act on a terminal, or that nobody sees.
ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]"
)


class Page(HTMLParser):
    """Every tag with its attributes, and the words outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._raw = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@functools.cache
def sarif_validator() -> Any:
    return jsonschema.Draft7Validator(json.loads(SARIF.read_text()))


def sarif_run(run: Run) -> dict[str, Any]:
    """The only run of the document, which the schema has passed."""
    document = json.loads(render(run, "sarif"))
    errors = [f"{list(e.path)}: {e.message}" for e in sarif_errors(document)]
    assert not errors, errors
    (only,) = document["runs"]
    return dict(only)


def sarif_errors(document: Any) -> list[Any]:
    return list(sarif_validator().iter_errors(document))
