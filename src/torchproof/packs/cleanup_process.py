"""Deletes the work directory of a pack if the process that writes it is killed.

Runs as a program, without torchproof, in its own session. The writer kills it when it
has finished; the end of the channel means that the writer was killed instead.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

_AGAIN_S = 2.0  # children of the writer may write for a moment longer


def main(folder: str) -> None:
    os.read(int(os.environ["TORCHPROOF_CHANNEL"]), 1)
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(_AGAIN_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
