"""The flags of each verb, and what their values mean."""

from __future__ import annotations

import argparse
import ast
import contextlib
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchproof.cli.completion import SHELLS
from torchproof.records import SEVERITIES, UserError

if TYPE_CHECKING:
    from torchproof.api import Options

FORMATS = ("text", "json", "md", "html", "sarif", "github", "gitlab", "agent")
LONGEST_S = 1e9  # the longest timeout: 31 years
PLAIN_FORMATS = FORMATS[:3]
COMPARISON_FORMATS = (*PLAIN_FORMATS, "agent")
EFFORTS = ("static", "quick", "normal", "full")
LOG_ACTIONS: dict[str, tuple[str, ...]] = {  # each action of `log` with its flags
    "add": ("again",),
    "plan": ("expect", "target"),
    "retrospective": ("again",),
}
SWEEPS = (
    (
        "--backends",
        "NAMES",
        "compare backends, to find the layer that fails: eager,aot_eager,inductor",
    ),
    ("--dtype", "NAMES", "compare precisions: float32,bfloat16"),
    ("--batch", "SIZES", "batch sizes for the factory, in this order: 4,8,6,1"),
    (
        "--sequence",
        "LENGTHS",
        "sequence lengths for the factory, in this order: 128,160,512",
    ),
)


def check_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help=(
            "workload:NAME, file.py:factory, package.module:factory, script.py [--"
            " args...], trace:DIR; with --effort static, any file or directory"
        ),
    )
    parser.add_argument(
        "--list", action="store_true", help="list the bundled workloads and exit"
    )
    run_flags(parser)
    _observed_rank_flags(parser)
    _check_scope_flags(parser)
    trace_flag(output_flags(parser))


def run_flags(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("how to run it")
    run.add_argument(
        "--compile",
        metavar="KEY=VALUE,...",
        default="",
        help="arguments for torch.compile",
    )
    run.add_argument(
        "--as-written",
        action="store_true",
        help="the target calls torch.compile itself",
    )
    run.add_argument(
        "--train", action="store_true", help="run a loss and backward() after each call"
    )
    run.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help=(
            "device for the model and its inputs (default for workloads: the GPU, if"
            " there is one)"
        ),
    )
    run.add_argument(
        "--size",
        metavar="NAME",
        help="size of a workload (default on a CPU: tiny; see check --list)",
    )
    run.add_argument(
        "--timeout", type=_seconds, metavar="S", help="stop the target after S seconds"
    )


def rank_flags(
    parser: argparse.ArgumentParser, purpose: str
) -> argparse._ArgumentGroup:
    """The flags that start several ranks; `purpose` says what is done with them."""
    ranks = parser.add_argument_group("several ranks")
    ranks.add_argument("--ranks", type=int, metavar="N", help=purpose)
    ranks.add_argument(
        "--wrap",
        choices=("ddp", "fsdp2", "tp", "tp+fsdp2"),
        help="what wraps the model of a factory on each rank",
    )
    return ranks


def _observed_rank_flags(parser: argparse.ArgumentParser) -> None:
    ranks = rank_flags(
        parser, "start N ranks with torch's launcher, observe each, and compare them"
    )
    ranks.add_argument(
        "--launcher",
        metavar="OPTIONS",
        default="",
        help=(
            'options for torch\'s launcher: "--nnodes 2 --rdzv-endpoint host:29500";'
            " one without a space needs an equals sign: --launcher=--standalone"
        ),
    )


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return min(float(text), LONGEST_S)
    raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")


def _check_scope_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to check")
    what.add_argument(
        "--effort",
        choices=EFFORTS,
        default="normal",
        help="how much to check (default: normal)",
    )
    what.add_argument(
        "--skip", metavar="PARTS", default="", help="parts of the check to skip"
    )
    what.add_argument(
        "--select",
        metavar="CODES",
        default="",
        help="report only these codes or prefixes",
    )
    what.add_argument(
        "--ignore",
        metavar="CODES",
        default="",
        help="do not report these codes or prefixes",
    )
    what.add_argument(
        "--fail-on",
        choices=(*SEVERITIES, "never"),
        default="high",
        help="exit 1 on an open finding of this severity or worse (default: high)",
    )
    what.add_argument(
        "--baseline",
        metavar="RUN",
        help="earlier run to compare with (default: the latest of this target)",
    )


