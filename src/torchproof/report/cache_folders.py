"""Finds the folders that cache compiled code, measures them, and clears them.

The paths follow the rules of torch 2.11 to 2.15. Torch itself is not imported, so that
this is fast and works with a broken installation.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.records import UserError

# The folders of Inductor's cache and their content. Generated code is in folders named
# after the first characters of its hash, next to its autotuning results.
_PARTS = {
    "fxgraph": "graphs (fxgraph)",
    "aotautograd": "graphs of AOTAutograd",
    "triton": "Triton kernels",
    "dynamo": "recorded dynamic shapes (PGO)",
    "cache": "autotuning results",
    "precompiled_headers": "C++ headers",
    "locks": "locks",
}
_CODE = "generated code and libraries"
_CHOICES = "autotuning results"
_OTHER = "other files, never cleared"
# The entries that each cache writes. A variable may name a folder with other files.
_KNOWN = {
    "inductor": r"[a-z0-9]{2}|c[a-z2-7]{51}|tmp\w{8}(\.py)?|gcc|quack|torch_cutlass"
    r"|unhashed_kernel_inputs|autoheuristic|aoti_eager|bisect|halide-runtime-.*"
    r"|memoizer_cache\..*|" + "|".join(_PARTS),
    "triton": r"[A-Za-z0-9_-]{40,}",
    "cuda": r"[0-9a-f]|index",
    "extensions": r"py\d+_\w+",
}


@dataclass(frozen=True)
class Amount:
    """Number and size of files; `used` is the latest access to one of them."""

    files: int = 0
    bytes: int = 0
    used: float | None = None  # seconds since 1970

    def and_(self, status: os.stat_result) -> Amount:
        used = max(status.st_atime, status.st_mtime, self.used or 0)
        return Amount(self.files + 1, self.bytes + status.st_size, used)


@dataclass(frozen=True)
class CacheFolder:
    """A folder that caches compiled code, with the size of each part."""

    name: str
    path: Path
    about: str
    chosen_by: str = ""  # the environment variable that sets the path, if one does
    amount: Amount | None = None  # None: the folder does not exist
    parts: Mapping[str, Amount] = field(default_factory=dict, hash=False)
    kept: str = ""  # why it is not cleared

    @property
    def command(self) -> str:
        return f"torchproof show --caches --clear {self.name}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": str(self.path),
            "about": self.about,
            "chosen_by": self.chosen_by or None,
            **_told(self.amount or Amount()),
            "exists": self.amount is not None,
            "parts": {name: _told(part) for name, part in self.parts.items()},
            "clear": None if self.kept else self.command,
            "kept": self.kept or None,
        }


def _told(amount: Amount) -> dict[str, Any]:
    return {"files": amount.files, "bytes": amount.bytes, "used": amount.used}


def listing(environ: Mapping[str, str] | None = None) -> list[CacheFolder]:
    """Every folder that may cache compiled code on this machine, with its sizes."""
    places = _places(os.environ if environ is None else environ)
    return [_looked_through(place) for place in places]


def cleared(folders: Iterable[CacheFolder], name: str) -> list[CacheFolder]:
    """Empties the folder of that name, or all for `all`; returns the emptied ones."""
    by_name = {folder.name: folder for folder in folders}
    if name != "all" and name not in by_name:
        names = ", ".join([*by_name, "all"])
        raise UserError(f"--clear {name}: unknown cache; choose from {names}")
    chosen = list(by_name.values()) if name == "all" else [by_name[name]]
    refused = [folder for folder in chosen if folder.kept]
    if refused and name != "all":
        raise UserError(f"{refused[0].path} is not cleared: {refused[0].kept}")
    emptied = []
    for folder in chosen:
        # Checks the path again: it may have become a link since the listing.
        if folder.amount is not None and not _why_kept(folder.path):
            _empty(folder)
            emptied.append(folder)
    return emptied


def _empty(folder: CacheFolder) -> None:
    """Deletes the entries, not the folder, which a running process may use."""
    with os.scandir(folder.path) as entries:
        for entry in entries:
            if not _is_known(folder.name, entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)


def _is_known(cache: str, entry: str) -> bool:
    return bool(re.fullmatch(_KNOWN[cache.partition("-")[0]], entry))


# -- places ----------------------------------------------------------------------------


def _places(environ: Mapping[str, str]) -> Iterator[CacheFolder]:
    home = Path(environ.get("HOME") or Path.home())
    default = _default_inductor(environ)
    named = environ.get("TORCHINDUCTOR_CACHE_DIR")
    inductor = Path(named or default).absolute()
    by = "TORCHINDUCTOR_CACHE_DIR" if named else ""
    yield CacheFolder("inductor", inductor, "output of torch.compile", by)
    if inductor != default:
        about = "C++ headers, and output of programs without TORCHINDUCTOR_CACHE_DIR"
        yield CacheFolder("inductor-default", default, about)
    yield _place(
        ("triton", "Triton kernels that Inductor did not generate"),
        Path(environ.get("TRITON_HOME") or home) / ".triton" / "cache",
        environ,
        "TRITON_CACHE_DIR",
    )
    yield _place(
        ("cuda", "code that the driver compiled for this GPU"),
        home / ".nv" / "ComputeCache",
        environ,
        "CUDA_CACHE_PATH",
    )
    caches = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    yield _place(
        ("extensions", "C++ and CUDA extensions that torch built"),
        caches / "torch_extensions",
        environ,
        "TORCH_EXTENSIONS_DIR",
    )


def inductor_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder that Inductor writes generated code to, and loads it from."""
    return next(_places(os.environ if environ is None else environ)).path


