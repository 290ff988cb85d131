"""Decodes the escapes of a text, so that a value is found however it is escaped.

One value has more escaped forms than can be listed: each character may be written as
`\\xc3\\xa4`, `\\344`, `\\u00e4`, `\\N{...}`, `%C3%A4` or `&auml;`, beside characters
without escapes. So this module decodes the escapes once. The redactor searches the
decoded text, and `place` maps the result back to the original text.
"""

from __future__ import annotations

import bisect
import html
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

_BYTES = r"(?:\\+x[0-9A-Fa-f]{2}|\\+[0-3][0-7]{2}|%[0-9A-Fa-f]{2})"
_UNITS = r"(?:\\+u[0-9A-Fa-f]{4}|\\+u\{[0-9A-Fa-f]{1,6}\}|\\+U[0-9A-Fa-f]{8})"
_ESCAPE = re.compile(
    rf"(?P<bytes>{_BYTES}+)|(?P<units>{_UNITS}+)|\\+N\{{(?P<name>[A-Z0-9 -]+)\}}"
    r"|(?P<entity>&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});)"
    r"|\\+(?P<letter>[abfnrtv\"'/])"
)
_ONE_BYTE = re.compile(r"x([0-9A-Fa-f]{2})|\\([0-3][0-7]{2})|%([0-9A-Fa-f]{2})")
_ONE_UNIT = re.compile(r"[uU]\{?([0-9A-Fa-f]+)")
_LETTERS = dict(zip("abfnrtv\"'/", "\a\b\f\n\r\t\v\"'/", strict=True))
_MARKS = re.compile(r"[\\%&]")
_BEYOND_ASCII = re.compile(r"x[89a-fA-F]|\\[23]|%[89A-Fa-f]")


@dataclass(frozen=True)
class Unescaped:
    """A decoded text, and the place of each part in the original text."""

    text: str
    _starts: list[int]  # the start of each part in the decoded text
    _places: list[tuple[int, int, bool]]  # its original span; whether it is an escape

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The original span of a decoded span; it includes escapes as a whole."""
        first, last = (
            bisect.bisect_right(self._starts, at) - 1 for at in (start, end - 1)
        )
        begin, _, escape = self._places[first]
        first_place = begin if escape else begin + start - self._starts[first]
        begin, close, escape = self._places[last]
        return first_place, close if escape else begin + end - self._starts[last]


def meanings(text: str) -> list[Unescaped]:
    """The decoded texts: none without escapes, two if the encoding is ambiguous."""
    escapes = list(_escapes(text))
    if not escapes:
        return []
    encodings = ["utf-8"]
    if any(
        match["bytes"] and _BEYOND_ASCII.search(match["bytes"]) for match in escapes
    ):
        encodings.append("latin-1")
    return [_read(text, escapes, encoding) for encoding in encodings]


def _escapes(text: str) -> Iterator[re.Match[str]]:
    """The escapes; the pattern is tried only at possible starts, which is fast."""
    end = 0
    for mark in _MARKS.finditer(text):
        if mark.start() >= end and (match := _ESCAPE.match(text, mark.start())):
            yield match
            end = match.end()


def _read(text: str, escapes: list[re.Match[str]], encoding: str) -> Unescaped:
    pieces: list[str] = []
    starts: list[int] = []
    places: list[tuple[int, int, bool]] = []
    length = end = 0

    def add(piece: str, begin: int, close: int, *, escape: bool) -> None:
        nonlocal length
        if piece:
            pieces.append(piece)
            starts.append(length)
            places.append((begin, close, escape))
            length += len(piece)

    for match in escapes:
        add(text[end : match.start()], end, match.start(), escape=False)
        add(_meaning(match, encoding), match.start(), match.end(), escape=True)
        end = match.end()
    add(text[end:], end, len(text), escape=False)
    return Unescaped("".join(pieces), starts, places)


def _meaning(match: re.Match[str], encoding: str) -> str:
    if match["bytes"]:
        return _of_bytes(match["bytes"], encoding)
    if match["units"]:
        codes = [int(code, 16) for code in _ONE_UNIT.findall(match["units"])]
        text = "".join(map(chr, (code for code in codes if code < 0x110000)))
        # A pair of surrogates is one character.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if match["name"]:
        try:
            return unicodedata.lookup(match["name"])
        except KeyError:
            return match[0]
    if match["entity"]:
        return html.unescape(match["entity"])
    return _LETTERS[match["letter"]]


def _of_bytes(text: str, encoding: str) -> str:
    raw = bytes(
        int(digits[0] or digits[2], 16) if digits[0] or digits[2] else int(digits[1], 8)
        for digits in _ONE_BYTE.findall(text)
    )
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        return raw.decode("latin-1")
