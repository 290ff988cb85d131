"""Executors run trials on the devices of this machine or of a cluster.

An executor takes candidates, returns trials as they end, and compares the finalists on
one of its workers. The search decides which candidates run, and in which order.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from torchproof.measure import Plan, Replayed, WorkerError
from torchproof.records import Measurement, Outcome, Trial, UserError, shapes
from torchproof.strategies import matching
from torchproof.tuning.candidates import Candidate, Eager
from torchproof.tuning.trial_worker import Finalists, Progress, Worker

TRIES = 3  # attempts at a trial or at the finals whose worker is lost
_JOIN_S = 60.0
_ALONE_S = 15.0  # without any worker


class ExecutorLost(UserError):
    """No machine is left to run trials; those that ended remain valid."""


class Executor(Protocol):
    @property
    def name(self) -> str:
        """The executor as a report names it, such as `this machine` or `2 GPUs`."""

    def probe(self, limit_s: float) -> Eager:
        """Measure eager and inspect the target, as `Worker.probe` does."""

    def slots(self) -> int:
        """The number of trials that can start now."""

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        """Start a trial; call it only while `slots` is above 0."""

    def wait(self, seconds: float) -> list[Trial]:
        """The trials that ended; waits up to `seconds` for the first one."""

    def compare(self, finalists: Finalists, rounds: int) -> tuple[Measurement, ...]:
        """Measure eager and the finalists in alternating rounds on one worker."""

    def replay(
        self, candidate: Candidate, base: Candidate, count: int, limit_s: float
    ) -> Replayed:
        """Compare passes of a candidate with one of its base, as `Worker.replay`."""

    def close(self) -> None:
        """End all processes."""


@dataclass(frozen=True)
class Task:
    """The settings that all workers of a search share."""

    plan: Plan
    folder: Path  # for caches and answers
    shares_caches: bool


class Lost(Exception):
    """A worker has ended; the message says why."""


@dataclass
class Job:
    """A submitted trial."""

    candidate: Candidate
    limit_s: float
    tries: int = 0


@dataclass(eq=False)
class Member:
    """A worker of a pool: it joins, measures eager, and is then ready for trials."""

    where: str  # empty for this machine as a whole
    call: Callable[..., Future[Any]]  # a method of `Worker` by its name
    end: Callable[[], None]
    place: Any = None
    node: str = ""
    running: Future[Any] | None = None
    has_joined: bool = True
    eager: Eager | None = None
    job: Job | None = None


class Pool:
    """An executor with workers that may join and leave.

    A worker is ready once it has measured eager. One that is lost costs only its trial,
    which another worker runs again. One unlike the first is left out.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.members: list[Member] = []
        self.left_out: dict[str, UserError] = {}  # nodes, and why
        self.first: Member | None = None
        self.finalist: Member | None = None  # runs the finals
        self._waiting: deque[Job] = deque()
        self._ended: list[Trial] = []
        self._alone_since = math.inf
        self._limit_s = 0.0

    def check(self) -> None:
        """Called while waiting; raises if nobody wants the answer any more."""

    def recruit(self) -> None:
        """Called before each wait; adds members where there is room for them."""

    def why_none(self) -> UserError:
        none = UserError("no device is left that can run trials")
        return next(iter(self.left_out.values()), none)

    @property
    def idle(self) -> list[Member]:
        """The ready members; the first has measured eager for longest."""
        return [each for each in self.members if each.eager and not each.job]

    # -- trials ------------------------------------------------------------------------

    def probe(self, limit_s: float) -> Eager:
        """The answer of the first member that measured eager."""
        self._limit_s, begin = limit_s, time.monotonic()
        while self.first is None or self.first.eager is None:
            self.recruit()
            late = time.monotonic() - begin > _JOIN_S
            if not self.members or (
                late and not any(each.has_joined for each in self.members)
            ):
                raise self.why_none()
            self._collect(0.5)
        return self.first.eager

    def join(self, member: Member) -> None:
        """Add a member, which measures eager first."""
        member.running = member.running or member.call("probe", self._limit_s)
        self.members.append(member)

    def slots(self) -> int:
        self._collect(0.0 if self.idle else 0.2)
        return max(0, len(self.idle) - len(self._waiting))

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        self._waiting.append(Job(candidate, limit_s))
        self._assign()

    def wait(self, seconds: float) -> list[Trial]:
        end = time.monotonic() + seconds
        while not self._ended and (left := end - time.monotonic()) > 0:
            self._assign()
            self._collect(min(left, 0.5))
            self._assert_some()
        ended, self._ended = self._ended, []
        return ended

    def _assign(self) -> None:
        for member in self.idle[: len(self._waiting)]:
            member.job = job = self._waiting.popleft()
            job.tries += 1
            member.running = member.call("trial", job.candidate, job.limit_s)
            self._say(job.candidate.name, member)

    def _say(self, what: str, member: Member) -> None:
        if member.where:
            self._progress(f"{what}: on {member.where}")

    def _collect(self, seconds: float) -> None:
        """Handle the answers of members; waits up to `seconds` for the first one."""
        self.check()
        self.recruit()
        pending = {each.running: each for each in self.members if each.running}
        if not pending:
            time.sleep(seconds)
            return
        done = wait_for(pending, seconds, FIRST_COMPLETED).done
        for answer in (each for each in pending if each in done):
            member = pending[answer]
            job, member.job, member.running = member.job, None, None
            try:
                value = answer.result()
            except Lost as error:
                self._lose(member, error, job)
            except (UserError, WorkerError) as error:
                if job is None:
                    self._leave_out(member, error)
                else:
                    self._end(job, member, "failed", str(error))
            else:
                self._answered(member, job, value)

    def _answered(self, member: Member, job: Job | None, value: Any) -> None:
        if job is not None:
            self._ended.append(value)
        elif not member.has_joined:
            member.has_joined, member.where = True, value
            member.running = member.call("probe", self._limit_s)
        elif differing := self._differing(value):
            self._leave_out(member, UserError(differing))
        else:
            member.eager = value
            self.first = self.first or member
            if member.where:
                self._progress(f"{member.where} is ready")

    def _end(self, job: Job, member: Member, outcome: Outcome, why: str) -> None:
        name, stage = job.candidate.name, job.candidate.stage
        trial = Trial(name, stage, outcome, why, limit_s=job.limit_s)
        self._ended.append(replace(trial, where=member.where))

    def _differing(self, eager: Eager) -> str | None:
        """Why times are not comparable with those of the first member."""
        if self.first is None or self.first.eager is None:
            return None
        own, first = eager.environment, self.first.eager.environment
        for name in matching.ENVIRONMENT_KEYS:
            if own.get(name) != first.get(name):
                there = f"that of {self.first.where or 'the first'} is"
                return f"its {name} is {own.get(name)}, {there} {first.get(name)}"
        return None

    # -- the finals --------------------------------------------------------------------

    def compare(self, finalists: Finalists, rounds: int) -> tuple[Measurement, ...]:
        return tuple(self._finalist_call("compare", list(finalists), rounds))

    def replay(
        self, candidate: Candidate, base: Candidate, count: int, limit_s: float
    ) -> Replayed:
        arguments = candidate, base, count, limit_s
        replayed: Replayed = self._finalist_call("replay", *arguments)
        return replayed

    def _finalist_call(self, name: str, *arguments: Any) -> Any:
        """Call a method of one member; if it is lost, of another, from the start."""
        for _ in range(TRIES):
            if self.finalist is None or self.finalist not in self.members:
                while not self.idle:
                    self._collect(0.5)
                    self._assert_some()
                self.finalist = self.idle[0]
                self._say("finals", self.finalist)
            try:
                return self._call(self.finalist, name, *arguments)
            except Lost as error:
                self._lose(self.finalist, error)
        raise UserError(f"{TRIES} of its workers were lost, one after the other")

    def _call(self, member: Member, name: str, *arguments: Any) -> Any:
        """Call a method; Ctrl-C does not interrupt a wait without a timeout."""
        answer = member.call(name, *arguments)
        while not wait_for([answer], 0.2).done:
            self.check()
        return answer.result()

    # -- members that leave ------------------------------------------------------------

    def _assert_some(self) -> None:
        """Fail if there has been no member for a while."""
        if self.members:
            self._alone_since = math.inf
            return
        self._alone_since = min(self._alone_since, time.monotonic())
        if time.monotonic() - self._alone_since > _ALONE_S:
            raise self.why_none()

    def _leave_out(self, member: Member, error: Exception) -> None:
        if member.where:
            error = UserError(f"{member.where} is not used: {error}")
            self._progress(str(error))
        if not isinstance(error, UserError):
            error = UserError(str(error))
        self.left_out[member.node] = error
        self._remove(member)

    def _lose(self, member: Member, error: Lost, job: Job | None = None) -> None:
        if not member.has_joined:  # it would fail again the next time
            self._leave_out(member, error)
            return
        self._progress(f"{member.where} is lost: {error}")
        self._remove(member)
        if job and job.tries < TRIES:
            self._waiting.appendleft(job)
            self._progress(f"{job.candidate.name}: restarts on another worker")
        elif job:
            why = f"its worker was lost {job.tries} times: {error}"
            self._end(job, member, "lost", why)

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        member.end()