def _place(
    names: tuple[str, str], default: Path, environ: Mapping[str, str], variable: str
) -> CacheFolder:
    value = environ.get(variable)
    path = Path(value).absolute() if value else default
    return CacheFolder(names[0], path, names[1], variable if value else "")


def _default_inductor(environ: Mapping[str, str]) -> Path:
    """The default path, as in torch/_inductor/runtime/cache_dir_utils.py."""
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    cleaned = re.sub(r'[\\/:*?"<>|]', "_", user)
    tmpdir = environ.get("TMPDIR", "")
    temporary = tmpdir if os.path.isdir(tmpdir) else tempfile.gettempdir()
    return Path(temporary, f"torchinductor_{cleaned}").absolute()


# -- contents --------------------------------------------------------------------------


def _looked_through(place: CacheFolder) -> CacheFolder:
    if not place.path.is_dir():
        return place
    parts: dict[str, Amount] = {}
    for part, status in _walk(place):
        parts[part] = parts.get(part, Amount()).and_(status)
    used = [part.used for part in parts.values() if part.used is not None]
    amount = Amount(
        sum(part.files for part in parts.values()),
        sum(part.bytes for part in parts.values()),
        max(used, default=None),
    )
    parts.pop("", None)
    return CacheFolder(
        place.name,
        place.path,
        place.about,
        place.chosen_by,
        amount=amount,
        parts=dict(sorted(parts.items(), key=lambda item: -item[1].bytes)),
        kept=_why_kept(place.path),
    )


def _walk(place: CacheFolder) -> Iterator[tuple[str, os.stat_result]]:
    """Each file with its part; files that disappear meanwhile are not counted."""
    inductor = place.name.startswith("inductor")
    for folder, _, files in os.walk(place.path):
        first = Path(folder).relative_to(place.path).parts[:1]
        for name in files:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            top = first[0] if first else name
            part = _PARTS.get(top, _CODE) if inductor else ""
            if not _is_known(place.name, top):
                part = _OTHER
            elif part == _CODE and name.endswith(".best_config"):
                part = _CHOICES
            yield part, status


def _why_kept(path: Path) -> str:
    """Why torchproof must not clear a folder; empty if it may."""
    try:
        status = path.lstat()
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link; clear its target"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}"
    resolved, home = path.resolve(), Path.home().resolve()
    working = Path.cwd().resolve()
    if resolved in (home, working, *home.parents, *working.parents, Path("/tmp")):
        return "it is a home or working directory, or a parent of one"
    if resolved == Path(tempfile.gettempdir()).resolve():
        return "it is the system's directory for temporary files"
    return ""
