"""How much memory there is left for this process."""

from __future__ import annotations

import contextlib
from pathlib import Path


def available_bytes() -> int:
    """The memory this process may still take, of the machine's and of its group's."""
    import psutil

    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        free = min(free, max(0, limit - used))
    return free
