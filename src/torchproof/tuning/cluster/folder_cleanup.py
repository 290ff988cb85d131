"""Deletes the directory of a worker after it has ended: Ray kills workers.

Runs beside each worker, as a file: `python folder_cleanup.py WORKER FOLDER`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

import psutil


def main(worker: str, folder: str) -> None:
    # Ray ends the children of a worker with it, so this process detaches itself.
    if os.fork():
        os._exit(0)
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(worker))
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.5)
    remove(Path(folder))


def remove(folder: Path) -> None:
    """Delete a worker's directory; with the last one, the shared directory too."""
    shutil.rmtree(folder, ignore_errors=True)
    if not any(folder.parent.glob("worker-*")):
        shutil.rmtree(folder.parent, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
