"""The flags of `tune`."""

from __future__ import annotations

import argparse
import math

from torchproof.cli import flags


def tune_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="workload:NAME, file.py:factory, package.module:factory",
    )
    what = parser.add_argument_group("what to find")
    what.add_argument(
        "--objective",
        metavar="NAME",
        default="step",
        help=(
            "what to minimise: step, first (the first call, among strategies faster"
            " than eager), memory, or steps:N, the time of N steps with compilation"
            " (default: step)"
        ),
    )
    what.add_argument(
        "--budget",
        type=flags.duration,
        metavar="TIME",
        default="10m",
        help="time limit of the search: 90s, 10m, 1h (default: 10m)",
    )
    what.add_argument(
        "--min-gain",
        type=_factor,
        metavar="X",
        default=1.05,
        help="least gain over eager for a recipe (default: 1.05)",
    )
    what.add_argument(
        "--effort",
        choices=("quick", "normal", "full"),
        default="normal",
        help=(
            "how many candidates to try: quick 4, normal 8, full all that apply"
            " (default: normal)"
        ),
    )
    what.add_argument(
        "--strategies", metavar="NAMES", default="", help="search only among these"
    )
    _tune_answer_flags(parser)
    flags.run_flags(parser)
    flags.rank_flags(parser, "run each trial on N ranks; the slowest rank counts")
    flags.output_flags(parser)


def _tune_answer_flags(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how to search, and where to write the recipe")
    how.add_argument(
        "--recipe",
        metavar="FILE",
        default="torchproof.toml",
        help="where to write the recipe (default: torchproof.toml)",
    )
    how.add_argument(
        "--overwrite", action="store_true", help="replace an existing recipe"
    )
    how.add_argument(
        "--resume",
        action="store_true",
        help="reuse trials of the last search with the same target, code and machine",
    )
    how.add_argument(
        "--ray", metavar="ADDRESS", help="run trials on this Ray cluster (extra ray)"
    )


def _factor(text: str) -> float:
    value = float(text)
    if not 1 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a factor of 1 or more")
    return value
