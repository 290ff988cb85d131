"""A run in, text out. Nothing here prints."""

from __future__ import annotations

from collections.abc import Callable

from torchproof.records import Run
from torchproof.report import json, terminal

FORMATS: dict[str, Callable[[Run], str]] = {
    "text": terminal.render,
    "json": json.render,
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
    if format == "text":
        return terminal.render(run, colour=colour, width=width, verbose=verbose)
    return FORMATS[format](run)
