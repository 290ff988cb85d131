"""Python source, rewritten token by token."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable

_TEXTS = {"COMMENT", "STRING", "FSTRING_MIDDLE", "TSTRING_MIDDLE"}
_WORDS = {"NAME", "NUMBER"}
_FORMATTED = re.compile(r"[rRbBuU]?[fFtT]")


def rewritten(
    source: str, text: Callable[[str], str], identifier: Callable[[str], str]
) -> str | None:
    """The source with `text` applied to strings and comments, `identifier` to names.

    None for what is no Python.
    """
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return None
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    pieces, end = [], 0
    for token in tokens:
        kind = tokenize.tok_name[token.type]
        if kind not in _TEXTS | _WORDS:
            continue
        # What stands between the braces of a formatted string is code.
        code = kind in _WORDS or _FORMATTED.match(token.string)
        written = (identifier if code else text)(token.string)
        first = starts[token.start[0] - 1] + token.start[1]
        last = starts[token.end[0] - 1] + token.end[1]
        pieces += [source[end:first], written]
        end = last
    return "".join([*pieces, source[end:]])
