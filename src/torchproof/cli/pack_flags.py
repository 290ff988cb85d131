"""The flags of `pack`."""

from __future__ import annotations

import argparse

from torchproof.cli import flags
from torchproof.records import UserError

PURPOSES = ("repro", "deploy")
ARTIFACTS = ("caches", "aoti", "torchscript")
INCLUDED = ("source", "weights")
_OF_PURPOSE = {
    "repro": ("select", "effort", "minify", "budget", "include"),
    "deploy": ("recipe", "strategy", "artifact", "key"),
}


def pack_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="TARGET | RUN",
        help=(
            "workload:NAME, file.py:factory, package.module:factory, script.py [--"
            " args...]; for repro also a saved run of check: id, start of an id, folder"
            " or JSON file"
        ),
    )
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=PURPOSES,
        required=True,
        help=(
            "repro: one archive that shows a failure with torch alone; deploy: a folder"
            " from which torchproof.load starts without compiling"
        ),
    )
    _repro_flags(parser)
    _deploy_flags(parser)
    flags.run_flags(parser)
    group = parser.add_argument_group("output")
    group.add_argument("-o", dest="dest", metavar="PATH", help="where the pack goes")
    group.add_argument(
        "--overwrite", action="store_true", help="replace a pack that is there"
    )
    flags.talk_flags(group, flags.OF_COMPARISONS)


def _repro_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("for repro")
    what.add_argument(
        "--select",
        metavar="CODES",
        help="the finding to show: GB101, or GB101@model.py:42 (the most severe one)",
    )
    what.add_argument(
        "--effort",
        choices=flags.EFFORTS[1:],
        help="how much to check a TARGET before (normal)",
    )
    what.add_argument(
        "--minify",
        action="store_true",
        help="shrink what fails as far as it still fails in the same way",
    )
    what.add_argument(
        "--budget",
        type=flags.duration,
        metavar="TIME",
        help="how long shrinking may take: 90s, 5m (2m)",
    )
    what.add_argument(
        "--include",
        metavar="KINDS",
        help="what else may go in: source, weights",
    )


def _deploy_flags(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("for deploy")
    how.add_argument(
        "--recipe", metavar="FILE", help="how to run it, as torchproof tune wrote it"
    )
    how.add_argument(
        "--strategy", metavar="NAME", help="how to run it, without a recipe (full)"
    )
    how.add_argument(
        "--artifact",
        choices=ARTIFACTS,
        help=(
            "caches: for the model's own code; aoti: a package that needs none of it;"
            " torchscript: a trace for old runtimes (caches)"
        ),
    )
    how.add_argument(
        "--key",
        metavar="FILE",
        help=(
            "sign the pack with this key (the file that TORCHPROOF_PACK_KEY names); who"
            " loads it needs the same"
        ),
    )


def assert_fit(options: argparse.Namespace) -> None:
    """Flags of the other purpose would be ignored in silence."""
    for purpose, names in _OF_PURPOSE.items():
        for name in names if purpose != options.purpose else ():
            if getattr(options, name):
                raise UserError(f"pack --for {options.purpose} takes no --{name}")
    wrong = set(flags.names(options.include or "")) - set(INCLUDED)
    if wrong:
        known = ", ".join(INCLUDED)
        raise UserError(f"--include {', '.join(sorted(wrong))}: choose among {known}")
    if options.recipe and options.strategy:
        raise UserError("--recipe and --strategy both say how to run it: choose one")
