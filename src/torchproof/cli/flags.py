"""The flags of each verb, and what their values mean."""

from __future__ import annotations

import argparse
import ast
import math
import re
from collections.abc import Sequence
from typing import Any

from torchproof.records import SEVERITIES, UserError

FORMATS = ("text", "json", "md", "html", "sarif", "github")
LONGEST_S = 1e9  # what torchproof waits for at most: 31 years
OF_COMPARISONS = FORMATS[:3]
EFFORTS = ("static", "quick", "normal", "full")
OF_LOG: dict[str, tuple[str, ...]] = {  # its actions and their flags
    "add": ("again",),
    "plan": ("expect", "target"),
    "retrospective": ("again",),
}
SWEEPS = (
    ("--backends", "NAMES", "which layer breaks it: eager,aot_eager,inductor"),
    ("--dtype", "NAMES", "what precision and compiling give: float32,bfloat16"),
    ("--batch", "SIZES", "the factory's batch sizes, in this order: 4,8,6,1"),
    ("--sequence", "LENGTHS", "its sequence lengths, in this order: 128,160,512"),
)


def check_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help=(
            "workload:NAME, file.py:factory, package.module:factory, script.py [--"
            " args...], trace:DIR; with --effort static any file or folder"
        ),
    )
    parser.add_argument(
        "--list", action="store_true", help="name the bundled workloads and end"
    )
    run_flags(parser)
    _check_scope_flags(parser)
    output_flags(parser)


def run_flags(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("how to run it")
    run.add_argument(
        "--compile",
        metavar="KEY=VALUE,...",
        default="",
        help="arguments for torch.compile",
    )
    run.add_argument(
        "--as-written", action="store_true", help="the target does its own compiling"
    )
    run.add_argument(
        "--train", action="store_true", help="run a loss and backward() after each call"
    )
    run.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help=(
            "where a workload is built (a GPU if there is one), or a factory's module"
            " and calls are moved"
        ),
    )
    run.add_argument(
        "--size",
        metavar="NAME",
        help="size of a workload (tiny on a CPU; see check --list)",
    )
    run.add_argument(
        "--timeout", type=_seconds, metavar="S", help="end the target after S seconds"
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return min(value, LONGEST_S)


def _check_scope_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to check")
    what.add_argument(
        "--effort", choices=EFFORTS, default="normal", help="how much to check (normal)"
    )
    what.add_argument("--skip", metavar="PARTS", default="", help="parts to leave out")
    what.add_argument(
        "--select", metavar="CODES", default="", help="only these codes or prefixes"
    )
    what.add_argument(
        "--ignore", metavar="CODES", default="", help="not these codes or prefixes"
    )
    what.add_argument(
        "--fail-on",
        choices=(*SEVERITIES, "never"),
        default="high",
        help="exit 1 for an open finding of this severity or worse (high)",
    )
    what.add_argument(
        "--baseline",
        metavar="RUN",
        help="the earlier run to compare with (the latest one of this target)",
    )


def bench_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        help=(
            "workload:NAME, file.py:factory, package.module:factory, script.py [--"
            " args...]"
        ),
    )
    group = parser.add_argument_group("what to compare")
    group.add_argument(
        "--strategies",
        metavar="NAMES",
        default="",
        help=(
            "eager, full, core:METHOD, regional, nested; each with +graph (the step in"
            " one CUDA graph) and :MODE, :fullgraph, :dynamic, :static or :marks after"
            " it (eager,full,regional; on CUDA also full:reduce-overhead, full+graph,"
            " regional+graph)"
        ),
    )
    group.add_argument(
        "--modes", action="store_true", help="full in all modes of torch.compile"
    )
    group.add_argument(
        "--latency",
        action="store_true",
        help="first calls of full, regional, and core:METHOD if --strategies names it",
    )
    group.add_argument(
        "--guards",
        action="store_true",
        help="what guards cost a call, and ways to check fewer",
    )
    group.add_argument(
        "--ablate",
        metavar="SWITCHES",
        default="",
        help="Inductor's switches, each alone and all: 'max_autotune;NAME=VALUE'",
    )
    for flag, metavar, text in SWEEPS:
        group.add_argument(flag, metavar=metavar, default="", help=text)
    run_flags(parser)
    _measuring_flags(parser)
    output_flags(parser)


