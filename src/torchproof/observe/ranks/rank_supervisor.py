"""Starts the process of one rank, waits for it, and records how it ended.

It outlives a rank that is killed. Torch's launcher starts one on each rank.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from torchproof.observe.ranks.launched import Place
from torchproof.observe.ranks.rank_streams import RankStream, stream_path
from torchproof.process import Child, parent_death, spawn

MODULE = "torchproof.observe.ranks.rank_supervisor"
_RANK = "torchproof.observe.ranks.rank_process"
_LOOK_S = 0.5
_SIGNALLED = 128  # what shells add to the number of the signal that ended a process


class RankEnd(NamedTuple):
    """How a rank ended. Its exit code is None if it did not end by itself."""

    code: int | None
    ending: Literal["finished", "timeout", "interrupted", "stopped"]


def supervise(
    job: str,
    folder: Path,
    *,
    timeout_s: float | None = None,
    must_stop: Callable[[], bool] = lambda: False,
) -> RankEnd:
    """Runs the rank of this place until it ends, or until `must_stop()`."""
    path = stream_path(folder, Place.of(os.environ).rank)
    with spawn("-m", _RANK, job, str(path), stdin=None) as child:
        end = _end_of(child, timeout_s, must_stop)
    RankStream(path).write("rank_end", code=end.code, ending=end.ending)
    return end


def _end_of(
    child: Child, timeout_s: float | None, must_stop: Callable[[], bool]
) -> RankEnd:
    began = time.monotonic()
    try:
        while timeout_s is None or time.monotonic() - began < timeout_s:
            with contextlib.suppress(TimeoutError):
                return RankEnd(child.wait(_LOOK_S), "finished")
            if must_stop():
                return RankEnd(None, "stopped")
    except KeyboardInterrupt:  # Ctrl-C, or SIGTERM of the launcher
        return RankEnd(None, "interrupted")
    return RankEnd(None, "timeout")


def main(arguments: list[str]) -> int:
    job, folder = arguments
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = supervise(job, Path(folder)).code
    if code is None:
        return _SIGNALLED + signal.SIGTERM
    return _SIGNALLED - code if code < 0 else code


if __name__ == "__main__":
    parent_death.kill_with_parent()
    sys.exit(main(sys.argv[1:]))
