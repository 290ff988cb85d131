"""The trials of a search on disk, so that it can go on after an interruption.

`.torchproof/tune/KEY/NUMBER/`: the key stands for the target, its code and where it
ran; each search has a number. One file a trial, written whole or not at all.
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
from typing import Any

from torchproof.records import UserError, files, schema
from torchproof.tuning.trial import Trial

SEARCHES = "tune"  # beside the folder of runs
_MOST_BYTES = 64 << 20  # of a trial
_HELD = (
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
    """What has to be the same for a trial to hold."""
    where = {name: environment.get(name) for name in _HELD}
    return {"asked": dict(options), "environment": where, "code": code}


class TrialStore:
    """The folder of one search, locked while that goes on."""

    def __init__(self, key: Mapping[str, Any], *, resume: bool, root: Path) -> None:
        text = json.dumps(key, sort_keys=True)
        home = root / hashlib.sha256(text.encode()).hexdigest()[:16]
        try:
            self.folder = _folder(home, resume=resume)
            self._lock()
            (self.folder / "search.json").write_text(json.dumps(key, indent=1))
        except OSError as error:
            raise UserError(f"cannot keep trials in {home}: {error}") from None
        self.trials = self._read() if resume else {}

    def _lock(self) -> None:
        self._locked = open(self.folder / "lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._locked.close()
            raise UserError(
                f"another search goes on in {self.folder}: wait for it, or start one of"
                " your own without --resume"
            ) from None

    def _read(self) -> dict[str, Trial]:
        trials = {}
        for path in sorted(self.folder.glob("trial-*.json")):
            try:
                plain = schema.loads(files.read_bytes(path, _MOST_BYTES).decode())
                schema.check(Trial, plain)
                trial = Trial.from_json(plain)
            except (OSError, ValueError, RecursionError, schema.Mismatch):
                continue  # damaged: it is tried again
            if _is_sound(trial):
                trials[trial.name] = trial
        return trials

    def find(self, name: str, limit_s: float) -> Trial | None:
        """An earlier trial; one that was given up counts only if it had as long."""
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
        part.write_text(json.dumps(trial.to_json(), default=str), encoding="utf-8")
        os.replace(part, path)

    def told(self) -> str:
        """What there is to go on with."""
        if self.trials:
            count = len(self.trials)
            return f"goes on with {count} trial{'s' if count > 1 else ''} of before"
        return "nothing to go on with: this target, code and machine were not searched"

    def close(self, *, finished: bool) -> None:
        """Compiled code is kept only for a search that may go on."""
        if finished:
            shutil.rmtree(self.folder / "caches", ignore_errors=True)
        self._locked.close()


def _folder(home: Path, *, resume: bool) -> Path:
    """That of the last search, or one for the next."""
    home.mkdir(parents=True, exist_ok=True)
    while True:
        last = max(map(_number, home.iterdir()), default=0)
        # What was never interrupted is there to be resumed as well: it is then known.
        if resume and last:
            return home / str(last)
        with contextlib.suppress(FileExistsError):  # two that begin at once
            (home / str(last + 1)).mkdir()
            return home / str(last + 1)


def _number(path: Path) -> int:
    """Of a search's folder or a trial's file; 0 where it has none."""
    text = path.stem.removeprefix("trial-")
    return int(text) if text.isdecimal() else 0


_FACTS = {"pass_ms", "first_call_s", "compile_s", "counts", "steady"}  # for the finals


def _is_sound(trial: Trial) -> bool:
    """Whether it is as a search writes it, and not as somebody edited it."""
    if trial.outcome != "measured":
        return True
    return trial.facts.keys() >= _FACTS
