"""Runs a job of `deploy` on several ranks, for models with collectives in their graphs.

The first rank is the child process of the command. It starts the others, which do the
same work and write their result to the store of the process group. A pack is for all
ranks: one that compiles other code than the first, or fails, makes the pack fail.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import distributed

from torchproof.packs.deploy import PackJob
from torchproof.process import spawn
from torchproof.records import UserError, one_line
from torchproof.runtime import Unverified
from torchproof.targets import Job, Loaded, calls, parallel
from torchproof.torch_private import process_groups

Work = Callable[[PackJob], dict[str, Any]]
_KEY = "torchproof/deploy"
_LOST_S = 300.0  # how long the first rank waits for a result after it has its own


@dataclass(frozen=True)
class RankResult:
    """The cache keys of each call's graphs, or why the work failed on this rank."""

    keys: tuple[tuple[str, ...], ...] = ()
    error: str | None = None


def run(job: PackJob, work: Work) -> dict[str, Any]:
    """Does the work on all ranks; returns the facts of this one."""
    if job.rank:
        os.makedirs(job.stage, exist_ok=True)
        with _joined(job):
            return _recorded(job, work)
    job = replace(job, port=_free_port())
    with contextlib.ExitStack() as stack:
        for rank in range(1, job.ranks):
            text = json.dumps(_job_of(job, rank).to_json())
            stack.enter_context(spawn("-m", "torchproof.packs.deploy", text))
        stack.enter_context(_joined(job))
        try:
            facts = _recorded(job, work)
        except Exception:
            _assert_others(job, None)  # another rank may have failed before
            raise
        _assert_others(job, _keys(facts))
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


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _joined(job: PackJob) -> Iterator[None]:
    os.environ |= {
        "RANK": str(job.rank),
        "LOCAL_RANK": str(job.rank),
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(job.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job.port),
    }
    parallel.join(job.run.device)
    try:
        yield
    finally:
        parallel.leave()


def _store() -> Any:
    group = process_groups.default_group()
    assert group is not None
    return distributed.PrefixStore(_KEY, group.store)


def _recorded(job: PackJob, work: Work) -> dict[str, Any]:
    """Does the work, and tells the first rank the result."""
    result = RankResult(error="its process ended")
    try:
        facts = work(job)
        result = RankResult(keys=_keys(facts))
        return facts
    except Exception as error:
        result = RankResult(error=one_line(str(error), 300))
        raise
    finally:
        text = json.dumps({"keys": result.keys, "error": result.error})
        _store().set(str(job.rank), text)


def _keys(facts: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    packed = facts.get("details", {}).get("calls", ())
    return tuple(tuple(call["keys"]) for call in packed)


def _assert_others(job: PackJob, own: tuple[tuple[str, ...], ...] | None) -> None:
    store = _store()
    for rank in range(1, job.ranks):
        try:
            store.wait([str(rank)], datetime.timedelta(seconds=_LOST_S))
        except RuntimeError:
            raise UserError(f"rank {rank} ended without an answer") from None
        result = json.loads(store.get(str(rank)))
        if result["error"] is not None:
            raise Unverified(f"on rank {rank}: {result['error']}")
        if own is not None:
            _assert_same(own, result["keys"], rank)


def _assert_same(own: tuple[tuple[str, ...], ...], keys: Any, rank: int) -> None:
    for number, (ours, theirs) in enumerate(zip(own, keys, strict=True)):
        if [*ours] != [*theirs]:
            raise Unverified(
                f"rank {rank} compiles other code than rank 0 in call {number}, so one"
                " pack does not fit all ranks: the code depends on the rank, for"
                " example on torch.distributed.get_rank(), the size of a shard, or an"
                " embedding that is divided by rows"
            )
