"""Renders a run or a comparison in any format. Returns text and prints nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

from torchproof.measure import Comparison
from torchproof.records import Finding, Run, printable
from torchproof.report import (
    agent,
    bench,
    comparison_text,
    fixes,
    github,
    gitlab,
    html,
    load_test,
    markdown,
    sarif,
    terminal,
    tune,
)


def _to_json(run: Run) -> str:
    """The run as one JSON document (schema 1)."""
    return json.dumps(run.to_json(), indent=1) + "\n"


FORMATS: dict[str, Callable[[Run], str]] = {
    "text": terminal.render,
    "json": _to_json,
    "md": markdown.render,
    "html": html.render,
    "sarif": sarif.render,
    "github": github.render,
    "gitlab": gitlab.render,
    "agent": agent.render,
}


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
    if format == "html":
        return html.render(run, compared)
    if format not in ("text", "agent"):
        text = FORMATS[format](run)
        return printable.seen(text) if format in ("md", "github") else text
    run = printable.record(run)
    if format == "agent":
        return agent.render(run)
    if run.verb == "bench":
        return bench.render(run, width=width)
    if run.verb == "tune":
        return tune.render(run, width=width)
    if run.verb == "loadtest":
        return load_test.render(run, width=width, verbose=verbose)
    if run.verb == "fix":
        return fixes.render(run, colour=colour, width=width, verbose=verbose)
    return terminal.render(run, colour=colour, width=width, verbose=verbose)


def render_cell(run: Run, cells: Mapping[str, str] | None = None) -> str:
    """The run as the output of a notebook cell; `cells` are new texts of cells."""
    from torchproof.report.html import cell

    return cell.render(run, render(run, "text"), cells)


def without_source(run: Run) -> Run:
    """The run without any line of the program's source."""
    sites = tuple(dataclasses.replace(s, source=None) for s in run.configuration)
    fixes = tuple(
        dataclasses.replace(fix, diff="", replacements=()) for fix in run.fixes
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


def _without_source(finding: Finding) -> Finding:
    # Torch quotes lines of the program after the name of the file.
    return dataclasses.replace(
        finding,
        source=None,
        context=(),
        context_from=None,
        evidence=tuple(text.partition(' # File "')[0] for text in finding.evidence),
    )


def render_findings(run: Run, *, width: int = 80) -> str:
    return terminal.findings(printable.record(run), width=width)


def render_comparison(comparison: Comparison, format: str, *, width: int = 80) -> str:
    if format == "json":
        return comparison_text.to_json(comparison)
    if format == "md":
        return printable.seen(markdown.of_comparison(comparison))
    if format == "agent":
        return agent.of_comparison(printable.record(comparison))
    return comparison_text.to_text(printable.record(comparison), width=width)
