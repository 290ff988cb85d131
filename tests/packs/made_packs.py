"""Small packs to look into, and the tools to spoil them."""

from __future__ import annotations

import functools
import gzip
import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from torchproof import packs

FILES = {"repro.py": b"print(1)\n", "logs/torch/out.txt": b"x" * 3000, "empty": b""}


def fill(stage: packs.Stage, *, key: bytes | None = None) -> packs.Manifest:
    for name, held in FILES.items():
        (stage.path / name).parent.mkdir(parents=True, exist_ok=True)
        (stage.path / name).write_bytes(held)
    manifest = packs.Manifest("repro", "a", "0.1.0", target="a.py:make")
    return stage.seal(manifest, {"repro.py": "the program"}, key=key)


def folder(at: Path, *, key: bytes | None = None) -> Path:
    return Path(shutil.copytree(_made("folder", key), at))


def archive(at: Path, *, key: bytes | None = None) -> Path:
    return Path(shutil.copy(_made("archive", key), at))


_MADE = tempfile.TemporaryDirectory()


@functools.cache
def _made(kind: str, key: bytes | None) -> Path:
    """Made once, as a process watches over each pack that is made."""
    at = Path(tempfile.mkdtemp(dir=_MADE.name), "a.tar.gz")
    with getattr(packs, kind)(at) as stage:
        fill(stage, key=key)
    return at


Member = tuple[tarfile.TarInfo, bytes]


def rewritten(at: Path, change: Callable[[list[Member]], Iterable[Member]]) -> Path:
    """The archive with its members changed as someone with `tarfile` can."""
    with tarfile.open(at) as tar:
        held = [(m, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in change(held):
            tar.addfile(member, io.BytesIO(content))
    at.write_bytes(gzip.compress(raw.getvalue(), 1))
    return at


def member(name: str, content: bytes = b"", **facts: object) -> Member:
    found = tarfile.TarInfo(name)
    found.size = len(content)
    for key, value in facts.items():
        setattr(found, key, value)
    return found, content
