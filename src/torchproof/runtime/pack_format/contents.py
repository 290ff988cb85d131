"""Reads a pack, a folder or a .tar.gz, without running its code.

Takes a path, returns `Contents`. The manifest is read first. Every file is hashed while
it is read and compared with the manifest, so that a file that is replaced after opening
is refused, too. An archive is read into memory and never unpacked.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from torchproof.records import UserError, files
from torchproof.runtime.pack_format import manifest
from torchproof.runtime.pack_format.manifest import Manifest, Refused

_PIECE = 2**20
_ARCHIVE_BYTES = 2**31  # archives are read into memory
_SIGNATURE_BYTES = 200
_GZIP = b"\x1f\x8b"
_OVERHEAD = 2**12  # bytes of tar headers and padding for each file


class Contents:
    """An open pack: its manifest, and its files, which are read on demand.

    `path` is as the caller wrote it; `owned` are the resolved paths whose owner decides
    whether the pack is trusted.
    """

    def __init__(
        self,
        path: Path,
        manifest_bytes: bytes,
        open_file: Callable[[str], BinaryIO],
    ) -> None:
        self.path = path
        self.manifest_bytes = manifest_bytes
        self.manifest = _manifest(manifest_bytes)
        self.signature: bytes | None = None
        self.owned: tuple[Path, ...] = ()
        self._open_file = open_file

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

    def _pieces(self, name: str) -> Iterator[bytes]:
        """Yields a file in pieces; the hash is compared only after the last piece."""
        expected = self.manifest.files[name]
        digest = hashlib.sha256()
        size = 0
        try:
            with self._open_file(name) as file:
                while size <= expected.bytes and (piece := file.read(_PIECE)):
                    size += len(piece)
                    digest.update(piece)
                    yield piece
        except OSError as error:
            raise Refused(f"{name!r} cannot be read: {error.strerror}") from None
        if size != expected.bytes:
            actual = "more than" if size > expected.bytes else f"{size} of"
            raise Refused(f"{name} was changed: it has {actual} {expected.bytes} bytes")
        if digest.hexdigest() != expected.sha256:
            raise Refused(f"{name} was changed: its sha256 differs from the manifest")


def open_pack(path: str | os.PathLike[str]) -> Contents:
    """Opens a pack. Raises `UserError` if there is none, `Refused` if it is invalid."""
    location = Path(path)
    try:
        # A link to a pack is followed; links inside a pack are refused.
        real = Path(os.path.realpath(location, strict=True))
        return _folder(location, real) if real.is_dir() else _archive(location, real)
    except FileNotFoundError as error:
        raise UserError(f"cannot open {location}: {error.strerror}") from None
    except OSError as error:
        raise Refused(f"cannot open {location}: {error.strerror}") from None
    except ValueError as error:  # a NUL character
        raise UserError(f"cannot open {location}: {error}") from None
    except Refused as error:
        raise Refused(f"{location} is refused: {error}") from None


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


def _manifest(raw: bytes) -> Manifest:
    try:
        return Manifest.from_bytes(raw)
    except Refused as error:
        raise Refused(f"{manifest.NAME} is invalid: {error}") from None


def _assert_complete(contents: Contents, present: Collection[str]) -> None:
    listed = {*contents.names(), *manifest.OWN}
    if unlisted := sorted(set(present) - listed):
        raise Refused(
            f"{unlisted[0]!r} is not in its manifest: remove it, or build the pack"
            " again"
        )
    if missing := sorted(set(contents.names()) - set(present)):
        raise Refused(f"{missing[0]!r} is in its manifest, but missing")


# -- folders ---------------------------------------------------------------------------


def _folder(path: Path, root: Path) -> Contents:
    entries = dict(_walk(root))
    if manifest.NAME not in entries:
        raise Refused(f"it has no {manifest.NAME}, so it is not a pack")
    raw = files.read_bytes(root / manifest.NAME, manifest.MOST_BYTES)
    contents = Contents(path, raw, lambda name: files.open_regular(root / name))
    _assert_complete(contents, [n for n, mode in entries.items() if stat.S_ISREG(mode)])
    if manifest.SIGNATURE in entries:
        signature = root / manifest.SIGNATURE
        contents.signature = files.read_bytes(signature, _SIGNATURE_BYTES)
    contents.owned = (root, *(root / name for name in entries))
    return contents


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    """Yields the name and mode of every file and folder; follows no link."""
    for folder, folders, names in os.walk(root, onerror=_raise):
        for path in (Path(folder, name) for name in (*folders, *names)):
            mode = path.lstat().st_mode
            name = path.relative_to(root).as_posix()
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise Refused(_NOT_REGULAR.format(name))
            yield name, mode


_NOT_REGULAR = "{!r} in it is a link or a device; a pack contains only regular files"


def _raise(error: OSError) -> None:
    raise error


# -- archives --------------------------------------------------------------------------


def _archive(path: Path, real: Path) -> Contents:
    with files.open_regular(real) as file:
        if file.read(len(_GZIP)) != _GZIP:
            raise Refused("it is neither a folder nor a .tar.gz")
        file.seek(0)
        try:
            contents = _read_archive(path, _Limited(gzip.GzipFile(fileobj=file)))
        except EOFError:
            raise Refused("it is cut off: its end is missing") from None
        except (OSError, zlib.error, tarfile.TarError, ValueError) as error:
            raise Refused(f"it is damaged: {error}") from None
    contents.owned = (real,)
    return contents


class _Limited(io.RawIOBase):
    """A stream that ends with `Refused` at `limit`, however small its archive is."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self.limit = manifest.MOST_BYTES + _OVERHEAD
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(min(size, _PIECE) if size > 0 else _PIECE)
        self.limit -= len(piece)
        if self.limit < 0:
            raise Refused("it has more bytes than its manifest says")
        return piece


def _read_archive(path: Path, stream: _Limited) -> Contents:
    """Reads the manifest, which has to be the first file, and then what it lists."""
    present: dict[str, bytes] = {}
    contents: Contents | None = None
    root = ""
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise Refused(_NOT_REGULAR.format(member.name))
            root = root or member.name.partition("/")[0]
            name = member.name.removeprefix(f"{root}/")
            if name in present:
                raise Refused(f"{name!r} is in it twice")
            if contents is None and name != manifest.NAME:
                raise Refused(
                    "its manifest is not its first file: unpack it and use the folder"
                )
            if contents is not None:
                _assert_complete(contents, [name, *contents.names()])
            opened = tar.extractfile(member)
            assert opened is not None
            present[name] = opened.read()
            if contents is None:
                contents = Contents(
                    path, present[name], lambda name: io.BytesIO(present[name])
                )
                stream.limit += _size_of(contents.manifest)
    while stream.read(_PIECE):  # to the end: gzip checks its sum there
        pass
    if contents is None:
        raise Refused(f"it has no {manifest.NAME}, so it is not a pack")
    _assert_complete(contents, present)
    contents.signature = present.get(manifest.SIGNATURE)
    return contents


def _size_of(listed: Manifest) -> int:
    if listed.size > _ARCHIVE_BYTES:
        raise Refused(
            "it is too large to read into memory: unpack it and use the folder"
        )
    return listed.size + (len(listed.files) + 2) * _OVERHEAD
