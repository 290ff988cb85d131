"""Saves and loads runs: `.torchproof/runs/ID/run.json`, written atomically."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torchproof.records import files, schema
from torchproof.records.run import SCHEMA, Run, UserError

RUNS = Path(".torchproof") / "runs"


def assert_writable(root: Path = RUNS) -> None:
    """Fails if no run can be saved, so that a verb fails before its work."""
    folder = root.absolute()
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise UserError(f"cannot save runs in {root}: {nearest} is not writable")


@contextlib.contextmanager
def scratch(root: Path = RUNS) -> Iterator[Path]:
    """A temporary folder for files of a run; deleted at the end unless saved."""
    assert_writable(root)
    root.mkdir(parents=True, exist_ok=True)
    _hide_from_git(root.parent)
    folder = Path(tempfile.mkdtemp(prefix=".saving-", dir=root))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hide_from_git(folder: Path) -> None:
    """Runs belong to a machine: a folder that torchproof made ignores itself."""
    if folder.name == RUNS.parent.name:
        with contextlib.suppress(OSError), open(folder / ".gitignore", "x") as file:
            file.write("*\n")


def save(run: Run, root: Path = RUNS, folder: Path | None = None) -> Run:
    """Saves a run under its id, or the id with a number if the id exists.

    `folder` is a folder from `scratch`: it becomes the folder of the run.
    """
    if not _is_name(run.id):
        raise UserError(f"the run cannot be saved: {run.id!r:.80} is not an id")
    if folder is None:
        with scratch(root) as folder:
            return save(run, root, folder)
    for number in range(1, 10_000):
        named = replace(run, id=run.id if number == 1 else f"{run.id}-{number}")
        if (root / named.id).exists():
            continue
        text = json.dumps(named.to_json(), indent=1)
        (folder / "run.json").write_text(text + "\n", encoding="utf-8")
        try:
            # Renaming never replaces a folder with a run: the process that loses a
            # race takes the next number.
            os.rename(folder, root / named.id)
            return named
        except OSError:
            if not (root / named.id).exists():
                raise
    raise UserError(f"too many runs named {run.id} in {root}: delete some")


def _is_name(id: str) -> bool:
    """Whether an id names a folder of `root`; it may come from a file."""
    return "/" not in id and id.isprintable() and id[:1] not in ("", ".")


def load(name: str | None, root: Path = RUNS) -> Run:
    """A run by id, unique prefix, folder or JSON file; the latest for None."""
    if name is None:
        folders = listing(root)
        if not folders:
            raise UserError(f"no runs in {root}: make one with torchproof check TARGET")
        latest = max(folders, key=lambda p: (p / "run.json").stat().st_mtime)
        return read(latest / "run.json")
    path = Path(name)
    if os.path.lexists(path) and not os.path.isdir(path):
        return read(path)
    if os.path.isfile(path / "run.json"):
        return read(path / "run.json")
    matching = [p for p in listing(root) if p.name == name] or [
        p for p in listing(root) if p.name.startswith(name)
    ]
    if not matching:
        raise UserError(f"no run {name!r} in {root}: torchproof show --list shows them")
    if len(matching) > 1:
        names = ", ".join(p.name for p in matching[:4])
        raise UserError(
            f"{name!r} matches {len(matching)} runs ({names}): be more specific"
        )
    return read(matching[0] / "run.json")


def read(path: Path) -> Run:
    """Reads a run and checks it against the schema; every read of a run uses this."""
    try:
        raw = files.read_bytes(path, schema.MOST_BYTES)
        plain = schema.loads(raw.decode())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply for a run") from None
    except ValueError:  # not JSON, not UTF-8
        raise UserError(f"{path} is not the JSON of a run") from None
    if not isinstance(plain, dict):
        raise UserError(f"{path} is not the JSON of a run")
    version = plain.get("schema")
    if isinstance(version, bool) or not isinstance(version, int):
        raise UserError(f"{path}: not a torchproof run: it has no schema number")
    if version > SCHEMA:
        raise UserError(
            f"{path}: the run has schema {version}, but this torchproof reads schemas"
            f" up to {SCHEMA}: install a newer torchproof"
        )
    try:
        return Run.from_json(plain)
    except schema.Mismatch as error:
        raise UserError(f"{path}: not a torchproof run: {error}") from None


def listing(root: Path = RUNS) -> list[Path]:
    """The folders of complete runs, sorted by name."""
    if not root.is_dir():
        return []
    try:
        names = [name for name in os.listdir(root) if name[0] != "."]
    except OSError as error:
        raise UserError(f"cannot read {root}: {error.strerror}") from None
    return [root / n for n in sorted(names) if os.path.isfile(root / n / "run.json")]
