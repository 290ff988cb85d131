"""Text of others, made safe to look at: markup stays text, nothing is invisible."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

# Characters that take no room or turn the reading order: what they hide, a reader of
# source and names has to see. Line feed and tab are left alone.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# More marks on one letter than any language puts there cover the lines around it.
_PILED = re.compile(
    "([\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})"
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_SPANS = re.compile(
    r"`([^`\n]+)`|(https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]])"
    r"|(?<!\S)(--[a-z][a-z-]{,20})(?![\w-])"
)
_CODE, _FLAG = Markup("<code>{}</code>"), Markup('<code class="flag">{}</code>')
_LINK = Markup('<a href="{0}" rel="noreferrer noopener">{0}</a>')


def visible(value: Any) -> Any:
    """What a template prints, with `<U+202E>` in place of what cannot be seen."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    value = value if value.isascii() else _PILED.sub(r"\1", value)
    return _HIDDEN.sub(lambda found: f"\u27e8U+{ord(found[0]):04X}\u27e9", value)


def rich(text: str) -> Markup:
    """A sentence whose `quoted code`, addresses and --flags are shown as such."""
    pieces, end = [], 0
    for found in _SPANS.finditer(text):
        pieces.append(escape(visible(text[end : found.start()])))
        code, link, flag = found.groups()
        form = _LINK if link else _FLAG if flag else _CODE
        pieces.append(form.format(visible(code or link or flag)))
        end = found.end()
    pieces.append(escape(visible(text[end:])))
    return Markup("").join(pieces)


def brief(text: str, limit: int = 60) -> str:
    """A name that would leave no room for what is said of it, cut."""
    return text if len(text) <= limit else f"{text[:limit]} ..."
