"""The memory that this process can still allocate."""

from __future__ import annotations

import contextlib
from pathlib import Path


def available_bytes() -> int:
    """The free memory of the machine, or of the process's cgroup if that is less."""
    import psutil

    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        free = min(free, max(0, limit - used))
    return free
