"""Renders a run as one self-contained HTML file, from page.html, page.css and page.js.

Nothing in the run can become markup or code: the templates escape all text, and the
page's Content-Security-Policy allows only its own style and script, by their hashes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from torchproof.measure import Comparison
from torchproof.records import SEVERITIES, Run, document
from torchproof.report import comparison, run_words
from torchproof.report.document import (
    Block,
    Cell,
    Code,
    Link,
    Section,
    Text,
    Verdict,
    View,
    plain,
    seen_by,
)
from torchproof.report.finding_block import FindingBlock
from torchproof.report.text import is_number

if TYPE_CHECKING:
    import jinja2

_HERE = Path(__file__).parent
# Separates findings that stay text until the reader opens them. No other text contains
# it, since `visible` replaces such characters.
_SEPARATOR = "\x1e"
# Invisible characters and those that change the reading direction. The page shows them
# as escapes; line feed and tab stay.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# More combining marks on one letter than any language uses, which cover other lines.
_PILED = re.compile(
    "([\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})"
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_SPANS = re.compile(
    r"`([^`\n]+)`|(https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]])"
    r"|(?<!\S)(--[a-z][a-z-]{,20})(?![\w-])"
)
_CODE, _FLAG = Markup("<code>{}</code>"), Markup('<code class="flag">{}</code>')
_PLACE = Markup('<a href="#{}"><code>{}</code></a>')
_LINK = Markup('<a href="{0}" rel="noreferrer noopener">{0}</a>')


PAGE = 100  # findings shown at once
_MAIN = ("trials", "fixes", "load", "findings")  # the first of them is what counts
_DIFF = {"+": "added", "-": "removed", "@": "hunk"}


def render(
    run: Run, blocks: Iterable[Block], compared: Comparison | None = None
) -> str:
    """The page of a run, with its comparison to an earlier run if there is one."""
    style, script = (_read(name) for name in ("page.css", "page.js"))
    shown = seen_by(View.PAGE, blocks)
    verdict = next(block for block in shown if isinstance(block, Verdict))
    shown = tuple(block for block in shown if block is not verdict)
    if compared:
        shown, verdict = _with_comparison(shown, verdict, compared)
    sections = [block for block in shown if isinstance(block, Section)]
    by_anchor = {section.anchor: section for section in sections}
    main = next((by_anchor[name] for name in _MAIN if name in by_anchor), sections[0])
    return (
        templates()
        .get_template("page.html")
        .render(
            run=run,
            rules=run.rules,
            about=_about(run),
            verdict=verdict,
            blocks=shown,
            sections=[section for section in sections if section.anchor],
            main=main,
            separator=_SEPARATOR,
            style=style,
            script=script,
            policy=_policy(style, script),
            data=_embedded(run),
        )
    )


def _with_comparison(
    blocks: Sequence[Block], verdict: Verdict, compared: Comparison
) -> tuple[tuple[Block, ...], Verdict]:
    """The comparison stands after the times."""
    names = [getattr(block, "anchor", "") for block in blocks]
    at = names.index("strategies") + 1 if "strategies" in names else 0
    first = next(comparison.summary(compared))
    text = f"{first} A is run {compared.a['id']}, B is this run."
    section = seen_by(View.PAGE, [comparison.section(compared)])
    changed = replace(verdict, more=(*verdict.more, text))
    return (*blocks[:at], *section, *blocks[at:]), changed


def _about(run: Run) -> list[str]:
    """Size, device, torch version, strategy and start time of the run."""
    facts = run.environment
    details = [facts.get("size"), facts.get("gpu") or facts.get("device")]
    details.append(run_words.measured_ranks(run))
    details += [f"torch {facts['torch']}" if facts.get("torch") else None]
    compiled = run.verb == "check" and run.strategy not in ("", "-")
    details += [f"strategy {run.strategy}" if compiled else None]
    return [str(fact) for fact in (*details, run.started.replace("T", " ")) if fact]


# -- what templates ask ----------------------------------------------------------------


@dataclass(frozen=True)
class _Inside:
    """A cell as the template of tables needs it."""

    text: Text
    badge: str = ""
    tone: str = ""
    is_code: bool = False


def _cell(value: Text | Cell) -> _Inside:
    if isinstance(value, Cell):
        return _Inside(value.text, value.badge, value.tone)
    return _Inside(value, is_code=isinstance(value, Code | tuple))


def _column(style: str, name: str) -> str:
    """The CSS class of a column's cells."""
    if style == "trials":
        number = is_number(name) or name == "trial took"
        return "n" if number else "gain" if name == "vs eager" else "said"
    numbers = {"changes": ("before", "after"), "compared": ("A", "B")}
    return "n" if name in numbers.get(style, ()) else ""


