"""The spellings of a value in text: escaped, quoted, encoded, wrapped."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import re
import shlex
from urllib.parse import quote, quote_plus

# Shorter pieces of an encoding occur in unrelated text by chance.
_ENCODED = 7
# What may be between two characters of a value that is split over lines.
_BETWEEN = r"(?:\\+[nr]|[\s\"'\\+|\u2502]){0,40}?"


def escaped(value: str) -> set[str]:
    """The value itself, and as JSON, `repr`, URLs, HTML and shells write it."""
    spellings = {value, html.escape(value), quote_shell(value)}
    written = {json.dumps(value), json.dumps(value, ensure_ascii=False)}
    written |= {repr(value), ascii(value)}
    inner = {text[1:-1] for text in written}
    inner |= {text.replace("/", "\\/") for text in inner}
    spellings |= inner | {json.dumps(text)[1:-1] for text in inner}
    raw = value.encode("utf-8", "surrogatepass")
    links = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    links |= {re.sub("%..", lambda code: code[0].lower(), text) for text in links}
    return spellings | links


def quote_shell(value: str) -> str:
    written = shlex.quote(value)
    return written[1:-1] if written != value else value


def encoded(value: str) -> set[str]:
    """The value in base64, also as part of a longer text, and in hexadecimal."""
    raws = {value.encode("utf-8", "surrogatepass")}
    with contextlib.suppress(UnicodeEncodeError):
        raws.add(value.encode("latin-1"))
    encodings = set[str]()
    for raw in raws:
        encodings |= {raw.hex(), raw.hex().upper()}
        for shift, first in ((0, 0), (1, 2), (2, 3)):
            # Only the characters that do not depend on the neighbouring bytes.
            last = (shift + len(raw)) * 8 // 6
            for write in (base64.b64encode, base64.urlsafe_b64encode):
                encodings.add(write(bytes(shift) + raw).decode()[first:last])
    return {text for text in encodings if len(text) >= _ENCODED}


def squeezed(text: str) -> str:
    """The text without the characters that wrapping, quoting and escaping add."""
    for mark in ("\\n", "\\r", "\\", '"', "'", "+", "|", "\u2502"):
        text = text.replace(mark, "")
    return "".join(text.split())


def wrapped(value: str) -> re.Pattern[str]:
    """The pattern of the value with line ends anywhere inside."""
    return re.compile(_BETWEEN.join(re.escape(char) for char in value))
