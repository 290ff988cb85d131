"""A watcher of recordings whose entries are kept, and what findings they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchproof.checking import rules
from torchproof.observe.audit import events as audit_events
from torchproof.observe.audit.recordings import Recordings
from torchproof.process import Followed
from torchproof.records.events import Observation
from torchproof.records.run import Finding
from torchproof.torch_private import compiled_graphs, cudagraph_recordings

HERE = str(Path(__file__))


class Stream:
    """Keeps what a watcher writes."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write(self, kind: str, **values: Any) -> None:
        self.entries.append({"kind": kind, **values})

    def findings(self) -> list[Finding]:
        events = tuple(audit_events.events(Followed(self.entries)))
        found = rules.check(Observation(events, {}))
        return [each for each in found if each.code.startswith(("CG", "HS"))]


def seen(program: Callable[[], object]) -> Stream:
    """A program that runs under the watcher's hooks, as they are set on CUDA."""
    stream = Stream()
    watcher = Recordings(stream.write)
    with (
        compiled_graphs.compiled_graphs(watcher._function),
        cudagraph_recordings.watched(watcher),
    ):
        program()
    watcher.__exit__()
    return stream


def accumulate(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    cache.add_(x)
    return cache * 2


FIRST = accumulate.__code__.co_firstlineno
WRITES = FIRST + 1  # the line `cache.add_(x)`
STACK = f'  File "{HERE}", line {WRITES}, in accumulate\n    cache.add_(x)\n'
