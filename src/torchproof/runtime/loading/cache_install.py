"""Copies a pack's cache files into torch's cache folder, and back at build time.

Takes the open pack; writes the verified bytes. Each file is renamed into place
atomically, because several processes may install the same pack at once.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from torchproof.runtime.pack_format import trust
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.manifest import Refused
from torchproof.torch_private import cache_lookups

FOLDER = "caches"
# Triton's group files contain absolute paths; this placeholder replaces the folder.
HERE = b"@torchproof-cache@"
_LEFT_OUT = ("locks", "tmp")


def collect(cache: Path, stage: Path) -> int:
    """Copies torch's cache files into the new pack; returns their number."""
    count = 0
    for path in sorted(cache.rglob("*")):
        name = path.relative_to(cache)
        if path.is_symlink() or not path.is_file() or name.parts[0] in _LEFT_OUT:
            continue
        raw = path.read_bytes()
        if _lists_files(name):
            raw = raw.replace(os.fsencode(cache), HERE)
        target = stage / FOLDER / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(raw)
        count += 1
    return count


def install(contents: Contents) -> Path:
    """Writes the files to torch's cache folder, which only this user may write to."""
    folder = Path(cache_lookups.current_cache_folder())
    try:
        _assert_private(folder)
        for name in contents.names():
            if name.startswith(f"{FOLDER}/"):
                target = _target(Path(name).relative_to(FOLDER), folder)
                _write(contents.read(name), target, folder)
    except OSError as error:
        raise Refused(
            f"torch's cache folder {folder} cannot be used: {error.strerror};"
            " set TORCHINDUCTOR_CACHE_DIR to a folder of your own"
        ) from None
    return folder


def _assert_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise Refused(
            f"torch's cache folder {folder} belongs to user {status.st_uid}: set"
            " TORCHINDUCTOR_CACHE_DIR to a folder of your own"
        )
    if trust.others_write(folder):
        raise Refused(
            f"other users can write to torch's cache folder {folder}: chmod go-w"
            f" {folder}, or set TORCHINDUCTOR_CACHE_DIR to a folder of your own"
        )


def _target(name: Path, folder: Path) -> Path:
    """The path to install a file at; TRITON_CACHE_DIR moves Triton's files."""
    triton = os.environ.get("TRITON_CACHE_DIR")
    if triton and name.parts[0] == "triton" and len(name.parts) > 2:
        return Path(triton, *name.parts[2:])
    return folder / name


def _write(raw: bytes, path: Path, folder: Path) -> None:
    if _lists_files(path):
        # The path is triton/DEVICE/KEY/FILE, or starts with TRITON_CACHE_DIR.
        device_folder = os.fsencode(path.parent.parent)
        for device in _devices(raw):
            raw = raw.replace(HERE + b"/triton/" + device, device_folder)
        raw = raw.replace(HERE, os.fsencode(folder))
    with contextlib.suppress(OSError):  # missing or unreadable: write it
        if path.stat().st_size == len(raw) and path.read_bytes() == raw:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".torchproof-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _lists_files(name: Path) -> bool:
    return name.name.startswith("__grp__") and name.suffix == ".json"


def _devices(raw: bytes) -> set[bytes]:
    after = raw.split(HERE + b"/triton/")[1:]
    return {part.split(b"/", 1)[0] for part in after if b"/" in part}
