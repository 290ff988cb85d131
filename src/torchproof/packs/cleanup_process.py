"""Removes the work folder of a pack whose maker was killed.

Run as a program in a session of its own: it waits at a pipe that only the maker holds
open. A line on it says that all is done; its end without one, that the maker is gone.
"""

from __future__ import annotations

import shutil
import sys
import time

_AGAIN_S = 2.0  # what the maker had begun may write for a moment longer


def main(folder: str) -> None:
    if sys.stdin.readline():
        return
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(_AGAIN_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
