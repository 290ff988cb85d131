"""Where compiled code is cached, how much there is, and how it is cleared.

Torch's own rules decide the places (2.11 to 2.15); torch is not asked, so that this
answers at once and where torch is broken.
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

# The folders of Inductor's cache, and what is in them. Generated code lies in folders
# named by the first letters of its hash, beside what autotuning chose for it.
_PARTS = {
    "fxgraph": "graphs (fxgraph)",
    "aotautograd": "graphs of AOTAutograd",
    "triton": "Triton kernels",
    "dynamo": "dynamic shapes seen before (PGO)",
    "cache": "choices of autotuning",
    "precompiled_headers": "C++ headers",
    "locks": "locks",
}
_CODE, _CHOICES = "generated code and libraries", "choices of autotuning"
_OTHER = "other files, never cleared"
# What each cache is known to hold. A variable may name a folder that holds more.
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
    """What files take; `used` is when one of them was last read or written."""

    files: int = 0
    bytes: int = 0
    used: float | None = None  # seconds since 1970

    def and_(self, status: os.stat_result) -> Amount:
        used = max(status.st_atime, status.st_mtime, self.used or 0)
        return Amount(self.files + 1, self.bytes + status.st_size, used)


@dataclass(frozen=True)
class CacheFolder:
    """A folder that compiled code is kept in, with what there is of each part."""

    name: str
    path: Path
    about: str
    chosen_by: str = ""  # the variable that says where it is, if one does
    amount: Amount | None = None  # None: there is no such folder
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
    """Every place where compiled code may be cached here, looked through."""
    places = _places(os.environ if environ is None else environ)
    return [_looked_through(place) for place in places]


def cleared(found: Iterable[CacheFolder], name: str) -> list[CacheFolder]:
    """Empties the folder of that name, or all for `all`; gives those it emptied."""
    known = {folder.name: folder for folder in found}
    if name != "all" and name not in known:
        names = ", ".join([*known, "all"])
        raise UserError(f"--clear {name}: there is no such cache, only {names}")
    chosen = list(known.values()) if name == "all" else [known[name]]
    refused = [folder for folder in chosen if folder.kept]
    if refused and name != "all":
        raise UserError(f"{refused[0].path} is not cleared: {refused[0].kept}")
    done = []
    for folder in chosen:
        # The places are looked at once more: a link may have come since.
        if folder.amount is not None and not _why_kept(folder.path):
            _empty(folder)
            done.append(folder)
    return done


def _empty(folder: CacheFolder) -> None:
    """The folder itself stays: a process that uses it goes on."""
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
    yield CacheFolder("inductor", inductor, "what torch.compile made", by)
    if inductor != default:
        about = "C++ headers, and what programs without TORCHINDUCTOR_CACHE_DIR made"
        yield CacheFolder("inductor-default", default, about)
    yield _place(
        ("triton", "kernels of Triton, unless Inductor made them"),
        Path(environ.get("TRITON_HOME") or home) / ".triton" / "cache",
        environ,
        "TRITON_CACHE_DIR",
    )
    yield _place(
        ("cuda", "what the driver compiled for this GPU"),
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


def _place(
    names: tuple[str, str], default: Path, environ: Mapping[str, str], variable: str
) -> CacheFolder:
    given = environ.get(variable)
    path = Path(given).absolute() if given else default
    return CacheFolder(names[0], path, names[1], variable if given else "")


def _default_inductor(environ: Mapping[str, str]) -> Path:
    """The rule of torch/_inductor/runtime/cache_dir_utils.py."""
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    cleaned = re.sub(r'[\\/:*?"<>|]', "_", user)
    given = environ.get("TMPDIR", "")
    temporary = given if os.path.isdir(given) else tempfile.gettempdir()
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
        *(place.name, place.path, place.about, place.chosen_by),
        amount=amount,
        parts=dict(sorted(parts.items(), key=lambda item: -item[1].bytes)),
        kept=_why_kept(place.path),
    )


def _walk(place: CacheFolder) -> Iterator[tuple[str, os.stat_result]]:
    """Each file with its part; what goes away meanwhile is not counted."""
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
    """Why a folder is not ours to clear; empty if it is."""
    try:
        status = path.lstat()
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if stat.S_ISLNK(status.st_mode):
        return "it is a link; clear what it leads to"
    if not stat.S_ISDIR(status.st_mode):
        return "it is no folder"
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}"
    resolved, home = path.resolve(), Path.home().resolve()
    here = Path.cwd().resolve()
    if resolved in (home, here, *home.parents, *here.parents, Path("/tmp")):
        return "it is more than a cache: a home, the folder you are in, or above them"
    if resolved == Path(tempfile.gettempdir()).resolve():
        return "it is the folder of all temporary files"
    return ""
