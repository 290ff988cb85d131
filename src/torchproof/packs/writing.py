"""Writes packs: builds them in a work directory beside their destination, then renames.

The work directory is deleted when its process ends or is interrupted. If the process
was killed, the next pack in the same place deletes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchproof.records import UserError, files
from torchproof.runtime import File, Manifest, Refused, keys, open_pack
from torchproof.runtime import manifest as papers

_MARK = ".packing-"
_ASIDE = "replaced"  # the temporary name of an old pack
_WORK = {"pack", "pack.tar.gz", _ASIDE}  # the names in a work directory
_STALE_S = 60.0  # the least age of a work directory that may be deleted


@dataclass(frozen=True)
class PackResult:
    """The path and manifest of a pack; `notes` are for the user who wrote it."""

    path: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()


class Stage:
    """A pack under construction: put files in `path`, then call `seal`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: Manifest | None = None

    def seal(
        self,
        manifest: Manifest,
        about: Mapping[str, str] | None = None,
        key: bytes | None = None,
    ) -> Manifest:
        """Write the manifest of all files, and sign it if there is a key.

        `path` can then be opened as a pack. A second call replaces the manifest.
        """
        descriptions = dict(about or {})
        for name in papers.OWN:
            (self.path / name).unlink(missing_ok=True)
        files = {
            name: _file(self.path / name, descriptions.pop(name, ""))
            for name in self.names(plain=True)
        }
        assert not descriptions, f"not in the pack: {sorted(descriptions)}"
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.manifest = dataclasses.replace(
            manifest, made=manifest.made or now, files=files
        )
        raw = self.manifest.to_bytes()
        _write(self.path / papers.NAME, raw)
        if key is not None:
            _write(self.path / papers.SIGNATURE, keys.signature(key, raw))
        return self.manifest

    def names(self, *, plain: bool = False) -> list[str]:
        """All files but the manifest; `plain` resets their modes to 0644 or 0755."""
        names = []
        for path in sorted(self.path.rglob("*")):
            name, mode = path.relative_to(self.path).as_posix(), path.lstat().st_mode
            if name in papers.OWN:
                continue
            assert not papers.why_unsafe(name), name
            assert stat.S_ISDIR(mode) or stat.S_ISREG(mode), f"a special file: {name}"
            if plain:
                path.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
            if stat.S_ISREG(mode):
                names.append(name)
        return names


@contextlib.contextmanager
def folder(dest: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Stage]:
    """Write a pack as a directory, which appears if the block ends without an error."""
    with _stage(Path(dest), overwrite) as stage:
        yield stage
        assert stage.manifest, "seal the pack before the block ends"
        stage.path.chmod(0o755)
        _place(stage.path, Path(dest), overwrite)


@contextlib.contextmanager
def archive(
    dest: str | os.PathLike[str], *, overwrite: bool = False
) -> Iterator[Stage]:
    """Write a pack as a .tar.gz; equal files and times give equal bytes."""
    with _stage(Path(dest), overwrite) as stage:
        yield stage
        assert stage.manifest, "seal the pack before the block ends"
        root = Path(dest).name.removesuffix(".tar.gz").removesuffix(".tgz")
        packed = stage.path.parent / "pack.tar.gz"
        _pack(stage, packed, root or "pack")
        packed.chmod(0o644)
        _place(packed, Path(dest), overwrite)


@contextlib.contextmanager
def _stage(dest: Path, overwrite: bool) -> Iterator[Stage]:
    """A work directory beside `dest`, which is always deleted at the end."""
    assert_placeable(dest, overwrite)
    parent = dest.absolute().parent
    _sweep(parent)
    work = Path(tempfile.mkdtemp(prefix=_MARK, dir=parent))
    handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        (work / "pack").mkdir(mode=0o755)
        yield Stage(work / "pack")
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(handle)


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A temporary directory."""
    with tempfile.TemporaryDirectory(
        prefix=prefix, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def assert_placeable(dest: Path, overwrite: bool) -> None:
    """Fail before the work if the pack could not be written to `dest`."""
    parent = dest.absolute().parent
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"-o {dest}: {parent} is not a writable directory")
    try:
        if not files.is_taken(dest):
            return
    except OSError as error:
        raise UserError(f"-o {dest}: {error.strerror}") from None
    if not overwrite:
        raise UserError(
            f"{dest} exists: choose another name for -o, or replace it with --overwrite"
        )
    if dest.is_symlink():
        raise UserError(f"{dest} is a link: --overwrite replaces only packs")
    # --overwrite deletes the old pack, so it must be intact and without extra files.
    try:
        open_pack(dest)
    except Refused as error:
        raise UserError(f"--overwrite replaces only packs: {error}") from None


def _place(source: Path, dest: Path, overwrite: bool) -> None:
    """Rename a finished pack to its destination; it appears there as a whole."""
    dest = dest.absolute()
    if overwrite:
        assert_placeable(dest, overwrite)  # other files may be there by now
    if overwrite and source.is_file() and dest.is_file():
        os.replace(source, dest)
    else:
        _move(source, dest, overwrite)
    handle = os.open(dest.parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(handle)
    os.close(handle)


_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


def _move(source: Path, dest: Path, overwrite: bool) -> None:
    """Rename to a free name; an old pack is set aside first, and back on an error."""
    aside = source.parent / _ASIDE
    if overwrite:
        with contextlib.suppress(FileNotFoundError):
            os.rename(dest, aside)
    try:
        if source.is_dir():
            os.rename(source, dest)  # fails if something is there
        else:
            os.link(source, dest)
    except OSError as error:
        if error.errno in _NO_LINKS and not os.path.lexists(dest):
            os.replace(source, dest)
            return
        if aside.exists() and not os.path.lexists(dest):
            os.rename(aside, dest)
        if error.errno not in _TAKEN:
            raise
        raise UserError(
            f"another process has created {dest} meanwhile: choose another name for -o,"
            " or replace it with --overwrite"
        ) from None


def _sweep(parent: Path) -> None:
    """Delete work directories whose process has ended."""
    for work in parent.glob(f"{_MARK}*"):
        with contextlib.suppress(OSError):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(work, flags)
            try:
                status = os.fstat(handle)
                old = time.time() - status.st_mtime > _STALE_S
                ours = _WORK.issuperset(os.listdir(handle))
                if old and ours and status.st_uid == os.geteuid():
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(work, ignore_errors=True)
            finally:
                os.close(handle)


def _file(path: Path, about: str) -> File:
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        os.fsync(opened.fileno())
        return File(digest, os.fstat(opened.fileno()).st_size, about)


def _write(path: Path, raw: bytes) -> None:
    with path.open("xb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o644)


def _pack(stage: Stage, to: Path, root: str) -> None:
    """Write the archive, the manifest first, so that a reader can check the rest."""
    first = [name for name in papers.OWN if (stage.path / name).exists()]
    with to.open("xb") as file:
        with (
            gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for name in (*first, *stage.names()):
                path = stage.path / name
                entry = tarfile.TarInfo(f"{root}/{name}")
                entry.size = path.stat().st_size
                entry.mode = stat.S_IMODE(path.stat().st_mode)
                with path.open("rb") as opened:
                    tar.addfile(entry, opened)
        file.flush()
        os.fsync(file.fileno())
