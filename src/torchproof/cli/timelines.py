"""The timeline of a verb: asks its processes for one, and writes it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torchproof.cli import output
from torchproof.cli.commands import Bench, Check
from torchproof.records import PartState, Run, timeline

if TYPE_CHECKING:
    from torchproof.api import Recorder


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

    def write(self, run: Run, options: Bench | Check) -> None:
        from torchproof.report import run_trace

        self.leave()
        text = run_trace.render(run, timeline.read(self._folder))
        output.write_file(
            options.trace or "", text, flag="--trace", quiet=options.quiet
        )


@contextlib.contextmanager
def recorded(trace: bool) -> Iterator[RunTimeline | None]:
    """The timeline of what runs meanwhile; None without a trace to write."""
    if not trace:
        yield None
        return
    from torchproof import api

    with (
        tempfile.TemporaryDirectory(prefix="torchproof-") as name,
        api.record_timeline(Path(name)) as recorder,
    ):
        yield RunTimeline(Path(name), recorder)
