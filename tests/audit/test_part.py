"""Part `lifetimes`: when it is skipped, passes, finds and fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import observed_parts
from torchproof.checking.measured_parts import MeasuredParts
from torchproof.checking.observed_parts import ObservedParts, PartProgress
from torchproof.checking.rules import check
from torchproof.observe import audit
from torchproof.observe.audit import running
from torchproof.process.streams import Followed
from torchproof.records import DeadTensorEvent, Frame
from torchproof.records.events import Observation
from torchproof.records.options import Options
from torchproof.records.run import Finding, Part
from torchproof.targets.job import Job
from torchproof.targets.target import Target, parse

ENVIRONMENT = {"kind": "environment", "torch": "2.13.0"}
REQUEST = {"kind": "graph_asked", "mode": "inference", "simulated": True}
FRAME = Frame("/home/me/model.py", 7, "driver")
READ = {
    "kind": "dead_read",
    **DeadTensorEvent(
        frames=(FRAME,),
        overwriter=(FRAME,),
        reader=(replace(FRAME, line=9),),
        operation="stack",
        holder="outs[0]",
        call=0,
    ).to_json(),
}
Audit = Callable[..., tuple[audit.AuditResult, list[Finding]]]


@pytest.fixture
def audited(monkeypatch: pytest.MonkeyPatch) -> Audit:
    """The part, where the child would have written these entries."""

    def run(
        *entries: dict[str, Any], ending: str = "finished", code: int = 0
    ) -> tuple[audit.AuditResult, list[Finding]]:
        seen = Followed([*entries, ENVIRONMENT], ending, code)
        monkeypatch.setattr(audit, "follow", lambda *args: seen)
        target = Target("model.py:make", "factory", "model.py")
        found = audit.audit(target, Options(), lambda text: None)
        return found, check(Observation(found.events, {}))

    return run


def status(run: tuple[audit.AuditResult, list[Finding]]) -> tuple[str, str]:
    part = lifetimes(run[0], run[1])
    return part.status, part.why


def lifetimes(result: audit.AuditResult, findings: list[Finding]) -> Part:
    parts = ObservedParts(Observation((), {}), MeasuredParts(), result)
    part = parts.part("lifetimes", findings)
    assert part is not None
    return part


def test_status_of_the_part(audited: Audit) -> None:
    done, why = status(audited())
    assert done == "skipped" and "CUDA graphs" in why
    done, why = status(audited(REQUEST))
    assert done == "passed" and "CPU" in why
    assert audited(REQUEST)[0].counts["cudagraph_skips"] is None
    assert status(audited({**REQUEST, "simulated": False})) == ("passed", "")
    run = audited(REQUEST, READ)
    assert status(run)[0] == "found"
    [found] = run[1]
    assert (found.code, found.severity, found.line) == ("CG301", "high", 7)
    assert status(audited(REQUEST, READ, ending="timeout"))[0] == "found"
    failed = {"kind": "call_failed", "call": 0, "message": "IndexError: 9"}
    assert status(audited(REQUEST, READ, failed))[0] == "found"
    assert status(audited(REQUEST, failed)) == ("failed", "call 0: IndexError: 9")


@pytest.mark.parametrize(
    ("entries", "ending", "code", "why"),
    [
        ([{"kind": "unusable", "message": "no factory"}], "finished", 2, "no factory"),
        ([REQUEST], "timeout", 0, "timeout"),
        ([REQUEST], "finished", -9, "SIGKILL"),
    ],
)
def test_a_child_that_ends_early(
    audited: Audit, entries: list[dict[str, Any]], ending: str, code: int, why: str
) -> None:
    done, reason = status(audited(*entries, ending=ending, code=code))
    assert done == "failed" and why in reason


@pytest.mark.parametrize(
    ("kind", "wanted", "why"),
    [
        ("trace", ["breaks", "lifetimes"], "trace"),
        ("script", ["breaks", "lifetimes"], "--skip breaks"),
        ("script", ["lifetimes"], None),
        ("factory", ["breaks", "lifetimes"], None),
    ],
)
def test_which_targets_are_run_again(
    monkeypatch: pytest.MonkeyPatch, kind: Any, wanted: list[str], why: str | None
) -> None:
    done = audit.AuditResult(Part("passed"))
    monkeypatch.setattr(audit, "audit", lambda *args: done)
    target = Target("model.py", kind, "model.py")
    seen = Observation((), {})
    progress = PartProgress(wanted, None, print, show=print)
    _, found = observed_parts._with_audit(
        seen, target, Options(), wanted, progress=progress
    )
    part = lifetimes(found, [])
    assert part.status == ("skipped" if why else "passed")
    assert (why or "") in part.why


PROGRAM = """
import torch

def make():
    return torch.nn.Linear(4, 4), [(torch.ones(2, 4),)] * 2
"""


def test_what_does_not_ask_for_graphs_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(PROGRAM)
    target = parse(f"{tmp_path}/model.py:make")
    called: list[int] = []

    class Watching:
        def before_call(self, index: int) -> None:
            called.append(index)

        after_call = before_call

        def __enter__(self) -> Any: ...

        def __exit__(self, *error: Any) -> None: ...

    assert running.run(Job(target), lambda *args, **kw: None, [Watching()]) is None
    assert not called