def _choices(listed: Sequence[FindingBlock]) -> list[tuple[str, str, list[Any]]]:
    """The filters: names, labels, and values with the number of their findings."""
    filters = []
    for name in ("severity", "category", "kind", "status", "origin"):
        found = Counter(str(getattr(each.finding, name)) for each in listed)
        values = found.most_common()
        if name == "severity":
            values = [(each, found[each]) for each in SEVERITIES if found[each]]
        if len(values) > 1:
            filters.append((name, name.capitalize(), values))
    return filters


def _pages(listed: Sequence[FindingBlock]) -> list[Sequence[FindingBlock]]:
    return [listed[start : start + PAGE] for start in range(0, len(listed), PAGE)]


def _diff(text: str) -> Iterator[tuple[str, str]]:
    """The lines of a diff with their CSS classes."""
    for line in document(text).rstrip("\n").split("\n"):
        head = line.startswith(("--- ", "+++ "))
        yield "file" if head else _DIFF.get(line[:1], "same"), line


# -- untrusted text -------------------------------------------------------------------


def visible(value: Any) -> Any:
    """The text of a template expression, with `<U+202E>` for invisible characters."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    value = value if value.isascii() else _PILED.sub(r"\1", value)
    return _HIDDEN.sub(lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", value)


def rich(text: Text, limit: int | None = None) -> Markup:
    """Text as HTML, with markup for `quoted code`, URLs and --flags."""
    if isinstance(text, tuple):
        return Markup("").join(rich(part, limit) for part in text)
    text = brief(text, limit) if limit else text
    if isinstance(text, Link):
        return _PLACE.format(text.anchor, visible(str(text)))
    if isinstance(text, Code):
        return _CODE.format(visible(str(text)))
    pieces: list[Markup] = []
    end = 0
    for match in _SPANS.finditer(text):
        pieces.append(escape(visible(text[end : match.start()])))
        code, link, flag = match.groups()
        form = _LINK if link else _FLAG if flag else _CODE
        pieces.append(form.format(visible(code or link or flag)))
        end = match.end()
    pieces.append(escape(visible(text[end:])))
    return Markup("").join(pieces)


def brief(text: str, limit: int = 60) -> str:
    """The text, cut to a limit."""
    return text if len(text) <= limit else f"{text[:limit]} ..."


def _words(text: Text) -> str:
    """Without the characters that end a sentence or a caption."""
    return str(_cell(text).text if isinstance(text, Cell) else plain(text))


# -- the file --------------------------------------------------------------------------


@functools.cache
def templates() -> jinja2.Environment:
    import jinja2  # slow to import, and the other formats do not need it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"rich": rich, "brief": brief, "dedent": _dedented}
    environment.filters |= {"kind": lambda block: type(block).__name__}
    environment.filters |= {"cell": _cell, "column": _column, "words": _words}
    environment.filters |= {"choices": _choices, "pages": _pages, "diff": _diff}
    return environment


def _dedented(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8").strip()


def _policy(style: str, script: str) -> str:
    rules = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "img-src": "data:",  # the page's own icon
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(run: Run) -> str:
    """The JSON of the run, escaped so that it cannot end its script element."""
    text = json.dumps(run.to_json(), separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
