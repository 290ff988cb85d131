"""The process of one rank: runs the target under observation.

A supervisor starts it with the variables of torch's launcher in its environment.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchproof.observe.ranks.collectives import BUFFER_SIZE
from torchproof.observe.ranks.launched import Place
from torchproof.observe.ranks.rank_observer import RankObserver
from torchproof.observe.ranks.rank_streams import RankStream
from torchproof.observe.ranks.store_transfer import StoreTransfer, may_need_transfer
from torchproof.process import Channel, hold
from torchproof.records import UserError
from torchproof.targets import Job, Loaded, calls, parallel, raised, script
from torchproof.torch_private import collectives, environment


def main(arguments: list[str]) -> int:
    text, path = arguments
    stream = RankStream(Path(path))
    place = Place.of(os.environ)
    stream.begin(
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        folder=os.getcwd(),
    )
    # Torch reads this when the program creates its first process group.
    os.environ.setdefault(collectives.BUFFER_VARIABLE, str(BUFFER_SIZE))
    transfer = StoreTransfer(place, Path(path).parent)
    if may_need_transfer(os.environ):
        transfer.start()
    code = 2
    try:
        code = _observe(Job.from_json(json.loads(text)), stream)
    except UserError as error:
        stream.write("unusable", message=str(error), details=error.details)
    finally:
        transfer.close(code)
    return code


def _observe(job: Job, stream: RankStream) -> int:
    is_script = job.target.kind == "script"
    observer = RankObserver(stream, calls_are_wrapper_calls=is_script)
    try:
        if is_script:
            script.when_imported("torch", observer.attach)
            return script.run(job.target, stream)
        observer.attach()
        job = calls.resolved(dataclasses.replace(job, on_rank=True, in_shares=True))
        _run_factory(job, observer)
        return 0
    finally:
        observer.detach()
        stream.write("environment", **environment.describe(job))


def _run_factory(job: Job, observer: RankObserver) -> None:
    """Calls the factory on this rank, and runs its calls compiled."""
    parallel.join(job.device)
    loaded = calls.fresh(job)
    parallel.assert_placed(loaded.fn, loaded.calls)
    observer.site, observer.arguments = (loaded.place,), job.compile
    fn = _compiled(loaded, job)
    observer.site = None
    train = calls.trains(loaded, job)
    observer.stream.write("plan", calls=len(loaded.calls))
    for index, call in calls.each(loaded, train=train):
        with observer.observed_call(index):
            try:
                calls.invoke(fn, call, train=train)
            except UserError:
                raise
            except Exception as error:
                rank = os.environ["RANK"]
                raise raised(f"call {index} fails on rank {rank}", error) from error
    parallel.leave()


def _compiled(loaded: Loaded, job: Job) -> Callable[..., Any]:
    """The target, wrapped and compiled in the order that torch recommends."""
    import torch

    def compiled(module: Callable[..., Any]) -> Callable[..., Any]:
        if calls.compiles_itself(loaded.fn, job):
            return module
        try:
            answer: Callable[..., Any] = torch.compile(module, **job.compile)
            return answer
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"torch.compile rejects its arguments: {reason}") from error

    wrap = job.wrap or loaded.wrap
    plan = loaded.tensor_parallel_plan
    return parallel.wrapped(loaded.fn, wrap, compiled, of_block=compiled, plan=plan)


if __name__ == "__main__":
    hold()
    Channel.to_parent()  # unused: the stream is a file
    sys.exit(main(sys.argv[1:]))
