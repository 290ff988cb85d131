"""Executors run trials on the devices of this machine or of a cluster.

An executor takes candidates, returns trials as they end, and compares the finalists on
one of its workers. The search decides which candidates run, and in which order.
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

from torchproof.measure import Plan, Replayed
from torchproof.records import Measurement, Trial, UserError
from torchproof.tuning.candidate import Candidate, Eager
from torchproof.tuning.timing_lock import TimingLock
from torchproof.tuning.trial_worker import Progress, Worker

Finalists = Sequence[tuple[Candidate, Trial]]


class Executor(Protocol):
    @property
    def name(self) -> str:
        """The executor as a report names it, such as `this machine` or `2 GPUs`."""

    def probe(self, limit_s: float) -> Eager:
        """Measure eager and inspect the target, as `Worker.probe` does."""

    def cache_in(self, folder: Path) -> None:
        """Set the directory for compiled code, so that a search can be resumed."""

    def slots(self) -> int:
        """The number of trials that can start now."""

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        """Start a trial; call it only while `slots` is above 0."""

    def wait(self, seconds: float) -> list[Trial]:
        """The trials that ended; waits up to `seconds` for the first one."""

    def keep(self, names: Collection[str]) -> None:
        """End the processes of all trials but these."""

    def prepare_finals(self, finalists: Finalists, repeat: int) -> None:
        """Prepare one worker to compare the finalists."""

    def turns(self, names: Sequence[str], rounds: int) -> tuple[Measurement, ...]:
        """Measure eager and these finalists in alternating rounds on that worker."""

    def replay(
        self, candidate: Candidate, sound: Candidate, count: int, limit_s: float
    ) -> Replayed:
        """Compare passes of a candidate with one of another, as `Worker.replay`."""

    def cold_start(self, candidate: Candidate, limit_s: float) -> tuple[float, float]:
        """The seconds of the cold first call, and of the whole cold start."""

    def close(self) -> None:
        """End all processes."""


@dataclass(frozen=True)
class Task:
    """The settings that all workers of a search share."""

    plan: Plan
    folder: Path  # for caches and answers
    shares_caches: bool


_CORES_EACH = 4  # cores that one compilation keeps busy, with Inductor's processes
_MOST_LANES = 6


class Local:
    """Runs trials on this machine, with one worker per device.

    Several trials compile at once, as many as the cores allow; only one is timed at a
    time. If the objective needs cold first calls, or a trial is a group of ranks, which
    has all devices, trials run one after another.
    """

    def __init__(self, task: Task, progress: Progress) -> None:
        self._task = task
        self._progress = progress
        self._timing_lock = TimingLock()
        cores = len(os.sched_getaffinity(0))
        self._lanes = min(_MOST_LANES, max(1, cores // _CORES_EACH))
        if not task.shares_caches or task.plan.ranks is not None:
            self._lanes = 1
        self._workers: list[Worker] = []
        self._pools: list[ThreadPoolExecutor] = []
        self._running: dict[Future[Trial], tuple[int, Candidate, float]] = {}
        self._unusable: set[int] = set()  # workers on whose device not even eager runs
        self._add(None)

    def _add(self, gpu: str | None) -> None:
        self._workers.append(self._worker(gpu))
        self._pools.append(ThreadPoolExecutor(self._lanes))

    @property
    def name(self) -> str:
        count = len(self._workers) - len(self._unusable)
        return "this machine" if count == 1 else f"{count} GPUs"

    def _worker(self, gpu: str | None) -> Worker:
        task = self._task
        environment = {}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        if self._lanes > 1:  # or Inductor starts a process per core in every lane
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(_CORES_EACH)
        plan = replace(task.plan, environment=environment)
        folder = task.folder if gpu is None else task.folder / f"gpu-{gpu}"
        folder.mkdir(parents=True, exist_ok=True)
        return Worker(
            plan,
            folder,
            caches=task.folder / "caches",
            shares_caches=task.shares_caches,
            where="" if gpu is None else f"GPU {gpu}",
            timing_lock=self._timing_lock,
            prestarted=self._lanes if self._lanes > 1 else 0,
            progress=self._progress,
        )

    def probe(self, limit_s: float) -> Eager:
        eager: Eager = self._on(0, "probe", limit_s)
        if eager.environment["device"] == "cuda" and self._task.plan.ranks is None:
            # The first worker keeps the device that torch selects.
            for gpu in visible_gpus()[1:]:
                self._add(gpu)
        return eager

    def cache_in(self, folder: Path) -> None:
        for worker in self._workers:
            worker.caches = folder

    def slots(self) -> int:
        workers = len(self._workers) - len(self._unusable)
        most = max(self._lanes, workers) if self._task.shares_caches else 1
        return most - len(self._running)

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        busy = Counter(number for number, _, _ in self._running.values())
        able = [n for n in range(len(self._workers)) if n not in self._unusable]
        number = min(able, key=busy.__getitem__)
        trial = self._workers[number].trial
        future = self._pools[number].submit(trial, candidate, limit_s)
        self._running[future] = number, candidate, limit_s

    def wait(self, seconds: float) -> list[Trial]:
        done, _ = wait_for(self._running, seconds, FIRST_COMPLETED)
        trials: list[Trial] = []
        for future in done:
            number, candidate, limit_s = self._running.pop(future)
            try:
                trials.append(future.result())
            except UserError as error:  # not even eager runs on that device
                if number == 0:
                    raise
                self._unusable.add(number)
                self._progress(f"{self._workers[number].where} is not used: {error}")
                self.submit(candidate, limit_s)
        return trials

    def keep(self, names: Collection[str]) -> None:
        for worker in self._workers:
            worker.keep(names)

    def prepare_finals(self, finalists: Finalists, repeat: int) -> None:
        for worker in self._workers[1:]:
            worker.keep(())
        self._on(0, "prepare_finals", finalists, repeat)

    def turns(self, names: Sequence[str], rounds: int) -> tuple[Measurement, ...]:
        return tuple(self._on(0, "turns", names, rounds))

    def replay(
        self, candidate: Candidate, sound: Candidate, count: int, limit_s: float
    ) -> Replayed:
        replayed: Replayed = self._on(0, "replay", candidate, sound, count, limit_s)
        return replayed

    def cold_start(self, candidate: Candidate, limit_s: float) -> tuple[float, float]:
        first_s, start_s = self._on(0, "cold_start", candidate, limit_s)
        return first_s, start_s

    def _on(self, number: int, name: str, *arguments: Any) -> Any:
        """Call a method in the worker's own thread.

        The strategy processes may end with the thread that started them.
        """
        worker = self._workers[number]
        future = self._pools[number].submit(getattr(worker, name), *arguments)
        while True:  # Ctrl-C does not interrupt a wait without a timeout
            done, _ = wait_for([future], 0.2)
            if done:
                return future.result()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        for worker in self._workers:  # processes that a thread started meanwhile
            worker.close()


def visible_gpus() -> list[str]:
    """The GPUs that torch can see, by number or id."""
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
