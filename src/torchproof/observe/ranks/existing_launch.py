"""Takes part in a launch that exists: torchrun, Slurm or Kubernetes started the ranks.

Each rank is `torchproof check` of its own, with the rank's process as its child. They
meet in a folder of the working directory. Rank 0 waits for the others, reports, and
publishes the exit code that all of them end with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchproof.observe.ranks.joined_ranks import JoinedRanks, join
from torchproof.observe.ranks.launched import Place
from torchproof.observe.ranks.rank_streams import last_entry, stream_path
from torchproof.observe.ranks.rank_supervisor import RankEnd, supervise
from torchproof.records import JsonObject, store
from torchproof.targets import Job, Options, Target

# What tells one launch from another: torchrun's and Slurm's ids, and the restarts.
_ID_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_LOOK_S = 0.2
# After a rank has failed, the others get this long to notice and to end by themselves.
_NOTICE_S = 15.0
_SILENT_S = 60.0  # without an entry, a rank has ended with its supervisor
_REPORT_S = 300.0  # that rank 0 may take to report
_VERDICT = "exit-code.json"


def launch_id(variables: Mapping[str, str]) -> str:
    text = json.dumps([variables.get(name) for name in _ID_VARIABLES])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class ExistingLaunch:
    """The launch that this process is a rank of."""

    place: Place
    folder: Path
    began: float  # wall time
    wrap: str | None = None
    launcher: tuple[str, ...] = ()

    @classmethod
    def current(cls) -> ExistingLaunch | None:
        """The launch of this process; None if it is none of several ranks."""
        place = Place.current()
        if place is None:
            return None
        folder = store.RUNS.parent / "ranks" / launch_id(os.environ)
        return cls(place, folder, time.time())

    @property
    def count(self) -> int:
        return self.place.world_size

    # -- rank 0 ------------------------------------------------------------------------

    def observe(
        self, target: Target, options: Options, progress: Callable[[str], None]
    ) -> JoinedRanks:
        """On rank 0: runs its own part, waits for the others, and joins all."""
        end = self._run(target, options)
        self._await_others(end, progress)
        ending = end.ending if end.ending in ("timeout", "interrupted") else "finished"
        joined = join(self.folder, self.count, target, ending=ending)
        return replace(joined, run=replace(joined.run, launcher="an existing launch"))

    def _await_others(self, end: RankEnd, progress: Callable[[str], None]) -> None:
        began = time.time()
        while missing := [rank for rank in range(self.count) if not self._ended(rank)]:
            seconds = time.time() - began
            if (end.code != 0 or self._failures()) and seconds > _NOTICE_S:
                return
            if all(self._silence_s(rank) > _SILENT_S for rank in missing):
                return
            if seconds > 1:
                progress(f"waiting for ranks {missing}, {seconds:.0f} s")
            time.sleep(_LOOK_S)

    def publish(self, code: int) -> None:
        """Tells the other ranks the exit code, and clears up once they have read it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"code": code, "wall": time.time()})
        temporary = self.folder / f"{_VERDICT}.tmp"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.folder / _VERDICT)
        stream_path(self.folder, 0).unlink(missing_ok=True)
        began = time.time()
        while any(self.folder.glob("rank-*")) and time.time() - began < _NOTICE_S:
            time.sleep(_LOOK_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- the other ranks ---------------------------------------------------------------

    def take_part(self, target: Target, options: Options) -> int:
        """On another rank: runs its part, and returns the exit code of rank 0."""
        end = self._run(target, options)
        verdict = self._verdict()
        stream_path(self.folder, self.place.rank).unlink(missing_ok=True)
        if verdict is not None:
            return verdict
        return 2 if end.code != 0 else 0

    def _verdict(self) -> int | None:
        """What rank 0 published; None if it ended without."""
        began = time.time()
        while time.time() - began < _REPORT_S:
            with contextlib.suppress(FileNotFoundError, ValueError):
                text = (self.folder / _VERDICT).read_text(encoding="utf-8")
                verdict = json.loads(text)
                if verdict["wall"] >= self.began:  # not of an earlier launch
                    return int(verdict["code"])
            if not self._ended(0):
                if self._silence_s(0) > _SILENT_S:
                    return None
                began = time.time()
            time.sleep(_LOOK_S)
        return None

    # -- all ranks ---------------------------------------------------------------------

    def _run(self, target: Target, options: Options) -> RankEnd:
        self.folder.mkdir(parents=True, exist_ok=True)
        stream_path(self.folder, self.place.rank).unlink(missing_ok=True)
        if self.place.rank == 0:
            self._forget_earlier_launch()
        job = replace(Job.of(target, options), wrap=self.wrap)
        return supervise(
            json.dumps(job.to_json()),
            self.folder,
            timeout_s=options.timeout_s,
            must_stop=self._others_failed_long_ago,
        )

    def _forget_earlier_launch(self) -> None:
        """Removes streams of a launch with the same id whose rank 0 was killed."""
        for path in self.folder.glob("rank-*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < self.began - _SILENT_S:
                    path.unlink()

    def _others_failed_long_ago(self) -> bool:
        """A rank that waits for one that failed may wait for hours."""
        return any(self._silence_s(rank) > _NOTICE_S for rank in self._failures())

    def _failures(self) -> list[int]:
        ends = {rank: self._end(rank) for rank in range(self.count)}
        return [rank for rank, end in ends.items() if end and end["code"] != 0]

    def _ended(self, rank: int) -> bool:
        return self._end(rank) is not None

    def _end(self, rank: int) -> JsonObject | None:
        entry = last_entry(stream_path(self.folder, rank))
        return entry if entry and entry["kind"] == "rank_end" else None

    def _silence_s(self, rank: int) -> float:
        """The time since the last entry of a rank; since the begin, if it has none."""
        try:
            last = stream_path(self.folder, rank).stat().st_mtime
        except FileNotFoundError:
            last = self.began
        return time.time() - last
