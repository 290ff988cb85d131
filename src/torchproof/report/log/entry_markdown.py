"""Writes log entries as Markdown, with untrusted text escaped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from torchproof.records import one_line
from torchproof.report.log.log_entries import DATE
from torchproof.report.markup import code

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


def own_words(text: str) -> str:
    """The user's text, with headings escaped, since a heading would end the entry."""
    lines = [re.sub(r"^(\s{0,3})#", r"\1\\#", line) for line in text.splitlines()]
    return "\n".join(line.rstrip() for line in lines).strip()
