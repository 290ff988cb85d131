"""Runs a job of `deploy` on several ranks, for models with collectives in their graphs.

The first rank is the child process of the command. It starts the others, which do the
same work, and report to it as it reports to the command. A pack is for all ranks: one
that compiles other code than the first, or fails, makes the pack fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from torchproof.packs.deploy import PackJob, entry_of, error_of
from torchproof.process import (
    Child,
    Ended,
    Entry,
    Garbled,
    follows_from_another,
    rank_variables,
    reserved_port,
    spawn,
)
from torchproof.records import JsonObject, UserError
from torchproof.runtime import Unverified
from torchproof.targets import Job, Loaded, calls, parallel

Work = Callable[[PackJob], JsonObject]
End = Callable[[Exception], None]  # ends the process
Keys = tuple[tuple[str, ...], ...]  # the cache keys of each call's graphs
_LOST_S = 300.0  # how long the first rank waits for the others after it has finished
_GRACE_S = 2.0  # for other ranks to answer, after one has failed
_LOOK_EVERY_S = 0.1


def run(job: PackJob, work: Work, end: End) -> JsonObject:
    """Does the work on all ranks; returns the facts of this one.

    Calls `end` from another thread if another rank fails while this one waits for it,
    in the process group or in a collective.
    """
    if job.rank:
        os.makedirs(job.stage, exist_ok=True)
        with _joined(job) as joined:
            return work(joined)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        job = replace(job, port=port.getsockname()[1])
        children = {}
        for rank in range(1, job.ranks):
            text = json.dumps(_job_of(job, rank).to_json())
            child = spawn("-m", "torchproof.packs.deploy", text)
            children[rank] = stack.enter_context(child)
        others = _OtherRanks(children, job)
        try:
            with others.watched(end):
                facts = work(stack.enter_context(_joined(job)))
        except Exception as error:
            if cause := others.cause_of(error):
                raise cause from None
            raise
        others.assert_same(_keys(facts))
        return facts


def fresh(run: Job) -> Loaded:
    """The target, loaded anew, and wrapped as the service wraps its model."""
    loaded = calls.fresh(run)
    if run.wrap is None:
        return loaded
    plan = loaded.tensor_parallel_plan
    return replace(
        loaded, fn=parallel.wrapped(loaded.fn, run.wrap, lambda fn: fn, plan=plan)
    )


def _job_of(job: PackJob, rank: int) -> PackJob:
    """The others compile into folders of their own, and verify the same pack."""
    stage = f"{job.scratch}/rank-{rank}" if job.role == "build" else job.stage
    return replace(job, rank=rank, stage=stage, cache=f"{job.cache}-{rank}")


@contextlib.contextmanager
def _joined(job: PackJob) -> Iterator[PackJob]:
    """The job of a rank in its process group, with the device that it uses."""
    os.environ |= rank_variables(job.rank, job.ranks, job.port)
    # Before it joins: the device decides about the backend and this rank's GPU.
    job = replace(job, run=calls.resolved(replace(job.run, on_rank=True)))
    parallel.join(job.run.device)
    try:
        yield job
    finally:
        parallel.leave()


def _keys(facts: JsonObject) -> Keys:
    packed = facts.get("details", {}).get("calls", ())
    return tuple(tuple(call["keys"]) for call in packed)


class _OtherRanks:
    """The processes of the other ranks, and what each has answered."""

    def __init__(self, children: Mapping[int, Child], job: PackJob) -> None:
        self._waiting = dict(children)
        self._is_load = job.role == "verify"
        self._keys: dict[int, Keys] = {}
        self._failures: dict[int, Entry] = {}

    @contextlib.contextmanager
    def watched(self, end: End) -> Iterator[None]:
        """Calls `end` if another rank fails and the body does not end soon after."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_EVERY_S):
                self._poll()
                if self._failures and not over.wait(_GRACE_S):
                    self._poll()
                    end(self._error())
                    return

        thread = threading.Thread(target=watch, name="torchproof-ranks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def cause_of(self, own: Exception) -> UserError | None:
        """The error of another rank, which explains more than the one of this rank.

        None if no rank answers with one, or with the same.
        """
        self._wait(_GRACE_S)
        own_message = entry_of(own)["message"]
        messages = [failure["message"] for failure in self._failures.values()]
        return self._error() if messages and own_message not in messages else None

    def assert_same(self, own: Keys) -> None:
        """Raises if another rank fails, or compiles other code than this one."""
        self._wait(_LOST_S)
        if self._failures:
            raise self._error()
        for rank in self._waiting:
            raise UserError(
                f"rank {rank} gave no answer in the {_LOST_S:.0f} s after rank 0"
                " had finished"
            )
        for rank, keys in self._keys.items():
            _assert_same(own, keys, rank)

    def _wait(self, limit_s: float) -> None:
        """Waits until a rank has failed or all have answered."""
        until = time.monotonic() + limit_s
        self._poll()
        while self._waiting and not self._failures and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
            self._poll()

    def _poll(self) -> None:
        for rank, child in list(self._waiting.items()):
            try:
                self._note(rank, child.receive(0.0))
            except (TimeoutError, Garbled):
                continue
            except Ended as error:
                kind = "unverified" if self._is_load else "unusable"
                message = f"its process {error}"
                self._note(rank, {"kind": kind, "message": message})

    def _note(self, rank: int, entry: Entry) -> None:
        if error_of(entry) is not None:
            self._failures[rank] = entry
        elif entry["kind"] == "facts":
            self._keys[rank] = _keys(entry)
        else:
            return
        del self._waiting[rank]

    def _error(self) -> UserError:
        """The error that those of other ranks follow from; it names its rank."""

        def follows(rank: int) -> bool:
            return follows_from_another(self._failures[rank]["message"])

        rank = min(self._failures, key=follows)
        failure = self._failures[rank]
        message = f"on rank {rank}: {failure['message']}"
        error = error_of({**failure, "message": message})
        assert error is not None
        return error


def _assert_same(own: Keys, keys: Keys, rank: int) -> None:
    if len(own) != len(keys):
        raise Unverified(
            f"rank {rank} has {len(keys)} calls and rank 0 has {len(own)}, so one pack"
            " does not fit all ranks: return the same calls on each of them"
        )
    for number, (ours, theirs) in enumerate(zip(own, keys, strict=True)):
        if ours != theirs:
            raise Unverified(
                f"one pack does not fit all ranks: in call {number}, rank {rank}"
                " compiles other code than rank 0. It depends on the rank, for example"
                " on torch.distributed.get_rank() or the size of a shard"
            )
