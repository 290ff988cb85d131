"""Renders a run or a comparison in any format. Returns text and prints nothing."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping

from torchproof.measure import Comparison
from torchproof.records import Finding, Run, printable
from torchproof.report import (
    agent,
    bench,
    check,
    comparison,
    fix,
    github,
    gitlab,
    html,
    load_test,
    markdown,
    sarif,
    text,
    tune,
)
from torchproof.report.document import Block


def document(run: Run, *, verbose: bool = False) -> Iterator[Block]:
    """What is said about a run in every format."""
    if run.verb == "bench":
        return bench.document(run)
    if run.verb == "tune":
        return tune.document(run)
    if run.verb == "loadtest":
        return load_test.document(run, verbose=verbose)
    if run.verb == "fix":
        return fix.document(run, verbose=verbose)
    return check.document(run, verbose=verbose)


def _to_json(run: Run) -> str:
    """The run as one JSON document (schema 1)."""
    return json.dumps(run.to_json(), indent=1) + "\n"


_OF_RUN: dict[str, Callable[[Run], str]] = {"json": _to_json, "sarif": sarif.render}
FORMATS = ("text", "json", "md", "html", "sarif", "github", "gitlab", "agent")


def render(
    run: Run,
    format: str,
    *,
    colour: bool = False,
    width: int = 80,
    verbose: bool = False,
    source: bool = True,
    compared: Comparison | None = None,
) -> str:
    """The run in a format; colour, width and verbosity apply only to text.

    Only HTML includes the comparison.
    """
    run = run if source else without_source(run)
    if format in _OF_RUN:
        return _OF_RUN[format](run)
    if format == "html":
        return html.render(run, document(run), compared)
    if format == "md":
        return printable.seen(markdown.render(document(run)))
    if format == "github":
        return printable.seen(github.render(document(run)))
    if format == "gitlab":
        return gitlab.render(document(run))
    run = printable.record(run)
    if format == "agent":
        return agent.render(document(run))
    return text.render(document(run, verbose=verbose), width=width, colour=colour)


def render_cell(run: Run, cells: Mapping[str, str] | None = None) -> str:
    """The run as the output of a notebook cell; `cells` are new texts of cells."""
    from torchproof.report.html import cell

    return cell.render(run, document(run), render(run, "text"), cells)


def without_source(run: Run) -> Run:
    """The run without any line of the program's source."""
    sites = tuple(dataclasses.replace(s, source=None) for s in run.configuration)
    fixes = tuple(
        dataclasses.replace(
            fix, title=_without_code(fix.title), diff="", replacements=()
        )
        for fix in run.fixes
    )
    fixing = run.fixing and dataclasses.replace(
        run.fixing, remaining=tuple(map(_without_source, run.fixing.remaining))
    )
    return dataclasses.replace(
        run,
        findings=tuple(map(_without_source, run.findings)),
        configuration=sites,
        fixes=fixes,
        fixing=fixing,
    )


# Torch quotes lines of the program in a comment of a guard and in a stack; torchproof
# quotes them after the place and the function.
_QUOTED = re.compile(r'\s+(?:# |File ")')
_FRAME = re.compile(
    r"((?:in|called at) .*?(?::|, line )\d+(?: [^\s:]+)?): .*", re.DOTALL
)


def _without_source(finding: Finding) -> Finding:
    symptom = finding.symptom and dataclasses.replace(
        finding.symptom, text=_without_quotes(finding.symptom.text)
    )
    remedy = finding.remedy and dataclasses.replace(
        finding.remedy, replacements=(), title=_without_code(finding.remedy.title)
    )
    is_title = remedy is not None and remedy.title != ""
    return dataclasses.replace(
        finding,
        source=None,
        context=(),
        context_from=None,
        evidence=tuple(map(_without_quotes, finding.evidence)),
        symptom=symptom,
        remedy=remedy,
        fix=_without_code(finding.fix) if is_title else finding.fix,
    )


def _without_code(title: str) -> str:
    """The title of an edit without the lines that it takes out or writes."""
    return re.sub("`[^`]*`", "`...`", title)


def _without_quotes(text: str) -> str:
    """A text of torch's without the lines of the program that it quotes."""
    frame = _FRAME.fullmatch(text)
    return frame[1] if frame else _QUOTED.split(text)[0]


def render_findings(run: Run, *, width: int = 80) -> str:
    """The first lines and all findings, for a run that is not saved."""
    return text.render(check.brief(printable.record(run)), width=width)


def render_comparison(compared: Comparison, format: str, *, width: int = 80) -> str:
    if format == "json":
        return json.dumps(compared.to_json(), indent=1) + "\n"
    if format == "md":
        return printable.seen(markdown.render(comparison.document(compared)))
    blocks = comparison.document(printable.record(compared))
    return (
        agent.render(blocks) if format == "agent" else text.render(blocks, width=width)
    )