def _measuring_flags(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how to measure")
    how.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="sampling time of each strategy (2.4)",
    )
    how.add_argument(
        "--repeats",
        type=int,
        choices=range(1, 10),
        metavar="N",
        help="processes that sample each strategy (2); with 1 there is no warm start",
    )
    how.add_argument(
        "--profile",
        action="store_true",
        help="keep Chrome traces, graphs and generated code with the run",
    )
    how.add_argument(
        "--baseline", metavar="RUN", help="exit 1 if this run is worse than RUN"
    )


def duration(text: str) -> float:
    """`90s`, `10m`, `1h30m` or a number of seconds."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    pairs = zip(units.values(), parts.groups(), strict=True) if parts else ()
    seconds = sum(unit * float(number) for unit, number in pairs if number)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time, as in 90s, 10m or 1h")
    return min(seconds, LONGEST_S)


def show_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="id, start of an id, folder, JSON file or pack; the latest if left out",
    )
    parser.add_argument("--list", action="store_true", help="list the saved runs")
    parser.add_argument(
        "--caches", action="store_true", help="where compiled code is cached, how much"
    )
    parser.add_argument(
        "--clear",
        nargs="?",
        const="all",
        metavar="NAME",
        help="with --caches: clear that one, or all",
    )
    output_flags(parser)


def log_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=tuple(OF_LOG),
        metavar="add | plan | retrospective",
        help="an entry to add; without one, the log is printed",
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="RUN | TEXT | PLAN",
        help=(
            "the run to add (the latest), the text of the plan, the plan to look back"
            " on (the last one)"
        ),
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        default="experiment-log.md",
        help="the log, a Markdown file (experiment-log.md)",
    )
    parser.add_argument("--list", action="store_true", help="a line for each entry")
    parser.add_argument(
        "--expect",
        metavar="METRIC>=NUMBER,...",
        default="",
        help="plan: what it should give: speed>=1.2,graph_breaks=0,findings.high=0",
    )
    parser.add_argument(
        "--target",
        metavar="TARGET",
        default="",
        help="plan: only runs of this target are looked back on",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="add, retrospective: once more, though it is in the log",
    )


def assert_fit_log(options: argparse.Namespace) -> None:
    """Flags of another action would be ignored in silence."""
    allowed = OF_LOG.get(options.action, ("list",))
    for name in ("list", "expect", "target", "again"):
        if getattr(options, name) and name not in allowed:
            said = f"log {options.action}" if options.action else "log"
            raise UserError(f"torchproof {said} takes no --{name}")


def compare_flags(parser: argparse.ArgumentParser) -> None:
    for name, text in (("a", "the run to compare with"), ("b", "the run to judge")):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help=f"{text}: id, start of an id, folder or JSON file",
        )
    parser.add_argument(
        "--threshold",
        metavar="METRIC=PERCENT,...",
        default="",
        help="what counts as worse (speed=5,memory=5,tail=10,compile=20)",
    )
    output_flags(parser, OF_COMPARISONS)


def output_flags(
    parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS
) -> None:
    group = parser.add_argument_group("output")
    talk_flags(group, formats)
    if "html" in formats:
        group.add_argument(
            "--no-source", action="store_true", help="print no line of source code"
        )
    group.add_argument(
        "-o", dest="output", metavar="FILE", help="write there instead of stdout"
    )


def talk_flags(group: argparse._ArgumentGroup, formats: Sequence[str]) -> None:
    group.add_argument(
        "--format", choices=formats, default="text", help="what to print (text)"
    )
    group.add_argument(
        "-q",
        dest="quiet",
        action="store_true",
        help="no progress, no output of the target",
    )
    group.add_argument(
        "-v", dest="verbose", action="store_true", help="with all evidence"
    )


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def compile_arguments(text: str) -> dict[str, Any]:
    """`dynamic=True,mode=reduce-overhead` as keyword arguments; values are literals."""
    arguments: dict[str, Any] = {}
    for item in _split(text):
        key, equals, value = item.partition("=")
        if not equals or not key.strip().isidentifier():
            raise UserError(f"--compile: {item!r} is not KEY=VALUE")
        try:
            arguments[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            arguments[key.strip()] = value.strip()
    return arguments


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]