def fix_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        help=(
            "workload:NAME, file.py:factory or package.module:factory; with --write or"
            " --patch also a run of fix, which is not proved again"
        ),
    )
    what = parser.add_argument_group("what to fix")
    what.add_argument(
        "--unsafe",
        action="store_true",
        help=(
            "also fixes that change something besides the values while compiling: the"
            " random numbers, a log line, a check, a mask that masks nothing"
        ),
    )
    what.add_argument(
        "--select",
        metavar="CODES",
        default="",
        help="fix only findings with these codes or prefixes",
    )
    what.add_argument(
        "--effort",
        choices=EFFORTS[1:],
        default="normal",
        help="above quick, generated code is compared and timed (default: normal)",
    )
    where = parser.add_argument_group("what to write").add_mutually_exclusive_group()
    where.add_argument(
        "--write", action="store_true", help="apply the verified fixes to your files"
    )
    where.add_argument(
        "--patch",
        metavar="DIR",
        help="write fixes of library code into DIR, for torchproof.apply_patches(DIR)",
    )
    run_flags(parser)
    output_flags(parser)


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
            "eager, full, core:METHOD, regional, nested; append +graph to capture the"
            " step in one CUDA graph, or :MODE, :fullgraph, :dynamic, :static, :marks"
            " (default: eager,full,regional; on CUDA also full:reduce-overhead,"
            " full+graph,regional+graph)"
        ),
    )
    group.add_argument(
        "--modes", action="store_true", help="compare all modes of torch.compile"
    )
    group.add_argument(
        "--latency",
        action="store_true",
        help="compare first calls of full, regional, and core:METHOD if given",
    )
    group.add_argument(
        "--guards",
        action="store_true",
        help="measure what guards cost per call, and ways to check fewer",
    )
    group.add_argument(
        "--ablate",
        metavar="SWITCHES",
        default="",
        help="change Inductor settings, one by one and all: 'max_autotune;NAME=VALUE'",
    )
    for flag, metavar, text in SWEEPS:
        group.add_argument(flag, metavar=metavar, default="", help=text)
    run_flags(parser)
    rank_flags(parser, "run each strategy on N ranks; the slowest rank counts")
    _measuring_flags(parser)
    trace_flag(output_flags(parser))


def _measuring_flags(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how to measure")
    how.add_argument(
        "--effort",
        choices=EFFORTS[1:],
        default="normal",
        help=(
            "quick: one process per strategy and half the sampling time, no warm start;"
            " full: five processes, for intervals that cover them (default: normal)"
        ),
    )
    how.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="sampling time per strategy (default: 2.4, or as --effort says)",
    )
    how.add_argument(
        "--repeats",
        type=int,
        choices=range(1, 10),
        metavar="N",
        help=(
            "fresh processes per strategy (default: 2, or as --effort says); 1 measures"
            " no warm start"
        ),
    )
    how.add_argument(
        "--steps-only",
        action="store_true",
        help=(
            "time steps, not first calls: all strategies compile at the same time, and"
            " breaks are not counted"
        ),
    )
    how.add_argument(
        "--profile",
        action="store_true",
        help="save Chrome traces, graphs and generated code with the run",
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
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration such as 90s, 10m or 1h"
        )
    return min(seconds, LONGEST_S)


def show_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="id, start of an id, directory, JSON file or pack (default: latest run)",
    )
    parser.add_argument("--list", action="store_true", help="list the saved runs")
    parser.add_argument(
        "--caches",
        action="store_true",
        help="list torch's compile caches and their size",
    )
    parser.add_argument(
        "--clear",
        nargs="?",
        const="all",
        metavar="NAME",
        help="with --caches: delete the cache NAME, or all of them",
    )
    output_flags(parser)


def log_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=tuple(LOG_ACTIONS),
        metavar="add | plan | retrospective",
        help="the kind of entry to add (default: print the log)",
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="RUN | TEXT | PLAN",
        help=(
            "add: the run (default: the latest); plan: its text; retrospective: the"
            " plan (default: the last one)"
        ),
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        default="experiment-log.md",
        help="the log, a Markdown file (default: experiment-log.md)",
    )
    parser.add_argument("--list", action="store_true", help="print one line per entry")
    parser.add_argument(
        "--expect",
        metavar="METRIC>=NUMBER,...",
        default="",
        help="plan: expected results: speed>=1.2,graph_breaks=0,findings.high=0",
    )
    parser.add_argument(
        "--target",
        metavar="TARGET",
        default="",
        help="plan: compare only runs of this target",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="add, retrospective: add it even if the log has it already",
    )


