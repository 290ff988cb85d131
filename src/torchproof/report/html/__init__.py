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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from torchproof.measure import Comparison
from torchproof.records import CauseTree, Run
from torchproof.report import (
    bench_sections,
    cause_words,
    commands,
    comparison_text,
    earlier_run,
    run_words,
    search_words,
)
from torchproof.report.html import (
    charts,
    fix_section,
    headline,
    load_page,
    rank_page,
    search,
)
from torchproof.report.html.finding_list import (
    PAGE,
    Entry,
    at_home,
    choices,
    costs,
    entries,
    everything,
)
from torchproof.report.text_layout import Table

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
_LINK = Markup('<a href="{0}" rel="noreferrer noopener">{0}</a>')


def render(run: Run, compared: Comparison | None = None) -> str:
    """The page of a run, with its comparison to an earlier run if there is one."""
    style, script = (_read(name) for name in ("page.css", "page.js"))
    page = templates().get_template("page.html")
    return page.render(
        **_content(run),
        **_comparison(compared),
        style=style,
        script=script,
        policy=_policy(style, script),
        data=_embedded(run),
    )


def _content(run: Run) -> dict[str, Any]:
    findings = entries(run)
    searched: dict[str, Any] = {"search": None}
    if run.verb == "tune":
        searched, run = search.content(run), _by_candidate(run)
    fixes = fix_section.content(run) if run.verb == "fix" else None
    loaded = load_page.content(run) if run.verb == "loadtest" else {"load": None}
    figures = {
        "strategies": charts.strategies(run),
        "phases": charts.phases(run),
        "costs": costs(findings),
        "sweeps": charts.sweeps(run),
    }
    return {
        "run": run,
        "about": _about(run),
        "contents": _contents(run, figures, loaded),
        "total": len(everything(findings)),
        "split": cause_words.totals(CauseTree(run.findings)),
        "separator": _SEPARATOR,
        "headline": headline.headline(run, findings),
        "tiles": headline.tiles(run, findings),
        "shared": charts.shared(run),
        "strategies_title": _strategies(run),
        "missing": _missing(figures) if run.verb in ("check", "bench") else [],
        "fixes": fixes,
        "shares": _shares(run, figures),
        "tables": _tables(run),
        "rows": [(row, list(bench_sections.details(row))) for row in charts.plain(run)],
        "not_ranked": bench_sections.not_ranked(run),
        "chosen": bench_sections.chosen(run)[1] if run.verb == "bench" else None,
        "pages": list(_pages(findings)),
        "choices": choices(findings),
        "rules": run.rules,
        "closed": [e for e in findings if e.finding.status != "open"],
        "changes": earlier_run.changes(run),
        "unlike": earlier_run.unlike(run),
        "commands": list(commands.diagnostics(run)) if run.verb == "check" else [],
        "environment": dict(_facts(run.environment)),
        **figures,
        **searched,
        **loaded,
        **rank_page.content(run),
    }


def _by_candidate(run: Run) -> Run:
    """The run with its rows named after their candidates."""
    rows = [
        replace(row, strategy=search_words.label(row), variant={})
        for row in run.measurements
    ]
    return replace(run, measurements=tuple(rows))


def _about(run: Run) -> list[str]:
    """Size, device, torch version, strategy and start time of the run."""
    facts = run.environment
    details = [facts.get("size"), facts.get("gpu") or facts.get("device")]
    details.append(run_words.measured_ranks(run))
    details += [f"torch {facts['torch']}" if facts.get("torch") else None]
    compiled = run.verb == "check" and run.strategy not in ("", "-")
    details += [f"strategy {run.strategy}" if compiled else None]
    return [str(fact) for fact in (*details, run.started.replace("T", " ")) if fact]


def _contents(
    run: Run, figures: Mapping[str, Any], loaded: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """The sections of this page: (anchor, label)."""
    named = {
        **(load_page.sections(loaded) if loaded["load"] else {}),
        "recipe": ("Recipe", run.verb == "tune"),
        "trials": ("Trials", run.verb == "tune"),
        "fixes": ("Fixes", run.verb == "fix"),
        "left": ("Not fixed", run.fixing and run.fixing.remaining),
        "strategies": (_strategies(run), figures["strategies"]),
        "time": (
            "Time",
            figures["phases"] or figures["costs"] or _shares(run, figures),
        ),
        "shapes": ("Shapes and settings", figures["sweeps"] or _tables(run)),
        "ranks": ("Ranks", run.ranks),
        "findings": (f"Findings ({len(run.findings)})", run.findings),
        "configuration": ("torch.compile calls", run.configuration),
        "history": ("Before and after", run.baseline or _closed(run)),
        "rules": ("Rules", run.rules),
        "run": ("The run", True),
    }
    return [(anchor, label) for anchor, (label, content) in named.items() if content]


def _strategies(run: Run) -> str:
    return "Finals" if run.verb == "tune" else "Strategies"


def _closed(run: Run) -> bool:
    return any(finding.status != "open" for finding in run.findings)


def _shares(run: Run, figures: Mapping[str, Any]) -> Sequence[charts.Shares]:
    """The shares, unless compiled calls are the only one: a tile shows that number."""
    shares = charts.shares(run)
    return shares if len(shares) > 1 or figures["phases"] or figures["costs"] else ()


def _comparison(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {"compared": None}
    caveats = [
        *comparison_text.warnings(comparison),
        *comparison_text.findings(comparison),
    ]
    named = [(row.name, metric) for row in comparison.rows for metric in row.metrics]
    named += [("counts", metric) for metric in comparison.counts]
    rows = [
        (name, *comparison_text.cells(metric), metric.regression)
        for name, metric in named
        if metric.a is not None or metric.b is not None
    ]
    broken = [
        f"{r.name}: {r.broken or r.note}" for r in comparison.rows if not r.metrics
    ]
    return {
        "compared": comparison,
        "judged": list(comparison_text.summary(comparison)),
        "compared_rows": rows,
        "compared_lines": [*caveats, *broken],
    }


def _missing(figures: Mapping[str, Any]) -> list[str]:
    """The charts that lack measurements."""
    names = {
        "strategies": "strategies",
        "phases": "compile phases",
        "costs": "the cost of findings",
        "sweeps": "a sweep of shapes",
    }
    missing = [text for key, text in names.items() if not figures[key]]
    return (
        missing if not figures["sweeps"] else [t for t in missing if t != "strategies"]
    )


def _tables(run: Run) -> list[Table]:
    """The variants without a chart."""
    swept = {bench_sections.TITLES[key] for key in charts.SIZES}
    swept |= {"By batch and sequence", "By sequence and batch"}
    tables = bench_sections.variants(run)
    return [table for table in tables if table.title.partition(" (")[0] not in swept]


def _pages(findings: list[Entry]) -> Iterator[list[Entry]]:
    for start in range(0, len(findings), PAGE):
        yield findings[start : start + PAGE]


def _facts(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The environment as (name, value); each environment variable has a row."""
    for key, value in environment.items():
        if isinstance(value, Mapping):
            yield from ((str(name), str(each)) for name, each in value.items())
        elif value is not None and value != "":
            yield key, str(value)


# -- untrusted text -------------------------------------------------------------------


def visible(value: Any) -> Any:
    """The text of a template expression, with `<U+202E>` for invisible characters."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    value = value if value.isascii() else _PILED.sub(r"\1", value)
    return _HIDDEN.sub(lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", value)


def rich(text: str) -> Markup:
    """Text as HTML, with markup for `quoted code`, URLs and --flags."""
    pieces, end = [], 0
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
    environment.filters |= {"at_home": at_home, "place": run_words.place}
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
