"""A pack's cache files put where torch looks for them in this process.

Files are handed over as the bytes that were checked. Each appears whole, under its own
name: several processes may install the same pack at once.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from torchproof.runtime.pack_format import permissions
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.refusal import Refused
from torchproof.torch_private import cache_lookups

FOLDER = "caches"
# Triton's lists of files name them by their whole path: this stands for the folder.
HERE = b"@torchproof-cache@"
_LEFT_OUT = ("locks", "tmp")


def collect(cache: Path, stage: Path) -> int:
    """Copies what torch has cached into a pack that is being made; how many files."""
    count = 0
    for path in sorted(cache.rglob("*")):
        name = path.relative_to(cache)
        if path.is_symlink() or not path.is_file() or name.parts[0] in _LEFT_OUT:
            continue
        raw = path.read_bytes()
        if _lists_files(name):
            raw = raw.replace(os.fsencode(cache), HERE)
        there = stage / FOLDER / name
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(raw)
        count += 1
    return count


def install(contents: Contents) -> Path:
    """Puts the files into torch's cache folder, which has to be this user's alone."""
    folder = Path(cache_lookups.current_cache_folder())
    try:
        _assert_own(folder)
        for name in contents.names():
            if name.startswith(f"{FOLDER}/"):
                where = _place(Path(name).relative_to(FOLDER), folder)
                _put(contents.read(name), *where)
    except OSError as error:
        raise Refused(
            f"torch's cache folder {folder} cannot be used: {error.strerror};"
            " set TORCHINDUCTOR_CACHE_DIR to a folder of your own"
        ) from None
    return folder


def _assert_own(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise Refused(
            f"torch's cache folder {folder} belongs to user {status.st_uid}: set"
            " TORCHINDUCTOR_CACHE_DIR to a folder of your own"
        )
    if permissions.others_write(folder):
        raise Refused(
            f"others can write in torch's cache folder {folder}: chmod go-w {folder},"
            " or set TORCHINDUCTOR_CACHE_DIR to a folder of your own"
        )


def _place(name: Path, folder: Path) -> tuple[Path, Path]:
    """Where a file goes, and which folder it names in its lists."""
    triton = os.environ.get("TRITON_CACHE_DIR")
    if triton and name.parts[0] == "triton" and len(name.parts) > 2:
        return Path(triton, *name.parts[2:]), folder
    return folder / name, folder


def _put(raw: bytes, path: Path, folder: Path) -> None:
    if _lists_files(path):
        own = os.fsencode(path.parent.parent)
        # triton/DEVICE/KEY/FILE: the folder above KEY is where the files lie.
        for device in _devices(raw):
            raw = raw.replace(HERE + b"/triton/" + device, own)
        raw = raw.replace(HERE, os.fsencode(folder))
    with contextlib.suppress(OSError):  # not there, or not to be read: it is written
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
