"""Reads a pack, a folder or a .tar.gz, without unpacking it or running its code.

Takes a path, returns `Contents`. The manifest is read first. Every file is hashed while
it is read and compared with the manifest, so that a file that is replaced after opening
is refused, too.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from torchproof.records import UserError, files
from torchproof.runtime.pack_format import manifest, ustar
from torchproof.runtime.pack_format.manifest import File, Manifest
from torchproof.runtime.pack_format.refusal import Refused

_PIECE = 2**20
_ARCHIVE_BYTES = 2**31  # archives are read into memory
SIGNATURE_BYTES = 65  # 64 hex digits and a newline
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GZIP = b"\x1f\x8b"


class _Missing(Refused):
    """The file does not exist, or no longer exists."""


class Contents:
    """An open pack: its manifest, and its files, which are read on demand."""

    manifest: Manifest
    manifest_bytes: bytes
    signature: bytes | None = None

    def __init__(self, path: Path) -> None:
        self.path = path  # not resolved

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.manifest.files))

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises `Refused` if they do not match the manifest."""
        return b"".join(self._pieces(name))

    def copy(self, name: str, to: Path) -> None:
        """Copies a file piece by piece to `to`, which must not exist.

        If the file does not match the manifest, `to` is removed again.
        """
        with open(to, "xb") as file:
            try:
                for piece in self._pieces(name):
                    file.write(piece)
            except BaseException:
                os.unlink(to)
                raise

    def damage(self) -> dict[str, str]:
        """The files that do not match the manifest, each with the difference."""
        differences = {}
        for name in self.names():
            try:
                for _ in self._pieces(name):
                    pass
            except Refused as error:
                differences[name] = str(error)
        return differences

    def owned(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Every path of the pack on disk, with its owner and mode."""
        raise NotImplementedError

    def close(self) -> None:
        pass

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, name: str) -> BinaryIO:
        raise NotImplementedError

    def _load_manifest(self, raw: bytes) -> None:
        self.manifest_bytes = raw
        try:
            self.manifest = Manifest.from_bytes(raw)
        except Refused as error:
            raise Refused(f"{manifest.NAME} is invalid: {error}") from None
        self._folders = {p for name in self.names() for p in manifest.parents(name)}

    def _assert_complete(self, present: Collection[str]) -> None:
        if missing := next((n for n in self.names() if n not in present), None):
            raise Refused(f"{missing!r} is in its manifest, but missing")
        if self.signature is not None and len(self.signature) != SIGNATURE_BYTES:
            raise Refused(f"{manifest.SIGNATURE} in it is not a signature")

    def _pieces(self, name: str) -> Iterator[bytes]:
        """Yields a file in pieces; the hash is compared only after the last piece."""
        expected = self.manifest.files[name]
        digest = hashlib.sha256()
        size = 0
        with self._opened(name) as file:
            while size <= expected.size and (piece := file.read(_PIECE)):
                size += len(piece)
                digest.update(piece)
                yield piece
        _assert_same(name, expected, size, digest.hexdigest())


def _assert_same(name: str, expected: File, size: int, digest: str) -> None:
    if size != expected.size:
        actual = "more than" if size > expected.size else f"{size} of"
        raise Refused(f"{name} was changed: it has {actual} {expected.size} bytes")
    if digest != expected.sha256:
        raise Refused(f"{name} was changed: its sha256 differs from the manifest")


def open_pack(path: str | os.PathLike[str]) -> Contents:
    """Opens a pack. Raises `UserError` if there is none, `Refused` if it is invalid."""
    location = Path(path)
    try:
        # A link to a pack is followed; links inside a pack are refused.
        real = Path(os.path.realpath(location, strict=True))
        handle = os.open(real, _FLAGS)
    except FileNotFoundError as error:
        raise UserError(f"cannot open {location}: {error.strerror}") from None
    except OSError as error:
        raise Refused(f"cannot open {location}: {error.strerror}") from None
    except ValueError as error:  # a NUL character
        raise UserError(f"cannot open {location}: {error}") from None
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            return _Folder(location, handle)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("it is neither a folder nor a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            pack = _Archive(location, file, status)
        os.close(handle)
        return pack
    except BaseException as error:
        os.close(handle)
        if isinstance(error, Refused):
            raise Refused(f"{location} is refused: {error}") from None
        raise


def is_pack(path: str | os.PathLike[str]) -> bool:
    """Whether a path looks like a pack: it may still be invalid."""
    location = Path(path)
    try:
        if os.path.isdir(location):
            return os.path.isfile(location / manifest.NAME)
        with files.open_regular(location) as file:
            return file.read(2) == _GZIP
    except OSError:
        return False


class _Folder(Contents):
    def __init__(self, path: Path, handle: int) -> None:
        super().__init__(path)
        self._handle = handle
        raw = self._small(manifest.NAME, manifest.MOST_BYTES)
        if raw is None:
            raise Refused(f"it has no {manifest.NAME}, so it is not a pack")
        self._load_manifest(raw)
        self.signature = self._small(manifest.SIGNATURE, SIGNATURE_BYTES)
        self._assert_complete(set(self._walk("")))

    def owned(self) -> Iterator[tuple[Path, os.stat_result]]:
        yield self.path, os.fstat(self._handle)
        signed = [manifest.SIGNATURE] if self.signature is not None else []
        for name in (*sorted(self._folders), manifest.NAME, *signed, *self.names()):
            handle = self._open(name)
            try:
                yield self.path / name, os.fstat(handle)
            finally:
                os.close(handle)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _small(self, name: str, most: int) -> bytes | None:
        try:
            with self._opened(name) as file:
                return file.read(most + 1)
        except _Missing:
            return None

    def _opened(self, name: str) -> BinaryIO:
        handle = self._open(name)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise Refused(f"{name} in it is not a regular file")
        return os.fdopen(handle, "rb")

    def _open(self, name: str) -> int:
        """Opens a path part by part from the open folder, and follows no link."""
        handle = os.dup(self._handle)
        for part in name.split("/"):
            try:
                below = os.open(part, _FLAGS, dir_fd=handle)
            except FileNotFoundError:
                raise _Missing(f"{name!r} is missing") from None
            except OSError as error:
                raise Refused(
                    f"{name} in it cannot be read: {error.strerror}"
                ) from None
            finally:
                os.close(handle)
            handle = below
        return handle

    def _walk(self, folder: str) -> Iterator[str]:
        """Yields all file names; raises `Refused` for a file not in the manifest."""
        handle = self._open(folder) if folder else os.dup(self._handle)
        try:
            with os.scandir(handle) as entries:
                listed = [
                    (entry.name, entry.stat(follow_symlinks=False)) for entry in entries
                ]
        except OSError as error:
            raise Refused(
                f"{folder or 'it'} cannot be read: {error.strerror}"
            ) from None
        finally:
            os.close(handle)
        for part, status in sorted(listed):
            name = f"{folder}/{part}" if folder else part
            if name in manifest.OWN:
                continue
            if stat.S_ISDIR(status.st_mode) and name in self._folders:
                yield from self._walk(name)
            elif stat.S_ISREG(status.st_mode) and name in self.manifest.files:
                yield name
            else:
                raise Refused(_unlisted(name, status.st_mode))


def _unlisted(name: str, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return f"{name!r} in it is a symbolic link; a pack contains only regular files"
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return f"{name!r} in it is a device or pipe; a pack contains only regular files"
    return f"{name!r} is not in its manifest: remove it, or build the pack again"


class _Archive(Contents):
    """An archive, read into memory, so that nobody can change it after the check.

    The manifest is the first file; the others are read only up to the size it states.
    """

    def __init__(self, path: Path, file: BinaryIO, status: os.stat_result) -> None:
        super().__init__(path)
        self._status = status
        self._root = ""
        self._files: dict[str, bytes] = {}
        if file.read(len(_GZIP)) != _GZIP:
            raise Refused("it is neither a folder nor a .tar.gz")
        file.seek(0)
        try:
            self._read_entries(file)
        except EOFError:
            raise Refused("it is cut off: its end is missing") from None
        except (OSError, zlib.error) as error:
            raise Refused(f"it is damaged: {error}") from None
        if manifest.NAME not in self._files:
            raise Refused(f"it has no {manifest.NAME}, so it is not a pack")
        self.signature = self._files.get(manifest.SIGNATURE)
        self._assert_complete(self._files)

    def owned(self) -> Iterator[tuple[Path, os.stat_result]]:
        yield self.path, self._status

    def _opened(self, name: str) -> BinaryIO:
        return io.BytesIO(self._files[name])

    def _read_entries(self, file: BinaryIO) -> None:
        with gzip.GzipFile(fileobj=file) as stream:
            for entry, content in ustar.entries(stream, self._most_bytes):
                name = entry.name.rstrip("/").partition("/")[2]
                self._files[name] = content
                if name == manifest.NAME:
                    self._load_manifest(content)
                    if self.manifest.size > _ARCHIVE_BYTES:
                        raise Refused(
                            "it is too large to read into memory: unpack it and use"
                            " the folder"
                        )
        self._files = {
            name: content
            for name, content in self._files.items()
            if name not in self._folders
        }

    def _most_bytes(self, entry: ustar.Entry) -> int:
        """The largest size allowed for an entry, before any of it is read."""
        root, _, name = entry.name.rstrip("/").partition("/")
        if reason := manifest.why_unsafe(entry.name.rstrip("/") or "/"):
            raise Refused(f"{entry.name!r} in it {reason}")
        self._root = self._root or root
        if root != self._root or not (name or entry.is_folder):
            raise Refused(f"{entry.name!r} in it is outside of {self._root!r}")
        if name in self._files:
            raise Refused(f"{entry.name!r} is in it twice")
        if not name:
            return 0
        limits = {
            manifest.NAME: manifest.MOST_BYTES,
            manifest.SIGNATURE: SIGNATURE_BYTES,
        }
        if name in limits and not entry.is_folder:
            return limits[name]
        if manifest.NAME not in self._files:
            raise Refused(
                "its manifest is not its first file: unpack it and use the folder"
            )
        if entry.is_folder and name in self._folders:
            return 0
        if entry.is_folder or name not in self.manifest.files:
            raise Refused(f"{name!r} is not in its manifest: build the pack again")
        return self.manifest.files[name].size
