"""Text as Markdown that shows it and does nothing else, whoever wrote the text.

What stands in backticks is code; all other marks of Markdown and HTML are escaped, and
characters that cannot be seen are written as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchproof.records import line, seen

# Code in the text's own backticks, an address, a name that would call somebody, and a
# word with an underscore, which at the edge of a word may begin emphasis.
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
    """A paragraph: a sentence that begins no list, heading or quotation."""
    return _STARTS.sub(r"\1\\", inline(text))


def inline(text: object) -> str:
    """A sentence inside something else: its own code in backticks stays code."""
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
    return _MARKS.sub(lambda found: f"\\{found[0]}", text)


def code(text: object) -> str:
    """A code span, with more backticks around it than there are inside."""
    plain = line(text) or " "
    ticks = "`" * (_longest(plain) + 1)
    space = " " if "`" in (plain[0], plain[-1]) else ""
    return f"{ticks}{space}{plain}{space}{ticks}"


def fence(text: str, language: str = "") -> str:
    """A block of code, whose fence is longer than any inside."""
    ticks = "`" * max(3, _longest(text) + 1)
    return f"{ticks}{language}\n{seen(text.rstrip())}\n{ticks}"


def _longest(text: str) -> int:
    """The longest run of backticks."""
    return max(map(len, re.findall(r"`+", text)), default=0)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are Markdown already, and cannot end a cell or a row early."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, cells)) + " |" for cells in lines)


def _cell(text: str) -> str:
    """With bars escaped, also those in code: a table is cut up before code is seen."""
    return re.sub(r"(?<!\\)((?:\\\\)*)\|", r"\1\\|", " ".join(str(text).split()))


def bullets(lines: Iterable[str]) -> str:
    """A list; its items are Markdown already."""
    return "\n".join(f"- {item}" for item in lines)
