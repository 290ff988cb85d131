"""Starts the process of one rank, waits for it, and records how it ended.

It outlives a rank that is killed. Torch's launcher starts one on each rank.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from torchproof.observe.ranks.launched import Place
from torchproof.observe.ranks.rank_streams import RankStream, stream_path
from torchproof.process import parent_death, spawn

MODULE = "torchproof.observe.ranks.rank_supervisor"
_RANK = "torchproof.observe.ranks.rank_process"
_SIGNALLED = 128  # what shells add to the number of the signal that ended a process


def supervise(job: str, folder: Path, timeout_s: float | None = None) -> int:
    """Runs the rank of this place; returns its exit code, negative for a signal.

    Raises `KeyboardInterrupt` if Ctrl-C or the launcher ended the rank.
    """
    path = stream_path(folder, Place.of(os.environ).rank)
    code, ending = None, "finished"
    with spawn("-m", _RANK, job, str(path), stdin=None) as child:
        try:
            code = child.wait(timeout_s)
        except TimeoutError:
            ending = "timeout"
        except KeyboardInterrupt:
            ending = "interrupted"
    RankStream(path).write("rank_end", code=code, ending=ending)
    if ending == "interrupted":
        raise KeyboardInterrupt
    return 2 if code is None else code


def main(arguments: list[str]) -> int:
    job, folder = arguments
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        code = supervise(job, Path(folder))
        return _SIGNALLED - code if code < 0 else code
    return _SIGNALLED + signal.SIGTERM


if __name__ == "__main__":
    parent_death.kill_with_parent()
    sys.exit(main(sys.argv[1:]))
