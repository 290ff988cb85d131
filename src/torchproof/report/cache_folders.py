"""Lists the folders that cache compiled code, with their sizes, and clears them.

The paths follow the rules of torch 2.11 to 2.15. Torch itself is not imported, so that
this is fast and works with a broken installation.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchproof.records import UserError, line, seen
from torchproof.report import numbers

# The entries that each cache writes. A variable may name a folder with other files.
_KNOWN = {
    "inductor": r"[a-z0-9]{2}|c[a-z2-7]{51}|tmp\w{8}(\.py)?|gcc|quack|torch_cutlass"
    r"|unhashed_kernel_inputs|autoheuristic|aoti_eager|bisect|halide-runtime-.*"
    r"|memoizer_cache\..*|fxgraph|aotautograd|triton|dynamo|cache|locks"
    r"|precompiled_headers",
    "triton": r"[A-Za-z0-9_-]{40,}",
    "cuda": r"[0-9a-f]|index",
    "extensions": r"py\d+_\w+",
}


@dataclass(frozen=True)
class CacheFolder:
    """A folder that caches compiled code."""

    name: str
    path: Path
    about: str
    chosen_by: str = ""  # the environment variable that sets the path, if one does
    files: int = 0
    bytes: int | None = None  # None: the folder does not exist
    why_kept: str = ""  # why it is not cleared

    @property
    def command(self) -> str:
        return f"torchproof show --caches --clear {self.name}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": str(self.path),
            "about": self.about,
            "chosen_by": self.chosen_by or None,
            "files": self.files,
            "bytes": self.bytes or 0,
            "exists": self.bytes is not None,
            "clear": None if self.why_kept else self.command,
            "kept": self.why_kept or None,
        }


def listing(environ: Mapping[str, str] | None = None) -> list[CacheFolder]:
    """Every folder that may cache compiled code on this machine, with its size."""
    places = _places(os.environ if environ is None else environ)
    return [_measured(place) for place in places]


def cleared(folders: Iterable[CacheFolder], name: str) -> list[CacheFolder]:
    """Empties the folder of that name, or all for `all`; returns the emptied ones."""
    by_name = {folder.name: folder for folder in folders}
    if name != "all" and name not in by_name:
        names = ", ".join([*by_name, "all"])
        raise UserError(f"--clear {name}: unknown cache; choose from {names}")
    chosen = list(by_name.values()) if name == "all" else [by_name[name]]
    refused = [folder for folder in chosen if folder.why_kept]
    if refused and name != "all":
        raise UserError(f"{refused[0].path} is not cleared: {refused[0].why_kept}")
    emptied = []
    for folder in chosen:
        # Checks the path again: it may have become a link since the listing.
        if folder.bytes is not None and not _why_kept(folder.path):
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


# -- sizes and text --------------------------------------------------------------------


def _measured(place: CacheFolder) -> CacheFolder:
    """The folder with its size; files that disappear meanwhile are not counted."""
    if not place.path.is_dir():
        return place
    sizes = []
    for folder, _, files in os.walk(place.path):
        for name in files:
            with contextlib.suppress(OSError):
                sizes.append(os.lstat(os.path.join(folder, name)).st_size)
    kept = _why_kept(place.path)
    return replace(place, files=len(sizes), bytes=sum(sizes), why_kept=kept)


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


def render(
    folders: Sequence[CacheFolder], cleared: Sequence[CacheFolder] | None, format: str
) -> str:
    """The folders, and those that were cleared; `cleared` is None without --clear."""
    if format == "json":
        names = None if cleared is None else [folder.name for folder in cleared]
        rows = [folder.to_json() for folder in folders]
        return json.dumps({"caches": rows, "cleared": names}, indent=1) + "\n"
    lines = [text for folder in folders for text in _lines(folder)]
    for folder in cleared or ():
        size = numbers.size(folder.bytes or 0)
        lines.append(f"Cleared {folder.name}: {size} in {line(folder.path)}.")
    if cleared == []:
        lines.append("Nothing to clear.")
    return "".join(f"{seen(text)}\n" for text in lines)


def _lines(folder: CacheFolder) -> Iterator[str]:
    size = "not present" if folder.bytes is None else numbers.size(folder.bytes)
    yield f"{folder.name:18}{size:>14}   {line(folder.path)}"
    by = f" ({folder.chosen_by})" if folder.chosen_by else ""
    yield f"    {line(folder.about)}{by}"
    if folder.bytes is not None:
        action = (
            f"not cleared: {folder.why_kept}" if folder.why_kept else folder.command
        )
        yield f"    {numbers.amount(folder.files, 'file')}; {line(action)}"
