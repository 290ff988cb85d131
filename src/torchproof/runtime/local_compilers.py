"""Compilers that this process runs itself, for graphs that no child can take."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

from torchproof.torch_private import backends


def end_all(since: float, thread_id: int) -> bool:
    """Ends those started after a time of `time.time`, with all they have started.

    A compiler is known by who started it, the thread that compiles or one of Inductor's
    own, or by what it works on: a file in Inductor's cache. Other children of this
    process, such as data loaders, are left alone. Whether there was one.
    """
    if "torch._inductor" not in sys.modules:
        return False  # and nothing can have been started: do not load it for that
    import psutil

    cache, found = backends.cache_folder(), False
    compiling = {thread_id, *backends.pool_threads()}
    started_there = set().union(*map(_children_of_thread, compiling))
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            # Times of processes are rounded to hundredths of a second.
            if child.create_time() < since - 0.1:
                continue
            if child.pid in started_there or _works_in(child, cache):
                found = True
                for process in [child, *child.children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
    return found


def _children_of_thread(thread_id: int) -> set[int]:
    """Linux keeps the children of each thread apart, where it is built to."""
    native = {thread.ident: thread.native_id for thread in threading.enumerate()}
    path = Path(f"/proc/self/task/{native.get(thread_id)}/children")
    try:
        return set(map(int, path.read_text().split()))
    except OSError:
        return set()


def _works_in(process: Any, folder: str) -> bool:
    here = os.path.join(folder, "")
    return any(here in argument for argument in process.cmdline())
