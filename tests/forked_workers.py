"""Arms as forked processes: `import torch` is paid for once, not once an arm."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from torchproof.measure.session import Session
from torchproof.measure.specs import EAGER, MeasureResult, Plan, Progress, StrategySpec
from torchproof.process import children
from torchproof.process.channel import VARIABLE
from torchproof.records import stats
from torchproof.records.run import Measurement
from torchproof.strategies.strategy import parse, with_arguments
from torchproof.targets.target import parse as parse_target

PRELOAD = [
    "warm_torch",
    "torchproof.observe.child",
    "torchproof.measure.strategy_worker",
]
PRELOAD += ["torch._inductor.compile_fx", "functorch.compile", "torch.profiler"]


class Forked:
    """Stands in for `subprocess.Popen`: a process of its own, torch already loaded."""

    begun: ClassVar[list[int]] = []  # process ids

    def __init__(
        self,
        command: Sequence[str],
        *,
        pass_fds: Sequence[int],
        env: Mapping[str, str],
        stderr: Any = None,
        **settings: Any,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        channel = Connection(os.dup(pass_fds[0]))
        self._process = context.Process(
            target=_serve, args=(command[-1], dict(env), channel)
        )
        self._process.start()
        channel.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.begun.append(self.pid)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("arm", timeout or 0.0)
        return self._process.exitcode


def _serve(job: str, env: dict[str, str], channel: Connection) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(env | {VARIABLE: str(os.dup(channel.fileno()))})
    from torch._dynamo.utils import clear_compilation_metrics, counters

    from torchproof.measure import strategy_worker

    clear_compilation_metrics()  # of the fork server
    counters.clear()
    gc.freeze()  # what it loaded need not be gone through in every arm
    # Killed with the arm; the test's own tracker would complain of what it left.
    resource_tracker._resource_tracker._fd = None
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    os._exit(strategy_worker.main([job]))


@contextmanager
def forked() -> Iterator[None]:
    """Arms that start meanwhile are forked."""
    names = ("PIPE", "DEVNULL", "run", "TimeoutExpired")
    kept = {name: getattr(subprocess, name) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "subprocess", SimpleNamespace(Popen=Forked, **kept))
        yield


def backends(*names: str) -> tuple[StrategySpec, ...]:
    """Eager, and full with each of these backends."""
    full = parse("full")
    return (
        StrategySpec(EAGER),
        *(
            StrategySpec(with_arguments(full, backend=n), variant={"backend": n})
            for n in names
        ),
    )


def measured(
    target: str,
    specs: Sequence[StrategySpec],
    *,
    rounds: int = 4,
    progress: Progress = lambda text: None,
    **more: Any,
) -> MeasureResult:
    """A short session of forked arms, with rounds of 10 ms."""
    plan = Plan(parse_target(target), tuple(specs), quiet=True)
    plan = replace(plan, **({"seconds": 0.01 * rounds, "repeats": 1} | more))
    with forked(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "ROUNDS", rounds)
        return Session(plan, Path(), progress).run()


def by_backend(found: MeasureResult) -> dict[str, Measurement]:
    return {str(row.variant.get("backend", row.strategy)): row for row in found.rows}
