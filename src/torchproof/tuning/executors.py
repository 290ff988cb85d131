"""Who carries out trials: the devices of this machine, or of a cluster.

An executor is handed candidates, gives back trials as they end, and lets one of its
workers compare the finalists. Which candidates, and in which order, it does not decide.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from torchproof.measure import Plan
from torchproof.records import Measurement, UserError
from torchproof.tuning.timing_lock import TimingLock
from torchproof.tuning.trial import Candidate, Trial
from torchproof.tuning.trial_worker import Progress, Worker

Finalists = Sequence[tuple[Candidate, Trial]]


class Executor(Protocol):
    @property
    def name(self) -> str:
        """For people: this machine, 2 GPUs."""

    def probe(self, limit_s: float) -> dict[str, Any]:
        """Eager and what is known of the target, as `Worker.probe` tells it."""

    def cache_in(self, folder: Path) -> None:
        """Where compiled code is kept, for a search that may go on later."""

    def slots(self) -> int:
        """How many more trials can be begun at once."""

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        """Begins a trial; to be asked only while there are slots."""

    def wait(self, seconds: float) -> list[Trial]:
        """What has ended, waiting so long for the first one."""

    def keep(self, names: Collection[str]) -> None:
        """The processes of other trials are no longer needed."""

    def sit(self, finalists: Finalists, repeat: int) -> None:
        """Makes one worker ready to compare these."""

    def turns(self, names: Sequence[str], rounds: int) -> tuple[Measurement, ...]:
        """So many rounds of eager and these, in turns, by that worker."""

    def cold_start(self, candidate: Candidate, limit_s: float) -> tuple[float, float]:
        """Seconds of its first call, and of all its start, as `Worker` takes them."""

    def close(self) -> None:
        """Ends everything that was begun."""


@dataclass(frozen=True)
class Task:
    """What the workers of a search have in common."""

    plan: Plan
    folder: Path  # for caches and answers
    shares_caches: bool


_CORES_EACH = 4  # that compiling keeps busy, with Inductor's own processes
_MOST_LANES = 6


class Local:
    """The devices of this machine: one worker each, which share its cores.

    Trials are begun in lanes, as many as there are cores for; one at a time is timed.
    Where first calls are what counts, nothing else goes on beside them.
    """

    def __init__(self, task: Task, progress: Progress) -> None:
        self._task, self._progress, self._gate = task, progress, TimingLock()
        cores = len(os.sched_getaffinity(0))
        self._lanes = min(_MOST_LANES, max(1, cores // _CORES_EACH))
        if not task.shares_caches:
            self._lanes = 1
        self._workers: list[Worker] = []
        self._pools: list[ThreadPoolExecutor] = []
        self._going: dict[Future[Trial], tuple[int, Candidate, float]] = {}
        self._gone: set[int] = set()  # workers whose device does not do
        self._add(None)

    def _add(self, gpu: str | None) -> None:
        self._workers.append(self._worker(gpu))
        self._pools.append(ThreadPoolExecutor(self._lanes))

    @property
    def name(self) -> str:
        count = len(self._workers) - len(self._gone)
        return "this machine" if count == 1 else f"{count} GPUs"

    def _worker(self, gpu: str | None) -> Worker:
        task, own = self._task, {}
        if gpu is not None:
            own["CUDA_VISIBLE_DEVICES"] = gpu
        if self._lanes > 1:  # Inductor would start a process for each core in each
            own["TORCHINDUCTOR_COMPILE_THREADS"] = str(_CORES_EACH)
        plan = replace(task.plan, environment=own)
        folder = task.folder if gpu is None else task.folder / f"gpu-{gpu}"
        folder.mkdir(parents=True, exist_ok=True)
        return Worker(
            plan,
            folder,
            caches=task.folder / "caches",
            shares_caches=task.shares_caches,
            where="" if gpu is None else f"GPU {gpu}",
            timing_lock=self._gate,
            prestarted=self._lanes if self._lanes > 1 else 0,
            progress=self._progress,
        )

    def probe(self, limit_s: float) -> dict[str, Any]:
        facts = self._on(0, "probe", limit_s)
        if facts["environment"]["device"] == "cuda":
            # The first worker stays with the device that torch chooses.
            for gpu in visible_gpus()[1:]:
                self._add(gpu)
        return dict(facts)

    def cache_in(self, folder: Path) -> None:
        for worker in self._workers:
            worker.caches = folder

    def slots(self) -> int:
        workers = len(self._workers) - len(self._gone)
        most = max(self._lanes, workers) if self._task.shares_caches else 1
        return most - len(self._going)

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        busy = Counter(number for number, _, _ in self._going.values())
        able = [n for n in range(len(self._workers)) if n not in self._gone]
        number = min(able, key=busy.__getitem__)
        trial = self._workers[number].trial
        future = self._pools[number].submit(trial, candidate, limit_s)
        self._going[future] = number, candidate, limit_s

    def wait(self, seconds: float) -> list[Trial]:
        done, _ = wait_for(self._going, seconds, FIRST_COMPLETED)
        trials: list[Trial] = []
        for future in done:
            number, candidate, limit_s = self._going.pop(future)
            try:
                trials.append(future.result())
            except UserError as error:  # not even eager runs there
                if number == 0:
                    raise
                self._gone.add(number)
                self._progress(f"{self._workers[number].where} is not used: {error}")
                self.submit(candidate, limit_s)
        return trials

    def keep(self, names: Collection[str]) -> None:
        for worker in self._workers:
            worker.keep(names)

    def sit(self, finalists: Finalists, repeat: int) -> None:
        for worker in self._workers[1:]:
            worker.keep(())
        self._on(0, "sit", finalists, repeat)

    def turns(self, names: Sequence[str], rounds: int) -> tuple[Measurement, ...]:
        return tuple(self._on(0, "turns", names, rounds))

    def cold_start(self, candidate: Candidate, limit_s: float) -> tuple[float, float]:
        first_s, start_s = self._on(0, "cold_start", candidate, limit_s)
        return first_s, start_s

    def _on(self, number: int, name: str, *arguments: Any) -> Any:
        """In the worker's own thread: arms may end with the thread that began them."""
        worker = self._workers[number]
        future = self._pools[number].submit(getattr(worker, name), *arguments)
        while True:  # a wait without end would not be interrupted by Ctrl-C
            done, _ = wait_for([future], 0.2)
            if done:
                return future.result()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        for worker in self._workers:  # what a thread began meanwhile
            worker.close()


def visible_gpus() -> list[str]:
    """The GPUs that torch would see, by number or id."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is not None:
        return [name.strip() for name in variable.split(",") if name.strip()]
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.split() if answer.returncode == 0 else []
