"""Ends a worker whose node is gone from the cluster, and clears up after any worker.

Run beside each worker, as a file: `python warden.py WORKER RAYLET FOLDER`. A worker
outlives its raylet while it is busy, with its arms and their GPU memory; and Ray ends
workers at once, so that none can remove its own folder.
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
    # Ray ends the children of a worker along with it: this one is nobody's child.
    if os.fork():
        os._exit(0)
    with contextlib.suppress(psutil.NoSuchProcess):
        watched = [psutil.Process(int(process)) for process in (worker, raylet)]
        while all(_alive(process) for process in watched):
            time.sleep(0.5)
        watched[0].kill()  # its arms end with it
    time.sleep(1.0)
    remove(Path(folder))


def remove(folder: Path) -> None:
    """The folder of a worker; with the last one, what the workers shared."""
    shutil.rmtree(folder, ignore_errors=True)
    if not any(folder.parent.glob("worker-*")):
        shutil.rmtree(folder.parent, ignore_errors=True)


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
