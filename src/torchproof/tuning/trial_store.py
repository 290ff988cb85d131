"""Stores the trials of a search on disk, so that `--resume` can continue it.

The directory is `.torchproof/tune/KEY/NUMBER/`: the key is a hash of the target, its
code and the machine; the number counts the searches. Each trial is one file, which is
written atomically.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from torchproof.records import Outcome, Trial, UserError, files, schema

SEARCHES = "tune"  # beside the folder of runs
_MOST_BYTES = 64 << 20  # of a trial
_ENVIRONMENT = (
    "torch",
    "python",
    "device",
    "gpu",
    "cuda",
    "machine",
    "cores",
    "threads",
    "size",
)


def key_of(
    options: Mapping[str, Any], environment: Mapping[str, Any], code: Any
) -> dict[str, Any]:
    """The key: a stored trial is valid only if all of this is the same."""
    where = {name: environment.get(name) for name in _ENVIRONMENT}
    return {"asked": dict(options), "environment": where, "code": code}


class TrialStore:
    """The directory of one search, locked while the search runs."""

    def __init__(self, key: Mapping[str, Any], *, resume: bool, root: Path) -> None:
        text = json.dumps(key, sort_keys=True)
        home = root / hashlib.sha256(text.encode()).hexdigest()[:16]
        try:
            self.folder = _folder(home, resume=resume)
            self._lock()
            (self.folder / "search.json").write_text(json.dumps(key, indent=1))
        except OSError as error:
            raise UserError(f"cannot store trials in {home}: {error}") from None
        self.trials = self._read() if resume else {}

    def _lock(self) -> None:
        self._locked = open(self.folder / "lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._locked.close()
            raise UserError(
                f"another search is running in {self.folder}: wait for it, or start a"
                " new one without --resume"
            ) from None

    def _read(self) -> dict[str, Trial]:
        trials = {}
        for path in sorted(self.folder.glob("trial-*.json")):
            try:
                plain = schema.loads(files.read_bytes(path, _MOST_BYTES).decode())
                trial = Trial.from_json(plain)
            except (OSError, ValueError, RecursionError, schema.Mismatch):
                continue  # damaged: the search tries the candidate again
            if _is_sound(trial):
                trials[trial.name] = trial
        return trials

    def find(self, name: str, limit_s: float) -> Trial | None:
        """An earlier trial; one that timed out counts only if its limit was as long."""
        trial = self.trials.get(name)
        if trial is None or trial.outcome == "lost":
            return None
        if trial.outcome == "timed out" and (trial.limit_s or 0.0) < limit_s:
            return None
        return trial

    def add(self, trial: Trial) -> None:
        numbers = map(_number, self.folder.glob("trial-*.json"))
        path = self.folder / f"trial-{max(numbers, default=0) + 1:03}.json"
        part = path.with_suffix(".part")
        plain = trial.to_json() | {"facts": trial.facts}
        part.write_text(json.dumps(plain, default=str), encoding="utf-8")
        os.replace(part, path)

    def resume_message(self) -> str:
        """The line that says what `--resume` reuses."""
        if self.trials:
            count = len(self.trials)
            return f"resuming with {count} earlier trial{'s' if count > 1 else ''}"
        return "nothing to resume: no earlier search of this target, code and machine"

    def close(self, *, finished: bool) -> None:
        """Unlock the directory; a finished search deletes its compiled code."""
        if finished:
            shutil.rmtree(self.folder / "caches", ignore_errors=True)
        self._locked.close()


def _folder(home: Path, *, resume: bool) -> Path:
    """The directory of the last search, or a new one."""
    home.mkdir(parents=True, exist_ok=True)
    while True:
        last = max(map(_number, home.iterdir()), default=0)
        # A finished search can be resumed too: all its trials are then reused.
        if resume and last:
            return home / str(last)
        with contextlib.suppress(FileExistsError):  # two searches that start at once
            (home / str(last + 1)).mkdir()
            return home / str(last + 1)


def _number(path: Path) -> int:
    """The number in the name of a search's directory or a trial's file, else 0."""
    text = path.stem.removeprefix("trial-")
    return int(text) if text.isdecimal() else 0


_FACTS = {"pass_ms", "first_call_s", "compile_s", "counts", "steady"}  # for the finals


def _is_sound(trial: Trial) -> bool:
    """Whether the outcome is known and the trial has the facts that the finals need."""
    if trial.outcome != "measured":
        return trial.outcome in get_args(Outcome)
    return trial.facts.keys() >= _FACTS
