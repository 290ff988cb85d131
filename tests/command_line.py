"""The verbs and flags of the command line, from its own commands."""

from __future__ import annotations

from torchproof.cli.commands import COMMANDS, Command
from torchproof.records.option import options_of

HELP = {"-h", "--help"}


def flags(kind: type[Command]) -> set[str]:
    """The flags of a command and the names of its arguments."""
    return HELP | {each.flag or each.option.metavar for each in options_of(kind)}


FLAGS = {"": {*HELP, "--version"}} | {v: flags(kind) for v, kind in COMMANDS.items()}
