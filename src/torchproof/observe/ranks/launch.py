"""Starts a target on several ranks, under torch's launcher, and collects the streams.

The parent never imports torch. What a rank wrote before it was killed, or before the
timeout, is still returned.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from torchproof.observe.ranks import launcher, rank_supervisor
from torchproof.observe.ranks.existing_launch import ExistingLaunch
from torchproof.observe.ranks.joined_ranks import JoinedRanks, join
from torchproof.observe.ranks.rank_streams import StreamTail, stream_path
from torchproof.process import DEVNULL, Child, Ended, Garbled, spawn
from torchproof.records import UserError
from torchproof.records.options import RankOptions
from torchproof.targets import Job, Options, Target

_TARGETS = ("script", "factory", "workload")
_LOOK_S = 0.5
# Options of torch's launcher that torchproof sets itself.
_OWN = ("--nproc-per-node", "--nproc_per_node", "--no-python", "--no_python", "-m")


Ranks = RankOptions | ExistingLaunch  # to start, or started


def assert_launchable(target: Target, ranks: Ranks) -> None:
    """Raises `UserError` for what cannot run on several ranks."""
    if ranks.count < 1:
        raise UserError(f"--ranks {ranks.count}: at least one rank is needed")
    if target.kind not in _TARGETS:
        raise UserError(
            f"{target.text} is a {target.form}: --ranks needs a script, a factory or a"
            " workload"
        )
    if ranks.wrap and target.kind == "script":
        raise UserError(f"{target.text} is a script: it wraps its model itself")
    for word in ranks.launcher:
        if word.partition("=")[0] in _OWN:
            raise UserError(f"--launcher: {word} is set by torchproof; use --ranks")


def observe_ranks(
    target: Target,
    options: Options,
    ranks: Ranks,
    progress: Callable[[str], None],
) -> JoinedRanks:
    """Runs the target on several ranks, which start here or have been started."""
    if isinstance(ranks, ExistingLaunch):
        return ranks.observe(target, options, progress)
    job = replace(Job.of(target, options), wrap=ranks.wrap)
    with tempfile.TemporaryDirectory(prefix="torchproof-ranks-") as folder:
        rank = [sys.executable, "-P", "-m", rank_supervisor.MODULE]
        text = json.dumps(job.to_json())
        command = [*ranks.command, "--no-python", *rank, text, folder]
        with spawn(
            "-m",
            launcher.MODULE,
            *command,
            stdin=None,
            output=DEVNULL if options.quiet else None,
        ) as child:
            report = StepProgress(Path(folder), ranks.count, progress)
            ending = _follow(child, options.timeout_s, report)
        started_by = f"torch.distributed.run {' '.join(ranks.command)}"
        joined = join(Path(folder), ranks.count, target, ending=ending)
        return replace(joined, run=replace(joined.run, launcher=started_by))


class StepProgress:
    """Reports the step that all ranks have reached, from their streams."""

    def __init__(
        self, folder: Path, count: int, progress: Callable[[str], None]
    ) -> None:
        self._tails = [StreamTail(stream_path(folder, rank)) for rank in range(count)]
        self._steps = [0] * count  # that have begun
        self._progress = progress

    def __call__(self, seconds: float) -> None:
        for rank, tail in enumerate(self._tails):
            for entry in tail.read():
                self._steps[rank] += entry["kind"] == "step"
        step = min(self._steps)
        where = f"step {step - 1}" if step else "before the first step"
        if seconds > 1:  # short runs report no progress
            self._progress(f"{len(self._steps)} ranks, {where}, {seconds:.0f} s")


def _follow(
    child: Child, timeout_s: float | None, report: Callable[[float], None]
) -> str:
    """Waits for the launcher; says how that ended: finished, timeout, interrupted."""
    began = time.monotonic()
    try:
        for entry in _entries(child):
            seconds = time.monotonic() - began
            if entry is not None and entry["kind"] == "unusable":
                raise UserError(entry["message"])
            if timeout_s is not None and seconds > timeout_s:
                return "timeout"
            report(seconds)
        child.wait()
    except KeyboardInterrupt:
        return "interrupted"
    return "finished"


def _entries(child: Child) -> Iterator[dict[str, str] | None]:
    """What the launcher sends, and None while it sends nothing."""
    while True:
        try:
            yield child.receive(_LOOK_S)
        except TimeoutError:
            yield None
        except Garbled:
            continue
        except Ended:
            return
