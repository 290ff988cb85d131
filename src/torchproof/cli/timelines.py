"""The timeline of a verb: asks its processes for one, and writes or shows it."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchproof.cli import output
from torchproof.records import PartState, Run, UserError, timeline

if TYPE_CHECKING:
    from torchproof.api import Recorder
    from torchproof.cli.live_table import LiveTable


class RunTimeline:
    """What the processes of a run do, in a folder that they write to."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self._folder, self._recorder = folder, recorder
        self._part: int | None = None

    def enter(self, part: PartState) -> None:
        """A part of a check begins, and the one before it ends."""
        self.leave()
        self._part = self._recorder.begin(part.name, "part")

    def leave(self) -> None:
        if self._part is not None:
            self._recorder.end(self._part)
            self._part = None

    def write(self, run: Run, options: argparse.Namespace) -> None:
        from torchproof.report import run_trace

        self.leave()
        if not options.trace:
            return
        reader = timeline.TimelineReader(self._folder, timeline.ProcessTimeline)
        processes = reader.update()
        text = run_trace.render(run, processes)
        output.write_file(options.trace, text, flag="--trace", quiet=options.quiet)

    def shown(self, table: LiveTable) -> contextlib.AbstractContextManager[None]:
        """Shows what compiles, in the table of a verb."""
        from torchproof.cli.compile_display import CompileDisplay

        return CompileDisplay(self._folder).shown(table)


def purposes(options: argparse.Namespace, *, on_ranks: bool) -> list[str]:
    """What a check needs a timeline for; ranks record their own."""
    if options.live:
        _assert_live(options, on_ranks=on_ranks)
    live = [timeline.LIVE] if options.live else []
    return live + ([timeline.TRACE] if options.trace and not on_ranks else [])


def _assert_live(options: argparse.Namespace, *, on_ranks: bool) -> None:
    if on_ranks:
        raise UserError("--live shows one process: leave out --ranks and launchers")
    if options.quiet:
        raise UserError("--live shows progress, and -q hides it: leave out one of them")
    if options.effort == "static" or options.target.startswith("trace:"):
        what = "--effort static" if options.effort == "static" else options.target
        raise UserError(f"--live shows what runs, and {what} runs nothing")


@contextlib.contextmanager
def recorded(purposes: Sequence[str]) -> Iterator[RunTimeline | None]:
    """The timeline of what runs meanwhile; None if it is for nothing."""
    if not purposes:
        yield None
        return
    from torchproof import api

    with (
        tempfile.TemporaryDirectory(prefix="torchproof-") as name,
        api.record_timeline(Path(name), purposes) as recorder,
    ):
        yield RunTimeline(Path(name), recorder)
