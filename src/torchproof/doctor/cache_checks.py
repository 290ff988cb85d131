"""Folders that torch and torchproof write to: writable, trusted, and with room."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchproof.records import MachineCheck, store
from torchproof.report import cache_folders, numbers

_GROUP = "caches"
_ROOM_BYTES = 2**30
_WRITES = {
    "inductor": "torch.compile cannot keep generated code, and fails",
    "triton": "Triton cannot keep kernels, and fails on a GPU",
}


def checks() -> Iterator[MachineCheck]:
    for folder in cache_folders.listing():
        if folder.name in _WRITES:
            size = numbers.size(folder.bytes) if folder.bytes else "empty"
            by = folder.chosen_by or "TORCHINDUCTOR_CACHE_DIR or TRITON_CACHE_DIR"
            yield _folder(
                folder.name,
                folder.path,
                size,
                (_WRITES[folder.name], f"make it writable, or set {by}"),
            )
    yield _folder(
        "runs",
        store.RUNS.absolute(),
        "saved runs",
        ("no verb can save its run here", "run torchproof in a writable folder"),
    )


def inductor_folder() -> Path:
    """The folder in which Inductor loads what it has compiled."""
    return cache_folders.inductor_folder()


def nearest_folder(path: Path) -> Path:
    """The path itself, or the nearest of its parents that exists."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _folder(
    name: str, path: Path, holds: str, without: tuple[str, str]
) -> MachineCheck:
    means, action = without
    if said := _write_error(path):
        return MachineCheck(
            _GROUP, name, "missing", f"{path}: {said}", means, f"{action}"
        )
    if said := _other_writers(path):
        return MachineCheck(
            _GROUP,
            name,
            "degraded",
            f"{path}: {said}",
            "who can write there can run code as you: torch loads what it finds;"
            " torchproof.load refuses packs",
            f"chmod go-w {path}, or use a folder of your own",
        )
    free = shutil.disk_usage(nearest_folder(path)).free
    value = f"{path}, {holds}, {numbers.size(free)} free"
    if free < _ROOM_BYTES:
        return MachineCheck(
            _GROUP,
            name,
            "degraded",
            value,
            "the disk is nearly full: compiling may fail",
            "torchproof show --caches lists what can be cleared",
        )
    return MachineCheck(_GROUP, name, "ok", value, "writable")


def _write_error(path: Path) -> str:
    """Why no file can be written there; empty if one was written."""
    try:
        with tempfile.NamedTemporaryFile(dir=nearest_folder(path)) as file:
            file.write(b"torchproof")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _other_writers(path: Path) -> str:
    """Who else may write into an existing folder; a sticky one protects its files."""
    try:
        status = path.stat()
    except OSError:
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return "every user may write to it"
    return ""
