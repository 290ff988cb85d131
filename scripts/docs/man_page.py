"""The man page, from the parsers of the command line: docs/man/torchproof.1.

The wheel installs it into share/man/man1 of the environment.
"""

from __future__ import annotations

import argparse
import re
import textwrap

import tables
from tables import ROOT

import torchproof
from torchproof.cli.parser import parser

EXIT_CODES = {
    "0": "It ran and found nothing to report.",
    "1": "It ran and found something: a finding, a regression, a missed objective, a"
    " fix that is not applied, a part of this machine that does not work.",
    "2": "It could not run: wrong usage, no such target, a target that fails in eager.",
    "130": "It was interrupted; what it had measured is saved.",
}
FILES = {
    ".torchproof/runs/": "The saved runs of this folder.",
    "torchproof.toml": "A recipe: the strategy that `tune` chose.",
    "experiment-log.md": "The experiment log of `log`.",
}


def page() -> str:
    """In the macros of man(7)."""
    top = parser()
    (actions,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    return (
        tables.render(
            "man.1",
            date=_date(),
            version=torchproof.__version__,
            top=top,
            verbs=actions.choices,
            positional=_positional,
            sections={"EXIT STATUS": EXIT_CODES, "FILES": FILES},
        )
        + "\n"
    )


def _positional(parser: argparse.ArgumentParser) -> list[str]:
    return [str(a.metavar) for a in parser._actions if not a.option_strings]


def _flag(action: argparse.Action) -> str:
    """`\\fB--format\\fR \\fItext|json\\fR`."""
    names = ", ".join(rf"\fB{_plain(name)}\fR" for name in action.option_strings)
    if action.nargs == 0:
        return names
    choices = None if action.metavar else action.choices
    value = "|".join(map(str, choices)) if choices else str(action.metavar)
    return " ".join(filter(None, (names, rf"\fI{_plain(value)}\fR")))


def _date() -> str:
    """Of the release, as the changelog has it."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    dates = re.findall(r"^## \[[\d.]+\] - ([\d-]+)$", text, re.M)
    return dates[0] if dates else "unreleased"


def _paragraph(text: str | None) -> str:
    lines = textwrap.wrap(
        _plain(text), 79, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(re.sub(r"^([.'])", r"\\&\1", line) for line in lines)


def _plain(text: str | None) -> str:
    """Text without escapes or typographic dashes, in which no quotation ends."""
    escaped = (text or "").replace("%%", "%").replace("\\", r"\e").replace("-", r"\-")
    return escaped.replace("`", "").replace('"', r"\(dq")


tables.FILTERS |= {"flag": _flag, "paragraph": _paragraph, "roff": _plain}
