"""The man page, from the options of the commands: docs/man/torchproof.1.

The wheel installs it into share/man/man1 of the environment.
"""

from __future__ import annotations

import re
import textwrap

import tables
from tables import ROOT

import torchproof
from torchproof.cli.commands import COMMANDS
from torchproof.cli.parser import DESCRIPTION
from torchproof.records.option import OptionField, options_of

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
    return (
        tables.render(
            "man.1",
            date=_date(),
            version=torchproof.__version__,
            description=DESCRIPTION,
            verbs=COMMANDS,
            options_of=options_of,
            by_group=_by_group,
            sections={"EXIT STATUS": EXIT_CODES, "FILES": FILES},
        )
        + "\n"
    )


def _by_group(options: list[OptionField]) -> list[tuple[str, list[OptionField]]]:
    """The flags by the titles of their groups; those without a group come first."""
    groups: dict[str, list[OptionField]] = {"": []}
    for each in options:
        if each.flag:
            groups.setdefault(each.option.group.partition("\n")[0], []).append(each)
    return [*groups.items()]


def _flag(each: OptionField) -> str:
    """`\\fB--format\\fR \\fItext|json\\fR`."""
    value = each.option.metavar or "|".join(each.option.choices)
    shown = rf"\fI{_plain(value)}\fR" if value else ""
    name = rf"\fB{_plain(each.flag)}\fR" if each.flag else ""
    return f"{name} {shown}".strip()


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
    escaped = (text or "").replace("\\", r"\e").replace("-", r"\-")
    return escaped.replace("`", "").replace('"', r"\(dq")


tables.FILTERS |= {"flag": _flag, "paragraph": _paragraph, "roff": _plain}
