"""The parser of the command line, made from the options of the commands."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from torchproof import __version__
from torchproof.cli.commands import COMMANDS, Command
from torchproof.records import UserError
from torchproof.records.option import OptionField, made, options_of

DESCRIPTION = (
    "Makes torch.compile dependable: finds what goes wrong when a model compiles,"
    " measures what compiling is worth, and picks the fastest safe strategy."
)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **settings, allow_abbrev=False, argument_default=argparse.SUPPRESS
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def parsed(words: Sequence[str], display: Any = None) -> Command:
    """The command of a command line."""
    cut = words.index("--") if "--" in words else len(words)
    parsed = vars(parser(*words[:1]).parse_args(words[:cut]))
    kind = COMMANDS[parsed.pop("verb")]
    values = {key: value for key, value in parsed.items() if value is not None}
    flags = [each.flag for each in options_of(kind) if each.flag and each.key in values]
    context = {
        "script": tuple(words[cut + 1 :]),
        "line": shlex.join(["torchproof", *words]),
        "flags": tuple(flags),
        "display": display,
    }
    return made(kind, values | context)


def parser(first: str | None = None) -> argparse.ArgumentParser:
    """The parser of all verbs; of one alone if the first word names it.

    Building all of them takes longer than most verbs that print a saved run.
    """
    top = _Parser(
        prog="torchproof",
        description=DESCRIPTION,
        epilog="example: torchproof check workload:gpt-original",
    )
    top.add_argument("--version", action="version", version=f"torchproof {__version__}")
    verbs = top.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=_Parser
    )
    for verb in [first] if first in COMMANDS else COMMANDS:
        kind = COMMANDS[verb]
        text = kind.__doc__
        epilog = f"example: {kind.EXAMPLE}"
        one = verbs.add_parser(verb, help=text, description=text, epilog=epilog)
        _add_options(one, kind)
    return top


def _add_options(parser: argparse.ArgumentParser, kind: type[Command]) -> None:
    groups: dict[str, Any] = {"": parser}
    exclusive: dict[str, Any] = {}
    for each in options_of(kind):
        name = each.option.group
        if name not in groups:
            title, _, text = name.partition("\n")
            groups[name] = parser.add_argument_group(title, text or None)
        group = groups[name]
        if each.option.exclusive:
            if name not in exclusive:
                exclusive[name] = group.add_mutually_exclusive_group()
            group = exclusive[name]
        _add(group, each)


def _add(group: Any, each: OptionField) -> None:
    settings: dict[str, Any] = {"help": each.option.help.replace("%", "%%")}
    if each.is_switch:
        settings |= {"action": "store_const", "const": not each.default}
    else:
        settings |= {"metavar": each.shown_value, "type": each.read}
    if each.option.const is not None:
        settings |= {"nargs": "?", "const": each.option.const}
    if each.flag:
        settings |= {"dest": each.key, "required": each.is_required}
    elif not each.is_required:
        settings |= {"nargs": "?", "default": None}
    group.add_argument(each.flag or each.key, **settings)