class Local(Pool):
    """Runs trials on this machine, with one worker per GPU.

    Trials on several GPUs compile at once; only one is timed at a time. If the
    objective needs cold first calls, or a trial is a group of ranks, which has all
    devices, there is one worker.
    """

    def __init__(self, task: Task, progress: Progress) -> None:
        super().__init__(progress)
        self._task = task
        self._workers: list[Worker] = []
        self._threads: list[ThreadPoolExecutor] = []

    def _add(self, gpu: str | None) -> None:
        task = self._task
        where = "" if gpu is None else f"GPU {gpu}"
        environment = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        folder = task.folder if gpu is None else task.folder / f"gpu-{gpu}"
        folder.mkdir(parents=True, exist_ok=True)
        worker = Worker(
            replace(task.plan, environment=environment),
            folder,
            home=task.folder,
            shares_caches=task.shares_caches,
            alone=gpu is None,
            where=where,
            progress=self._progress,
        )
        # The processes of a worker may end with the thread that started them.
        thread = ThreadPoolExecutor(1)
        self._workers.append(worker)
        self._threads.append(thread)

        def call(name: str, *arguments: Any) -> Future[Any]:
            return thread.submit(getattr(worker, name), *arguments)

        self.join(Member(where, call, worker.close, node=where))

    @property
    def name(self) -> str:
        count = len(self.members)
        return f"{count} GPUs" if count > 1 else "this machine"

    def probe(self, limit_s: float) -> Eager:
        self._limit_s = limit_s
        self._add(None)
        eager = super().probe(limit_s)
        cold = not self._task.shares_caches
        alone = cold or self._task.plan.ranks is not None
        if eager.environment["device"] == "cuda" and not alone:
            # The first worker keeps the device that torch selects.
            for gpu in _gpus(eager.environment)[1:]:
                self._workers[0].alone = False
                self._add(gpu)
        return eager

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        for worker in self._workers:  # processes that a thread started meanwhile
            worker.close()


def _gpus(environment: shapes.Environment) -> list[str]:
    """The GPUs that torch sees, by number or id."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is not None:
        return [name.strip() for name in variable.split(",") if name.strip()]
    return [str(number) for number, _ in enumerate(environment.get("gpus") or ())]