def assert_fit_log(options: argparse.Namespace) -> None:
    """Refuses flags of another action, which would have no effect."""
    allowed = LOG_ACTIONS.get(options.action, ("list",))
    for name in ("list", "expect", "target", "again"):
        if getattr(options, name) and name not in allowed:
            command = f"log {options.action}" if options.action else "log"
            raise UserError(f"torchproof {command} does not take --{name}")


def rule_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "code", nargs="?", metavar="CODE", help="code of a rule (default: list all)"
    )


def completion_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        nargs="?",
        choices=SHELLS,
        metavar=" | ".join(SHELLS),
        help="print the script for this shell",
    )
    parser.add_argument(
        "--line",
        metavar="TEXT",
        help="print what may follow this command line; the scripts call this",
    )


def mcp_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        metavar="DIR",
        default=".",
        help="directory of the project, for targets and runs (default: this one)",
    )


def doctor_flags(parser: argparse.ArgumentParser) -> None:
    output_flags(parser, PLAIN_FORMATS)


def compare_flags(parser: argparse.ArgumentParser) -> None:
    for name, text in (("a", "the earlier run"), ("b", "the run to judge")):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help=f"{text}: id, start of an id, directory or JSON file",
        )
    parser.add_argument(
        "--threshold",
        metavar="METRIC=PERCENT,...",
        default="",
        help="what is worse (default: speed=5,memory=5,tail=10,compile=20)",
    )
    output_flags(parser, COMPARISON_FORMATS)


def output_flags(
    parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS
) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("output")
    talk_flags(group, formats)
    if "html" in formats:
        group.add_argument(
            "--no-source", action="store_true", help="leave out source code"
        )
    group.add_argument(
        "-o", dest="output", metavar="FILE", help="write to FILE instead of stdout"
    )
    return group


def trace_flag(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="also write a timeline of compilations, calls and ranks, for Perfetto",
    )


def talk_flags(group: argparse._ArgumentGroup, formats: Sequence[str]) -> None:
    group.add_argument(
        "--format",
        choices=formats,
        default="text",
        help="output format (default: text)",
    )
    group.add_argument(
        "-q",
        dest="quiet",
        action="store_true",
        help="hide progress and the target's output",
    )
    group.add_argument(
        "-v", dest="verbose", action="store_true", help="show all evidence"
    )


def without(words: Sequence[str], *flags: str) -> list[str]:
    """A command line without some flags that take a value."""
    remaining: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in flags:
            next(rest, None)
        elif word.partition("=")[0] not in flags:
            remaining.append(word)
    return remaining


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def run_options(options: argparse.Namespace) -> Options:
    """How a target runs, as the flags of a verb say."""
    from torchproof import api

    return api.Options(
        compile=compile_arguments(options.compile),
        as_written=options.as_written,
        train=options.train,
        device=options.device,
        size=options.size,
        timeout_s=options.timeout,
        quiet=options.quiet,
    )


def compile_arguments(text: str) -> dict[str, Any]:
    """`dynamic=true,mode=reduce-overhead` as keyword arguments."""
    arguments: dict[str, Any] = {}
    for item in _split(text):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key.isidentifier():
            raise UserError(f"--compile: {item!r} is not KEY=VALUE")
        arguments[key] = _switch(key, value) if key in _SWITCHES else _literal(value)
    return arguments


_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
# The arguments of torch.compile that are true or false, and the words for neither.
_SWITCHES = {"dynamic": ("auto", "none"), "fullgraph": (), "disable": ()}


def _switch(key: str, value: str) -> bool | None:
    word, neither = value.lower(), _SWITCHES[key]
    if word in neither:
        return None
    if word not in _WORDS:
        words = [*_WORDS, *neither]
        accepted = f"{', '.join(words[:-1])} or {words[-1]}"
        raise UserError(f"--compile: {key}={value} is not known: give {accepted}")
    return _WORDS[word]


def _literal(value: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


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
