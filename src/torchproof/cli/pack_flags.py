"""The flags of `pack`."""

from __future__ import annotations

import argparse

from torchproof.cli import flags
from torchproof.records import UserError

PURPOSES = ("repro", "deploy")
ARTIFACTS = ("caches", "aoti")
INCLUDED = ("source", "weights")
_FLAGS_OF = {
    "repro": ("select", "effort", "minify", "budget", "include"),
    "deploy": ("recipe", "strategy", "artifact", "key", "ranks", "wrap"),
}


def pack_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="TARGET | RUN",
        help=(
            "workload:NAME, file.py:factory, package.module:factory, script.py [--"
            " args...]; for repro also a saved run of check: id, start of an id,"
            " directory or JSON file"
        ),
    )
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=PURPOSES,
        required=True,
        help=(
            "repro: an archive that reproduces a failure and needs only torch; deploy:"
            " a directory that torchproof.load starts from without compiling"
        ),
    )
    _repro_flags(parser)
    _deploy_flags(parser)
    flags.run_flags(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", dest="dest", metavar="PATH", help="where to write the pack"
    )
    group.add_argument(
        "--overwrite", action="store_true", help="replace an existing pack"
    )
    flags.talk_flags(group, flags.PLAIN_FORMATS)


def _repro_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("for repro")
    what.add_argument(
        "--select",
        metavar="CODES",
        help="finding to reproduce: GB101, or GB101@model.py:42 (default: the worst)",
    )
    what.add_argument(
        "--effort",
        choices=flags.EFFORTS[1:],
        help="how thoroughly to check a TARGET first (default: normal)",
    )
    what.add_argument(
        "--minify",
        action="store_true",
        help="shrink the program as long as it fails in the same way",
    )
    what.add_argument(
        "--budget",
        type=flags.duration,
        metavar="TIME",
        help="time limit for shrinking: 90s, 5m (default: 2m)",
    )
    what.add_argument(
        "--include",
        metavar="KINDS",
        help="also include: source, weights",
    )


def _deploy_flags(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("for deploy")
    how.add_argument(
        "--recipe",
        metavar="FILE",
        help="recipe to compile with, written by torchproof tune",
    )
    how.add_argument(
        "--strategy",
        metavar="NAME",
        help="strategy to compile with, without a recipe (default: full)",
    )
    how.add_argument(
        "--artifact",
        choices=ARTIFACTS,
        help=(
            "caches: compile caches for the model's code; aoti: a package that does not"
            " need that code (default: caches)"
        ),
    )
    how.add_argument(
        "--key",
        metavar="FILE",
        help=(
            "sign the pack with this private Ed25519 key; loading verifies it with the"
            " public key"
        ),
    )
    how.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="build and verify on N ranks: for a model with collectives in its code",
    )
    how.add_argument(
        "--wrap",
        choices=("tp", "ddp", "fsdp2", "tp+fsdp2"),
        help=(
            "with tp, the ranks divide the layers of the model by its plan; ddp needs"
            " no pack of its own, and fsdp2 has none"
        ),
    )


def assert_fit(options: argparse.Namespace) -> None:
    """Refuses flags of the other purpose, which would have no effect."""
    for purpose, names in _FLAGS_OF.items():
        for name in names if purpose != options.purpose else ():
            if getattr(options, name):
                raise UserError(f"pack --for {options.purpose} does not take --{name}")
    unknown = set(flags.names(options.include or "")) - set(INCLUDED)
    if unknown:
        choices = ", ".join(INCLUDED)
        raise UserError(
            f"--include {', '.join(sorted(unknown))}: choose from {choices}"
        )
    if options.recipe and options.strategy:
        raise UserError("--recipe and --strategy exclude each other")
