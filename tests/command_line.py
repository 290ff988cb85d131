"""The verbs and flags of the command line, from its own parsers."""

from __future__ import annotations

import argparse

from torchproof.cli import verbs


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a parser and the names of its positional arguments."""
    found: set[str] = set()
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            found |= set(action.option_strings) or {str(action.metavar)}
    return found


def parsers(verb: str | None = None) -> dict[str, argparse.ArgumentParser]:
    """The parser of each verb; `main` builds that of the verb it runs alone."""
    top = verbs._parser(verb) if verb else verbs._parser()
    (actions,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    return {"": top, **actions.choices}


PARSER = verbs._parser()
FLAGS = {verb: flags(parser) for verb, parser in parsers().items()}
