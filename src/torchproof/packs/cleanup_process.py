"""Deletes the work directory of a pack if the process that writes it is killed.

Runs as a program in its own session. It waits on a pipe that only the writer holds
open. A line means that the writer has finished; end of file means that it was killed.
"""

from __future__ import annotations

import shutil
import sys
import time

_AGAIN_S = 2.0  # children of the writer may write for a moment longer


def main(folder: str) -> None:
    if sys.stdin.readline():
        return
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(_AGAIN_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
