"""What the verbs print: the answer on stdout or in a file, progress on stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from torchproof.cli.commands import Output, RunOutput, Talk
from torchproof.records import Run, UserError, files, printable

if TYPE_CHECKING:
    from torchproof.api import Comparison, PackResult
    from torchproof.cli.progress_line import ProgressLine


@contextlib.contextmanager
def progress(options: Talk) -> Iterator[ProgressLine]:
    """What goes on, on stderr, until the work ends or is interrupted."""
    from torchproof.cli.progress_line import ProgressLine

    end_as_interrupted()
    display = options.display or ProgressLine(options.quiet)
    with display.opened():
        yield display


def run_of(verb: Callable[..., Run], /, *arguments: Any, **keywords: Any) -> Run:
    """The run of a verb; after Ctrl-C, what exists, whose exit code is 130."""
    from torchproof import api

    try:
        return verb(*arguments, **keywords)
    except KeyboardInterrupt as error:
        run = api.interrupted_run(error)
        if run is None:
            raise
        return run


def end_as_interrupted() -> None:
    """Lets a job that is cancelled, or whose terminal is closed, end as after Ctrl-C.

    What exists is saved, and no child or temporary folder is left.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _hung_up)


def _hung_up(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the shell may send it again
    raise KeyboardInterrupt


@contextlib.contextmanager
def plain_progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """As `progress` for one line, without rich: `doctor` may find that it is broken."""
    terminal = sys.stderr.isatty()

    def show(text: str) -> None:
        if terminal:
            print(
                f"\r\x1b[K{printable.line(text)}", end="", file=sys.stderr, flush=True
            )
        else:
            note(text)

    try:
        yield (lambda text: None) if quiet else show
    finally:
        if terminal and not quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def assert_writable(output: str | None, flag: str = "-o") -> None:
    """Nothing is overwritten, and a bad path fails before the work."""
    if output is None:
        return
    path = Path(output).absolute()
    try:
        is_taken = files.is_taken(path)
    except OSError as error:
        raise UserError(f"{flag} {output}: {error.strerror}") from None
    if is_taken:
        raise UserError(f"{output} exists: remove it or choose another name for {flag}")
    if not os.path.isdir(path.parent) or not os.access(path.parent, os.W_OK):
        raise UserError(f"{flag} {output}: {path.parent} is not a writable directory")


def show(run: Run, options: RunOutput, compared: Comparison | None = None) -> None:
    """The run, and what its comparison with a baseline gave; one JSON document."""
    from torchproof import report

    if options.display is not None:
        options.display.run = run.id
    if compared and options.format == "json":
        run = dataclasses.replace(run, other={"comparison": compared.to_json()})

    text = report.render(
        run,
        options.format,
        colour=coloured(options),
        width=width(options),
        verbose=options.verbose,
        source=not options.no_source,
        compared=compared,
    )
    if compared and options.format in ("text", "md", "agent"):
        columns = width(options)
        comparison = report.render_comparison(compared, options.format, width=columns)
        text += f"\n{comparison}"
    write(text, options)


def show_pack(pack_file: PackResult, options: Talk) -> None:
    """What is in a pack that was made, and how to use it."""
    from torchproof.api import inspect
    from torchproof.report import pack

    columns = (
        min(shutil.get_terminal_size().columns, 110) if sys.stdout.isatty() else 80
    )
    sys.stdout.write(
        pack.render(inspect(pack_file.path), options.format, width=columns)
    )
    for text in () if options.quiet else pack_file.notes:
        note(f"torchproof: {text}")


def coloured(options: Output) -> bool:
    terminal = options.output is None and sys.stdout.isatty()
    return terminal and "NO_COLOR" not in os.environ


def width(options: Output) -> int:
    terminal = options.output is None and sys.stdout.isatty()
    return min(shutil.get_terminal_size().columns, 110) if terminal else 80


def rows(
    records: list[dict[str, Any]],
    line: Callable[[dict[str, Any]], str],
    options: Output,
) -> None:
    if options.format == "json":
        write(json.dumps(records, indent=1) + "\n", options)
    else:
        write("".join(printable.seen(line(row)) + "\n" for row in records), options)


def write(text: str, options: Output) -> None:
    if options.output is None:
        plain = options.format in ("text", "md", "agent")
        sys.stdout.write(printable.no_commands(text) if plain else text)
        return
    write_file(options.output, text, quiet=options.quiet)


def write_file(path: str, text: str, *, flag: str = "-o", quiet: bool = False) -> None:
    assert_writable(path, flag)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    if not quiet:
        note(f"written to {path}")


def note(text: str) -> None:
    """One line on stderr, of which no character acts on a terminal."""
    print(printable.unbroken(text), file=sys.stderr)
