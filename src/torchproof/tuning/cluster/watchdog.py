"""Ends a worker whose node has left the cluster, and deletes any worker's directory.

Runs beside each worker, as a file: `python watchdog.py WORKER RAYLET FOLDER`. A busy
worker outlives its raylet, with its child processes and their GPU memory. Ray kills
workers, so they cannot delete their own directories.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

import psutil


def main(worker: str, raylet: str, folder: str) -> None:
    # Ray ends the children of a worker with it, so this process detaches itself.
    if os.fork():
        os._exit(0)
    with contextlib.suppress(psutil.NoSuchProcess):
        watched = [psutil.Process(int(process)) for process in (worker, raylet)]
        while all(_alive(process) for process in watched):
            time.sleep(0.5)
        watched[0].kill()  # its strategy processes end with it
    time.sleep(1.0)
    remove(Path(folder))


def remove(folder: Path) -> None:
    """Delete a worker's directory; with the last one, the shared directory too."""
    shutil.rmtree(folder, ignore_errors=True)
    if not any(folder.parent.glob("worker-*")):
        shutil.rmtree(folder.parent, ignore_errors=True)


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
