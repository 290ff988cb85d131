"""Where compiled calls wait for the device, as far as it shows without one."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from watched import Stream

from torchproof.observe.audit import syncs
from torchproof.observe.audit.syncs import Syncs
from torchproof.records.run import Finding
from torchproof.torch_private import hooks

Wait = Callable[[], None]
GRAPH = {
    "phase": "inference",
    "compile_id": "0/0",
    "turns": {"replayed": 5},
    "sizes": [{"shapes": [], "runs": {"replayed": 5}}],
    "distinct": 1,
    "again": {},
    "moved": [],
    "uses": {},
    "site": [],
    "since": 5,
    "pool_bytes": 0,
}


def findings(
    program: Callable[[Any, Wait], None], *, graphs: bool = True
) -> list[Finding]:
    """What is found of six calls of a compiled function, and a wait in each."""
    stream = Stream()
    watcher = Syncs(stream.write)
    torch._dynamo.reset()
    with hooks.compiled_contexts(lambda context: watcher._entered):
        # On a device torch tells of a wait; without one, the watcher is told.
        wait = functools.partial(watcher.note, explicit=False)
        program(functools.partial(torch.compile, backend="eager"), wait)
    watcher.__exit__()
    if graphs:
        stream.write("cudagraphs", graphs=[GRAPH], pool_bytes=0)
    return stream.findings()


def inside(compiled: Any, wait: Wait, calls: int = 6) -> None:
    @torch.compiler.disable
    def log(x: torch.Tensor) -> None:
        wait()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        log(y)
        return y + 1

    run = compiled(step)
    for _ in range(calls):
        run(torch.ones(2))


def between(compiled: Any, wait: Wait) -> None:
    run = compiled(lambda x: x * 2)
    for _ in range(6):
        run(torch.ones(2))
        wait()


def test_a_wait_in_or_after_each_compiled_call_is_found() -> None:
    [found] = findings(inside)
    assert (found.code, found.kind, found.severity) == ("HS901", "host_sync", "medium")
    assert found.source is not None and found.source.strip() == "wait()"
    assert found.count == 6
    [found] = findings(between)
    assert (found.code, found.severity) == ("HS903", "low")
    assert re.search(r"\b6 of 6 .*calls, 6 times", found.evidence[0])


def test_waits_that_cost_nothing_are_no_findings() -> None:
    def once(compiled: Any, wait: Wait) -> None:
        for _ in range(6):
            wait()
        compiled(lambda x: x * 2)(torch.ones(2))

    assert findings(once) == []  # before the first call
    assert findings(lambda compiled, wait: inside(compiled, wait, 2)) == []
    assert findings(inside, graphs=False) == findings(between, graphs=False) == []


def test_synchronize_is_heard_and_still_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    heard: list[bool] = []
    with syncs._explicit(heard.append):
        torch.cuda.synchronize("cuda:0")
    torch.cuda.synchronize("cuda:1")
    assert heard == [True] and waited == ["cuda:0", "cuda:1"]
