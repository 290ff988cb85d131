"""Compilers that this process runs itself, for graphs that no child can take."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from torchproof.torch_private import backends


def end_all(since: float) -> None:
    """Ends those started after a time of `time.time`, with all they have started.

    A compiler is known by what it works on: a file in Inductor's cache. Other children
    of this process, such as data loaders, are left alone.
    """
    if "torch._inductor" not in sys.modules:
        return  # and nothing can have been started: do not load it for that
    import psutil

    cache = backends.cache_folder()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            # Times of processes are rounded to hundredths of a second.
            if child.create_time() >= since - 0.1 and _works_in(child, cache):
                for process in [child, *child.children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()


def _works_in(process: Any, folder: str) -> bool:
    here = os.path.join(folder, "")
    return any(here in argument for argument in process.cmdline())
