"""Times the edited target against the original, both compiled, in turns."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

from torchproof.process import DEVNULL, Child, Ended, spawn
from torchproof.records import Ratio, stats
from torchproof.targets import Job

_ROUNDS = 12
_COMPILE_S = 600.0  # to load, compile and warm up
_ROUND_S = 60.0


def time_ratio(run: Job, overlay: str) -> Ratio | None:
    """The original's time over that of the edited target; None if one fails."""
    jobs = {"before": run, "after": replace(run, overlay=overlay)}
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                spawn(
                    *("-m", "torchproof.fixing.timing_child"),
                    json.dumps(job.to_json()),
                    output=DEVNULL,
                )
            )
            for name, job in jobs.items()
        }
        try:
            for worker in workers.values():
                worker.receive(_COMPILE_S)
            rounds = _alternate(workers)
        except (Ended, TimeoutError):
            return None
    return stats.compare(rounds["before"], rounds["after"])


def _alternate(workers: dict[str, Child]) -> dict[str, list[list[float]]]:
    rounds: dict[str, list[list[float]]] = {name: [] for name in workers}
    for number in range(_ROUNDS):
        # Each goes first equally often.
        for name in sorted(workers, reverse=bool(number % 2)):
            reply = workers[name].ask({"do": "round"}, _ROUND_S)
            rounds[name].append(reply["times_ms"])
    return rounds
