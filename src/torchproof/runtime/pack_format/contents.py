"""A folder or an archive read as a pack, without unpacking or running any of it.

What is handed out is hashed as it is handed out, against the manifest that was read
first of all: a file that is exchanged later is refused like one that was exchanged
before.
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
from torchproof.runtime.pack_format import manifest as papers
from torchproof.runtime.pack_format import ustar
from torchproof.runtime.pack_format.manifest import File, Manifest
from torchproof.runtime.pack_format.refusal import Refused

_PIECE = 2**20
_ARCHIVE_BYTES = 2**31  # an archive is held in memory
SIGNATURE_BYTES = 65  # 64 digits and the end of the line
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GZIP = b"\x1f\x8b"


class _Missing(Refused):
    """A file that is not there, or not there any more."""


class Contents:
    """An open pack: its manifest, and its files once they are asked for."""

    manifest: Manifest
    manifest_bytes: bytes
    signature: bytes | None = None

    def __init__(self, path: Path) -> None:
        self.path = path  # as given

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.manifest.files))

    def read(self, name: str) -> bytes:
        """The bytes of a file, which are those the manifest tells of, or a refusal."""
        return b"".join(self._pieces(name))

    def copy(self, name: str, to: Path) -> None:
        """A file too large for memory; `to` must not exist, and does not if refused."""
        with open(to, "xb") as file:
            try:
                for piece in self._pieces(name):
                    file.write(piece)
            except BaseException:
                os.unlink(to)
                raise

    def damage(self) -> dict[str, str]:
        """The files that are not what the manifest tells of, and how they differ."""
        found = {}
        for name in self.names():
            try:
                for _ in self._pieces(name):
                    pass
            except Refused as error:
                found[name] = str(error)
        return found

    def owned(self) -> Iterator[tuple[Path, os.stat_result]]:
        """What lies on disk, with its owner and mode: the pack, its folders, files."""
        raise NotImplementedError

    def close(self) -> None:
        pass

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, name: str) -> BinaryIO:
        raise NotImplementedError

    def _learn(self, raw: bytes) -> None:
        self.manifest_bytes = raw
        try:
            self.manifest = Manifest.from_bytes(raw)
        except Refused as error:
            raise Refused(f"{papers.NAME} is not to be used: {error}") from None
        self._folders = {p for name in self.names() for p in papers.parents(name)}

    def _assert_whole(self, found: Collection[str]) -> None:
        if missing := next((n for n in self.names() if n not in found), None):
            raise Refused(f"{missing!r} is in its manifest, and missing")
        if self.signature is not None and len(self.signature) != SIGNATURE_BYTES:
            raise Refused(f"{papers.SIGNATURE} in it is no signature")

    def _pieces(self, name: str) -> Iterator[bytes]:
        """All but the last bytes may be out before the hash is known to be wrong."""
        told = self.manifest.files[name]
        digest, size = hashlib.sha256(), 0
        with self._opened(name) as file:
            while size <= told.size and (piece := file.read(_PIECE)):
                size += len(piece)
                digest.update(piece)
                yield piece
        _assert_same(name, told, size, digest.hexdigest())


def _assert_same(name: str, told: File, size: int, digest: str) -> None:
    if size != told.size:
        more = "more than" if size > told.size else f"{size} of"
        raise Refused(f"{name} was changed: it has {more} {told.size} bytes")
    if digest != told.sha256:
        raise Refused(f"{name} was changed: its sha256 is not that of the manifest")


def open_pack(path: str | os.PathLike[str]) -> Contents:
    """A pack to look into. No such path is a `UserError`, all else a refusal."""
    given = Path(path)
    try:
        # A link to a pack is followed; within a pack there are none.
        real = Path(os.path.realpath(given, strict=True))
        handle = os.open(real, _FLAGS)
    except FileNotFoundError as error:
        raise UserError(f"cannot open {given}: {error.strerror}") from None
    except OSError as error:
        raise Refused(f"cannot open {given}: {error.strerror}") from None
    except ValueError as error:  # a NUL character
        raise UserError(f"cannot open {given}: {error}") from None
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            return _Folder(given, handle)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("it is neither a folder nor a file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            pack = _Archive(given, file, found)
        os.close(handle)
        return pack
    except BaseException as error:
        os.close(handle)
        if isinstance(error, Refused):
            raise Refused(f"{given} is refused: {error}") from None
        raise


def is_pack(path: str | os.PathLike[str]) -> bool:
    """Whether a path is to be read as a pack, be it a good one or not."""
    given = Path(path)
    try:
        if os.path.isdir(given):
            return os.path.isfile(given / papers.NAME)
        with files.open_regular(given) as file:
            return file.read(2) == _GZIP
    except OSError:
        return False


class _Folder(Contents):
    def __init__(self, path: Path, handle: int) -> None:
        super().__init__(path)
        self._handle = handle
        raw = self._small(papers.NAME, papers.MOST_BYTES)
        if raw is None:
            raise Refused(f"it has no {papers.NAME}, so it is no pack")
        self._learn(raw)
        self.signature = self._small(papers.SIGNATURE, SIGNATURE_BYTES)
        self._assert_whole(set(self._walk("")))

    def owned(self) -> Iterator[tuple[Path, os.stat_result]]:
        yield self.path, os.fstat(self._handle)
        signed = [papers.SIGNATURE] if self.signature is not None else []
        for name in (*sorted(self._folders), papers.NAME, *signed, *self.names()):
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
            raise Refused(f"{name} in it is no plain file")
        return os.fdopen(handle, "rb")

    def _open(self, name: str) -> int:
        """Folder by folder from the one that is held, and through no link."""
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
        """The files there are; anything that the manifest does not tell of ends it."""
        handle = self._open(folder) if folder else os.dup(self._handle)
        try:
            with os.scandir(handle) as found:
                listed = [
                    (entry.name, entry.stat(follow_symlinks=False)) for entry in found
                ]
        except OSError as error:
            raise Refused(
                f"{folder or 'it'} cannot be read: {error.strerror}"
            ) from None
        finally:
            os.close(handle)
        for part, status in sorted(listed):
            name = f"{folder}/{part}" if folder else part
            if name in papers.OWN:
                continue
            if stat.S_ISDIR(status.st_mode) and name in self._folders:
                yield from self._walk(name)
            elif stat.S_ISREG(status.st_mode) and name in self.manifest.files:
                yield name
            else:
                raise Refused(_unlisted(name, status.st_mode))


def _unlisted(name: str, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return f"{name!r} in it is a symbolic link; a pack holds plain files"
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return f"{name!r} in it is a device or pipe; a pack holds plain files"
    return f"{name!r} is not in its manifest: remove it, or make the pack again"


class _Archive(Contents):
    """All of it in memory: what was checked is what is used.

    Its manifest is its first file, so that no more is read than the manifest tells of.
    """

    def __init__(self, path: Path, file: BinaryIO, status: os.stat_result) -> None:
        super().__init__(path)
        self._status, self._root = status, ""
        self._held: dict[str, bytes] = {}
        if file.read(len(_GZIP)) != _GZIP:
            raise Refused("it is neither a folder nor a .tar.gz")
        file.seek(0)
        try:
            self._take(file)
        except EOFError:
            raise Refused("it is cut off: its end is missing") from None
        except (OSError, zlib.error) as error:
            raise Refused(f"it is damaged: {error}") from None
        if papers.NAME not in self._held:
            raise Refused(f"it has no {papers.NAME}, so it is no pack")
        self.signature = self._held.get(papers.SIGNATURE)
        self._assert_whole(self._held)

    def owned(self) -> Iterator[tuple[Path, os.stat_result]]:
        yield self.path, self._status

    def _opened(self, name: str) -> BinaryIO:
        return io.BytesIO(self._held[name])

    def _take(self, file: BinaryIO) -> None:
        with gzip.GzipFile(fileobj=file) as stream:
            for entry, held in ustar.entries(stream, self._most_bytes):
                name = entry.name.rstrip("/").partition("/")[2]
                self._held[name] = held
                if name == papers.NAME:
                    self._learn(held)
                    if self.manifest.size > _ARCHIVE_BYTES:
                        raise Refused("it is too large: unpack it and use the folder")
        self._held = {n: h for n, h in self._held.items() if n not in self._folders}

    def _most_bytes(self, entry: ustar.Entry) -> int:
        """What an entry may have, asked before any of it is read."""
        root, _, name = entry.name.rstrip("/").partition("/")
        if wrong := papers.why_unsafe(entry.name.rstrip("/") or "/"):
            raise Refused(f"{entry.name!r} in it {wrong}")
        self._root = self._root or root
        if root != self._root or not (name or entry.is_folder):
            raise Refused(f"{entry.name!r} in it lies outside of {self._root!r}")
        if name in self._held:
            raise Refused(f"{entry.name!r} is in it twice")
        if not name:
            return 0
        own = {papers.NAME: papers.MOST_BYTES, papers.SIGNATURE: SIGNATURE_BYTES}
        if name in own and not entry.is_folder:
            return own[name]
        if papers.NAME not in self._held:
            raise Refused(
                "its manifest is not its first file: unpack it, use the folder"
            )
        if entry.is_folder and name in self._folders:
            return 0
        if entry.is_folder or name not in self.manifest.files:
            raise Refused(f"{name!r} is not in its manifest: make the pack again")
        return self.manifest.files[name].size
