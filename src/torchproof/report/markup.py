"""Escapes text for Markdown, so that untrusted text cannot become markup.

Text in backticks stays code. All other Markdown and HTML syntax is escaped, and
invisible characters are written as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchproof.records import line, seen

# Code in backticks, a URL, an @mention, and a word with an underscore, which at the
# edge of a word may begin emphasis.
_TOKENS = re.compile(
    r"(?P<code>`[^`]+`)|(?P<url>https?://[\w./#?=%+-]*[\w/#=])"
    r"|(?P<name>(?<![\w`])@[\w.]*\w)|(?P<word>[\w.]*_[\w.]*(?<!\.))"
)
_EDGE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_MARKS = re.compile(
    r"\\(?=[!-/:-@\[-`{-~]|$)|[`~$]|(?<! )\*|\*(?! )|<(?=[\w/!?])|&(?=#?\w+;)"
    r"|\](?=[(\[:])"
)
_STARTS = re.compile(r"^(\d*)(?=[#>+=-]|(?<=\d)[.)])")


def prose(text: object) -> str:
    """A paragraph that cannot begin a list, heading or quotation."""
    return _STARTS.sub(r"\1\\", inline(text))


def inline(text: object) -> str:
    """Text inside another element; code in backticks stays code."""
    plain, parts, end = line(text), [], 0
    for token in _TOKENS.finditer(plain):
        parts += [_escaped(plain[end : token.start()]), _token(token)]
        end = token.end()
    return "".join([*parts, _escaped(plain[end:])])


def _token(token: re.Match[str]) -> str:
    word = token["word"]
    if token["url"] or (word and not _EDGE.search(word)):
        return token[0]
    return code(token[0].strip("`"))


def _escaped(text: str) -> str:
    return _MARKS.sub(lambda match: f"\\{match[0]}", text)


def code(text: object) -> str:
    """A code span, delimited by more backticks than the text contains in a row."""
    plain = line(text) or " "
    ticks = "`" * (_longest(plain) + 1)
    space = " " if "`" in (plain[0], plain[-1]) else ""
    return f"{ticks}{space}{plain}{space}{ticks}"


def fence(text: str, language: str = "") -> str:
    """A code block, with a fence longer than any inside."""
    ticks = "`" * max(3, _longest(text) + 1)
    return f"{ticks}{language}\n{seen(text.rstrip())}\n{ticks}"


def _longest(text: str) -> int:
    """The longest run of backticks."""
    return max(map(len, re.findall(r"`+", text)), default=0)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown cells, escaped so that they cannot end a cell or a row."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, cells)) + " |" for cells in lines)


def _cell(text: str) -> str:
    """Escapes bars, also in code: Markdown splits cells before it parses code."""
    return re.sub(r"(?<!\\)((?:\\\\)*)\|", r"\1\\|", " ".join(str(text).split()))


def bullets(lines: Iterable[str]) -> str:
    """A bullet list of Markdown items."""
    return "\n".join(f"- {item}" for item in lines)
