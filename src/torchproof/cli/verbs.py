"""The command line: what each command runs, and the small verbs.

A verb is a function of its command (`commands.py`) that returns an exit code. All print
through `output`.
"""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from torchproof.cli import commands, output
from torchproof.cli.check_verb import check
from torchproof.cli.fix_and_pack import fix, pack
from torchproof.cli.measuring_verbs import bench, loadtest, tune
from torchproof.cli.parser import parsed
from torchproof.cli.record_verbs import compare, log, show
from torchproof.records import UserError, untested_torch
from torchproof.records.options import Options


def main(arguments: Sequence[str] | None = None, display: Any = None) -> int:
    """Runs a command line; `display` shows progress instead of a line on stderr."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited
        # The system would forget the exit codes of children: all would look like 0.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):  # the encoding may lack a character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = parsed(words, display)
        if isinstance(command, Options) and (text := untested_torch()):
            output.note(f"note: {text}")
        code = int(_VERBS[type(command)](command))
        sys.stdout.flush()
        return code
    except UserError as error:
        if "-v" in words:
            for text in error.details.splitlines():
                output.note(text)
        return _failed(error, display)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `torchproof rule | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a name that the disk cannot hold
        return _failed(error, display)
    except Exception as error:  # exit code 1 would mean that there are findings
        traceback.print_exc()
        return _failed(error, display)


def _failed(error: Exception, display: Any) -> int:
    kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
    output.note(f"torchproof: error: {kind}{error}")
    if display is not None:
        display.error = f"{kind}{error}"
    return 2


def rule(options: commands.Rule) -> int:
    from torchproof import report

    if options.code:
        print(report.rule_page(options.code))
    else:
        print(report.rule_list())
    return 0


def mcp(options: commands.Mcp) -> int:
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


def doctor(options: commands.Doctor) -> int:
    from torchproof import api
    from torchproof.report import machine

    output.assert_writable(options.output)
    with output.plain_progress(options.quiet) as progress:
        checks = api.examine(progress)
    width, verbose = output.width(options), options.verbose
    text = machine.render(checks, options.format, width=width, verbose=verbose)
    output.write(text, options)
    return int(any(check.is_problem for check in checks))


def completion(options: commands.Completion) -> int:
    from torchproof.cli.completion import SCRIPTS, complete

    shell, until = options.shell, options.until
    if (shell is None) == (until is None):
        raise UserError(f"completion needs a shell: {', '.join(SCRIPTS)}")
    sys.stdout.write(SCRIPTS[shell] if shell else complete(until or ""))
    return 0


_VERBS: dict[type[commands.Command], Callable[[Any], int]] = {
    commands.Check: check,
    commands.Bench: bench,
    commands.Loadtest: loadtest,
    commands.Tune: tune,
    commands.Fix: fix,
    commands.Pack: pack,
    commands.Compare: compare,
    commands.Show: show,
    commands.Log: log,
    commands.Rule: rule,
    commands.Mcp: mcp,
    commands.Doctor: doctor,
    commands.Completion: completion,
}
