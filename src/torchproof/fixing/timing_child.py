"""The process that times one version of a target: it compiles it and runs rounds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from torchproof.process import Channel, Ended, hold
from torchproof.records import stats
from torchproof.targets import Job, calls

_WARM_UP = 3  # passes over all calls


def main(arguments: list[str]) -> int:
    run = calls.resolved(Job.from_json(json.loads(arguments[0])))
    channel = Channel.to_parent()
    one_pass = _pass(run)
    for _ in range(_WARM_UP):
        one_pass()
    channel.send({"ready": True})
    try:
        while True:
            channel.receive()
            channel.send({"times_ms": _round(one_pass)})
    except Ended:
        return 0


def _pass(run: Job) -> Callable[[], None]:
    """A pass over all calls of the compiled target."""
    loaded = calls.fresh(run)
    fn: Any = loaded.fn
    if not calls.compiles_itself(fn, run):
        fn = torch.compile(fn, **run.compile)
    train = calls.trains(loaded, run)

    def one_pass() -> None:
        for _, call in calls.each(loaded, train=train):
            calls.invoke(fn, call, train=train)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return one_pass


def _round(one_pass: Callable[[], None]) -> list[float]:
    times: list[float] = []
    while not stats.round_is_over(sum(times), len(times)):
        begin = time.perf_counter()
        one_pass()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
