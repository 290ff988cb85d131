"""The command line: the table of verbs, their parser, and the small verbs.

A verb is a function that takes the options and returns an exit code; its docstring is
its help. All print through `output`.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torchproof.cli import flags, output
from torchproof.cli.check_verb import check
from torchproof.cli.fix_and_pack import fix, pack
from torchproof.cli.loadtest_flags import loadtest_flags
from torchproof.cli.measuring_verbs import bench, loadtest, tune
from torchproof.cli.pack_flags import pack_flags
from torchproof.cli.record_verbs import compare, log, show
from torchproof.cli.tune_flags import tune_flags
from torchproof.records import UserError, line, untested_torch


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """One line, exit code 2."""
        if message.endswith("expected one argument"):  # of --launcher --standalone
            message += "; write one that begins with a dash as --flag=VALUE"
        text = f"{self.prog}: error: {message} (see {self.prog} --help)"
        self.exit(2, f"{line(text)}\n")


def main(arguments: Sequence[str] | None = None, display: Any = None) -> int:
    """Runs a command line; `display` shows progress instead of a line on stderr."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited
        # The system would forget the exit codes of children: all would look like 0.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):  # the encoding may lack a character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = parsed(list(sys.argv[1:] if arguments is None else arguments), display)
    try:
        if options.verb in (check, bench, loadtest, tune, fix, pack) and (
            text := untested_torch()
        ):
            output.note(f"note: {text}")
        code = int(options.verb(options))
        sys.stdout.flush()
        return code
    except UserError as error:
        if getattr(options, "verbose", False):
            for text in error.details.splitlines():
                output.note(text)
        output.note(f"torchproof: error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `torchproof rule | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a name that the disk cannot hold
        output.note(f"torchproof: error: {error}")
        return 2
    except Exception:  # exit code 1 would mean that there are findings
        traceback.print_exc()
        return 2


def parsed(words: list[str], display: Any = None) -> argparse.Namespace:
    """The options of a command line; a wrong one ends the process with 2."""
    cut = words.index("--") if "--" in words else len(words)
    options = _parser(*words[:1]).parse_args(words[:cut])
    options.script = words[cut + 1 :]  # arguments of the target, if it is a script
    options.command = shlex.join(["torchproof", *words])
    options.display = display
    return options


def _parser(first: str | None = None) -> argparse.ArgumentParser:
    """The parser of all verbs; of one alone if the first word names it.

    Building all of them takes longer than most verbs that print a saved run.
    """
    parser = _Parser(
        prog="torchproof",
        description=(
            "Makes torch.compile dependable: finds what goes wrong when a model"
            " compiles, measures what compiling is worth, and picks the fastest safe"
            " strategy."
        ),
        epilog="example: torchproof check workload:gpt-original",
    )
    from torchproof import __version__

    parser.add_argument(
        "--version", action="version", version=f"torchproof {__version__}"
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    known = {function.__name__: (function, *rest) for function, *rest in _verbs()}
    for verb, add_flags, example in [known[first]] if first in known else _verbs():
        add_flags(_verb(verbs, verb, example))
    return parser


def _verbs() -> tuple[tuple[Any, Callable[[argparse.ArgumentParser], None], str], ...]:
    """Each verb with its flags and an example."""
    return (
        (check, flags.check_flags, "torchproof check train.py -- --epochs 1"),
        (bench, flags.bench_flags, "torchproof bench workload:gpt --modes"),
        (
            loadtest,
            loadtest_flags,
            "torchproof loadtest workload:gpt --rate 20 --slo p99=50ms",
        ),
        (tune, tune_flags, "torchproof tune workload:gpt --budget 5m"),
        (fix, flags.fix_flags, "torchproof fix workload:nanovlm-original"),
        (pack, pack_flags, "torchproof pack train.py:make --for repro"),
        (compare, flags.compare_flags, "torchproof compare before.json after"),
        (show, flags.show_flags, "torchproof show --list"),
        (log, flags.log_flags, 'torchproof log plan "fix the breaks"'),
        (rule, flags.rule_flags, "torchproof rule GB101"),
        (mcp, flags.mcp_flags, "torchproof mcp --directory ~/project"),
        (doctor, flags.doctor_flags, "torchproof doctor --format md"),
        (completion, flags.completion_flags, 'eval "$(torchproof completion bash)"'),
    )


def _verb(verbs: Any, function: Any, example: str) -> argparse.ArgumentParser:
    text = function.__doc__
    parser: argparse.ArgumentParser = verbs.add_parser(
        function.__name__, help=text, description=text, epilog=f"example: {example}"
    )
    parser.set_defaults(verb=function)
    return parser


def rule(options: argparse.Namespace) -> int:
    """Explain a rule; without a code, list all rules."""
    from torchproof import report

    if options.code:
        print(report.rule_page(options.code))
    else:
        print(report.rule_list())
    return 0


def mcp(options: argparse.Namespace) -> int:
    """Serve check, explain, fix, bench and compare to coding agents, over stdio."""
    for name in ("mcp", "anyio", "pydantic"):
        if importlib.util.find_spec(name) is None:
            raise UserError("mcp needs the MCP SDK: pip install 'torchproof[mcp]'")
    from torchproof.cli import mcp_server

    try:
        os.chdir(options.directory)
    except OSError as error:
        raise UserError(f"--directory {options.directory}: {error.strerror}") from None
    if sys.stdin.isatty():
        output.note("torchproof: serves an MCP client on stdin and stdout; Ctrl-C ends")
    mcp_server.serve()
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Try what torchproof needs on this machine; exit code 1 if something is broken."""
    from torchproof import api
    from torchproof.report import machine

    output.assert_writable(options.output)
    with output.plain_progress(options.quiet) as progress:
        checks = api.examine(progress)
    width, verbose = output.width(options), options.verbose
    text = machine.render(checks, options.format, width=width, verbose=verbose)
    output.write(text, options)
    return int(any(check.is_problem for check in checks))


def completion(options: argparse.Namespace) -> int:
    """Print the script that completes verbs, flags, targets and runs in your shell."""
    from torchproof.cli.completion import SCRIPTS, complete

    if (options.shell is None) == (options.line is None):
        raise UserError(f"completion needs a shell: {', '.join(SCRIPTS)}")
    if options.line is not None:
        sys.stdout.write(complete(options.line, _parser))
    else:
        sys.stdout.write(SCRIPTS[options.shell])
    return 0
