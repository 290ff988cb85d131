"""The process that speaks with Ray, so that the search need not.

Ray's client takes minutes to give up on an address, ends its process when the head of
the cluster goes, and writes where it likes. Comes in: an errand, then requests over
a pipe. Goes out: trials, answers, and how many workers there are.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray.exceptions import RayError

from torchproof.measure import WorkerError
from torchproof.process import parent_death
from torchproof.records import UserError
from torchproof.tuning.cluster.remote_worker import Errand
from torchproof.tuning.cluster.worker_pool import Crew, Station
from torchproof.tuning.trial import Candidate, Trial

TRIES = 3  # of a trial whose worker is lost
_STALLED_S = 600.0  # beyond twice its limit: a trial that is not coming back
_JOIN_S = 60.0
_TOGETHER_S = 10.0
_REACH_S = 5.0


class Gone(Exception):
    """The search has ended, or asks for the end."""


@dataclass
class Job:
    """A trial on its way; `begun` when it was first given to a worker."""

    candidate: Candidate
    limit_s: float
    tries: int = 0
    begun: float = 0.0
    because: list[str] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """What the search allowed, less what lost workers used of it, up to half."""
        used = time.monotonic() - self.begun if self.begun else 0.0
        return max(self.limit_s - used, self.limit_s / 2)

    def lost(self) -> Trial:
        spec = self.candidate
        why = f"its worker was lost {self.tries} times: {self.because[-1]}"
        return Trial(spec.name, spec.stage, "lost", why, limit_s=self.limit_s)


class Bridge:
    """Carries out what is asked over the pipe, on the workers there are."""

    def __init__(self, pipe: Connection, crew: Crew) -> None:
        self.pipe, self.crew = pipe, crew
        self._asked: deque[tuple[Any, ...]] = deque()
        self._waiting: deque[Job] = deque()
        self._finals: list[tuple[str, tuple[Any, ...]]] = []
        self._finalist: Station | None = None
        self._told: tuple[int, int] | None = None

    def run(self) -> None:
        self._muster()
        while True:
            self._tell_crew()
            self._read()
            while self._asked:
                self._take(*self._asked.popleft())
            self._assign()
            self._collect(0.2)
            self.crew.recruit()
            self.crew.assert_some()

    def _muster(self) -> None:
        """Waits for the first worker, and a little for those that come with it."""
        begin = time.monotonic()
        end = begin + _JOIN_S
        while time.monotonic() < end:
            self.crew.recruit()
            if not self.crew.stations:
                break
            self._collect(0.5)
            self._read()
            if self.crew.joined and not self.crew.joining:
                return
            if self.crew.joined:
                end = min(end, time.monotonic() + _TOGETHER_S)
        if not self.crew.joined:
            raise UserError(self.crew.why_none())

    def _tell_crew(self) -> None:
        told = (len(self.crew.ready), self.crew.node_count)
        if told != self._told:
            self._told = told
            self.pipe.send(("crew", told))
        for line in self.crew.said:
            self.pipe.send(("said", line))
        self.crew.said.clear()

    def _read(self) -> None:
        """Takes what is asked; ends where the search wants that, or is no more."""
        while self.pipe.poll(0.0):
            asked = self.pipe.recv()
            if asked[0] == "close":
                raise Gone
            self._asked.append(asked)

    # -- requests ----------------------------------------------------------------------

    def _take(self, name: str, *given: Any) -> None:
        if name == "submit":
            self._waiting.append(Job(*given))
        elif name == "keep":
            for station in self.crew.idle:
                station.ask("keep", *given)  # nobody waits for the answer
        else:
            try:
                answer = ("answer", self._asked_for(name, *given))
            except WorkerError as error:
                answer = ("refused", str(error))
            self._tell_crew()
            self.pipe.send(answer)

    def _asked_for(self, name: str, *given: Any) -> Any:
        if name == "probe":
            return self._probe(*given)
        if name == "cold_start":
            return self._by_one(name, *given)[1]
        if (name, given[-1]) == ("sit", 0):
            self._finals, self._finalist = [], None
        self._finals.append((name, given))
        return self._final()

    def _probe(self, limit_s: float) -> dict[str, Any]:
        station, found = self._by_one("probe", limit_s)
        self.crew.like(station, found["environment"], limit_s)
        return dict(found)

    def _by_one(self, name: str, *given: Any) -> tuple[Station, Any]:
        """Any worker and its answer; where it is lost, another one's."""
        for _ in range(TRIES):
            station = self._somebody()
            try:
                return station, self._wait(station, name, *given)
            except RayError as error:
                self.crew.lose(station, error)
        raise UserError(f"{TRIES} of its workers were lost, one after the other")

    def _final(self) -> Any:
        """By one worker; where that is lost, all of it once more by another."""
        for _ in range(TRIES):
            calls = self._finals[-1:]
            if self._finalist is None or self._finalist not in self.crew.stations:
                self._finalist, calls = self._somebody(), self._finals
                self.crew.said.append(f"finals: on {self._finalist.where}")
                self._tell_crew()
                for other in self.crew.idle:
                    if other is not self._finalist:
                        other.ask("keep", ())
            try:
                return [self._wait(self._finalist, n, *g) for n, g in calls][-1]
            except RayError as error:
                self.crew.lose(self._finalist, error)
        raise UserError(f"{TRIES} of its workers were lost, one after the other")

    def _somebody(self) -> Station:
        """A worker without a trial; the one that knows eager best."""
        begin = time.monotonic()
        while time.monotonic() - begin < _JOIN_S:
            able = self.crew.idle or (self.crew.joined if not self.crew.model else [])
            if able:
                return able[0]
            self._read()
            self.crew.recruit()
            self.crew.assert_some()
            self._collect(0.5)
        raise UserError("no node of it is left")

    def _wait(self, station: Station, name: str, *given: Any) -> Any:
        reference = station.ask(name, *given)
        while not ray.wait([reference], timeout=0.5)[0]:
            self._read()
        ending, value = ray.get(reference)
        if ending == "refused":
            raise UserError(value)
        if ending == "failed":
            raise WorkerError(value)
        if ending == "broken":
            raise UserError(f"{station.where}: {value}")
        return value

    # -- trials ------------------------------------------------------------------------

    def _assign(self) -> None:
        for station in self.crew.idle:
            if not self._waiting:
                return
            job = self._waiting.popleft()
            job.tries += 1
            limit_s, job.begun = job.left_s, job.begun or time.monotonic()
            station.give(job, limit_s)
            self.crew.said.append(f"{job.candidate.name}: on {station.where}")

    def _collect(self, seconds: float) -> None:
        """Takes what came back, from trials and from workers that make ready."""
        pending = self.crew.pending()
        if not pending:
            time.sleep(seconds)
            return
        done, _ = ray.wait(list(pending), timeout=seconds)
        for reference in done:
            station = pending[reference]
            job, station.job, station.reference = station.job, None, None
            try:
                ending, value = ray.get(reference)
            except RayError as error:
                self._lose(station, job, error)
            else:
                if job is None:
                    self.crew.welcome(station, ending, value)
                else:
                    self._send(job, station, ending, value)
        self._give_up_stalled()

    def _send(self, job: Job, station: Station, ending: str, value: Any) -> None:
        if ending != "done":
            spec = job.candidate
            why = f"{station.where}: {value}"
            value = Trial(spec.name, spec.stage, "failed", why, limit_s=job.limit_s)
        self.pipe.send(("trial", replace(value, where=station.where)))

    def _lose(self, station: Station, job: Job | None, error: Exception) -> None:
        self.crew.lose(station, error)
        if job is None:
            return
        job.because.append(station.ended)
        if job.tries < TRIES:
            self._waiting.appendleft(job)
            self.crew.said.append(f"{job.candidate.name}: begins again on another one")
        else:
            self.pipe.send(("trial", job.lost()))

    def _give_up_stalled(self) -> None:
        for station in list(self.crew.busy):
            job = station.job
            if job and time.monotonic() > station.until + job.limit_s + _STALLED_S:
                station.job = None
                self._lose(station, job, TimeoutError("it does not answer"))


def connect(address: str) -> None:
    """`UserError` where no cluster is there; never starts one."""
    if address == "local":
        raise UserError("it names no cluster: HOST:PORT, or auto on one of its nodes")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), _REACH_S).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"nothing answers there ({error})") from None
    try:
        ray.init(address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # of many kinds, and of many lines
        told = " ".join(str(error).split()) or type(error).__name__
        raise UserError(told.partition(". ")[0][:200]) from None


def main(descriptor: int) -> None:
    """Serves the search at the other end of a pipe until that closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the search decides when it ends
    pipe = Connection(descriptor)
    address, errand = pipe.recv()
    assert isinstance(errand, Errand)
    try:
        connect(address)
        pipe.send(("connected", None))
        crew = Crew(errand)
        try:
            Bridge(pipe, crew).run()
        finally:
            crew.close()
    except (Gone, EOFError, BrokenPipeError):
        return
    except UserError as error:
        pipe.send(("failed", str(error)))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    parent_death.hold()
    os.environ.pop("RAY_ADDRESS", None)  # the search names the cluster
    main(int(sys.argv[1]))
