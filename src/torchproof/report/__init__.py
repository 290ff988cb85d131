"""A run or a comparison in, text out. Nothing here prints."""

from __future__ import annotations

from collections.abc import Callable

from torchproof.records import Run
from torchproof.report import bench, comparison, json, markdown, terminal
from torchproof.verdict import Comparison

FORMATS: dict[str, Callable[[Run], str]] = {
    "text": terminal.render,
    "json": json.render,
    "md": markdown.render,
}


def render(
    run: Run,
    format: str,
    *,
    colour: bool = False,
    width: int = 80,
    verbose: bool = False,
) -> str:
    """The run in a format; colour, width and verbosity are the terminal's alone."""
    if format != "text":
        return FORMATS[format](run)
    if run.verb == "bench":
        return bench.render(run, width=width)
    return terminal.render(run, colour=colour, width=width, verbose=verbose)


def render_comparison(found: Comparison, format: str, *, width: int = 80) -> str:
    if format == "json":
        return comparison.to_json(found)
    if format == "md":
        return markdown.of_comparison(found)
    return comparison.to_text(found, width=width)
