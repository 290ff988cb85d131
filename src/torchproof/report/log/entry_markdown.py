"""Writes log entries as Markdown, with untrusted text escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from torchproof.records import one_line
from torchproof.report import markdown
from torchproof.report.log.log_entries import DATE

_TITLE = 76
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # no text


@dataclass(frozen=True)
class Draft:
    """The content of an entry, before it has an id and a date."""

    kind: str
    title: str
    sentence: str  # the general description, for readers without context
    facts: tuple[tuple[str, str], ...] = ()  # in addition to id, type and date
    sections: tuple[tuple[str, str], ...] = ()  # heading and text, in this order

    def text(self, id: str, at: datetime) -> str:
        facts = [("Entry", code(id)), ("Type", self.kind), ("Date", f"{at:{DATE}}")]
        lines = "\n".join(f"- {name}: {value}" for name, value in [*facts, *self.facts])
        blocks = [f"## {at:%Y-%m-%d} - {self.kind}: {title(self.title)}", lines]
        blocks.append(f"**General description:** {self.sentence}")
        for heading, text in self.sections:
            if text:
                blocks.append(f"### {heading}\n\n{text}")
        return _CONTROL.sub(_escape, "\n\n".join(blocks)) + "\n"


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()


def title(text: str) -> str:
    """A heading on one line, cut between words."""
    words = one_line(text).rstrip(".")
    if len(words) <= _TITLE:
        return words
    short = words[:_TITLE].rpartition(" ")[0] or words[:_TITLE]
    return (short.replace("`", "") if short.count("`") % 2 else short) + " ..."


def code(text: str) -> str:
    """A code span that can contain backticks."""
    plain = one_line(text, 2000)
    longest = max(map(len, re.findall("`+", plain)), default=0)
    ticks = "`" * (longest + 1)
    space = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{ticks}{space}{plain}{space}{ticks}" if plain else "-"


def prose(text: str) -> str:
    """Untrusted text on one line, with HTML tags escaped outside of code spans."""
    parts = re.split(r"(`[^`]+`)", one_line(text))
    return "".join(
        part if part.startswith("`") else re.sub(r"<(?=[\w/!?])", r"\\<", part)
        for part in parts
    )


def own_words(text: str) -> str:
    """The user's text, with headings escaped, since a heading would end the entry."""
    lines = [re.sub(r"^(\s{0,3})#", r"\1\\#", line) for line in text.splitlines()]
    return "\n".join(line.rstrip() for line in lines).strip()


def items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown.table(header, rows)
