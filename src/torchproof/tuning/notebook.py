"""The trials of a search on disk, so that it can go on after an interruption.

`.torchproof/tune/KEY/NUMBER/`: the key stands for the target, its code and where it
ran; each search has a number. One file a trial, written whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchproof.records import UserError
from torchproof.tuning.trials import Trial

SEARCHES = "tune"  # beside the folder of runs
_HELD = ("torch", "python", "device", "gpu", "cuda", "machine", "cores", "size")


def key_of(
    asked: Mapping[str, Any], environment: Mapping[str, Any], code: Any
) -> dict[str, Any]:
    """What has to be the same for a trial to hold."""
    where = {name: environment.get(name) for name in _HELD}
    return {"asked": dict(asked), "environment": where, "code": code}


class Notebook:
    """The folder of one search, locked while that goes on."""

    def __init__(self, key: Mapping[str, Any], *, resume: bool, root: Path) -> None:
        text = json.dumps(key, sort_keys=True)
        home = root / hashlib.sha256(text.encode()).hexdigest()[:16]
        home.mkdir(parents=True, exist_ok=True)
        numbers = sorted(int(p.name) for p in home.iterdir() if p.name.isdecimal())
        last = numbers[-1] if numbers else 0
        # What was never interrupted is there to be resumed as well: it is then known.
        self.folder = home / str(last if resume and last else last + 1)
        self.folder.mkdir(exist_ok=True)
        self._lock()
        (self.folder / "search.json").write_text(json.dumps(key, indent=1))
        self.trials = self._read() if resume else {}

    def _lock(self) -> None:
        self._locked = open(self.folder / "lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another search goes on in {self.folder}: wait for it, or start one of"
                " your own without --resume"
            ) from None

    def _read(self) -> dict[str, Trial]:
        found = {}
        for path in sorted(self.folder.glob("trial-*.json")):
            try:
                trial = Trial.from_json(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError, AttributeError):
                continue  # damaged: it is tried again
            found[trial.name] = trial
        return found

    def find(self, name: str, limit_s: float) -> Trial | None:
        """An earlier trial; one that was given up counts only if it had as long."""
        trial = self.trials.get(name)
        if trial is None or trial.outcome == "lost":
            return None
        if trial.outcome == "timed out" and (trial.limit_s or 0.0) < limit_s:
            return None
        return trial

    def add(self, trial: Trial) -> None:
        number = len(list(self.folder.glob("trial-*.json"))) + 1
        path = self.folder / f"trial-{number:03}.json"
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
