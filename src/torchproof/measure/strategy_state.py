"""The state of one strategy in a session: its process and its results so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.measure.replies import Facts, Reply
from torchproof.measure.specs import StrategySpec
from torchproof.measure.worker_process import Worker
from torchproof.records import RaisedError


@dataclass(eq=False)
class StrategyState:
    """`facts` has an entry per input shape; `warm` is from a start with warm caches.

    `ahead` are processes that were started before their repeat begins, and `prepared`
    the repeats of those that run their first pass.
    """

    spec: StrategySpec
    caches: Path
    process: Worker | None = None
    error: str | None = None
    raised: RaisedError | None = None  # the exception behind `error`
    timed_out: bool = False  # it was ended because it took too long
    skipped: str | None = None
    facts: list[Facts] = field(default_factory=list)
    warm: Facts | None = None
    ahead: dict[int, Worker] = field(default_factory=dict)
    prepared: set[int] = field(default_factory=set)

    @property
    def runs(self) -> bool:
        return self.error is None and self.skipped is None

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the process: its cache folders, and what the profiler needs."""
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / "inductor"),
            "TRITON_CACHE_DIR": str(self.caches / "triton"),
        }
        if self.spec.as_written and self.spec.is_eager:
            variables["TORCH_COMPILE_DISABLE"] = "1"
        if self.spec.strategy.graph:
            # CUDA graphs may crash once CUPTI was taken down; torch sets this itself
            # only where Inductor is configured to record graphs.
            variables["TEARDOWN_CUPTI"] = "0"
        return variables

    def ask(
        self, kind: type[Reply], do: str, limit_s: float | None, **values: Any
    ) -> Reply:
        assert self.process is not None
        return self.process.ask(kind, do, limit_s, **values)

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None

    def abandon(self) -> None:
        """Ends all its processes, also those of later repeats."""
        self.close()
        for process in self.ahead.values():
            process.close()
        self.ahead.clear()
