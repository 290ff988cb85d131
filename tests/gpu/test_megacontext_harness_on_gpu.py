"""`check` of megacontext on a GPU: clean, and not where one of its rules is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import rules
from torchproof.observe import audit
from torchproof.records.run import Finding, Observation
from torchproof.targets.options import Options
from torchproof.targets.target import parse

pytestmark = pytest.mark.gpu

CONTROLS = Path(__file__).parent.parent / "workloads" / "megacontext_controls.py"


def audited(factory: str, *, train: bool) -> tuple[list[Finding], dict[str, Any]]:
    options = Options(train=train, device="cuda")
    run = audit.audit(parse(f"{CONTROLS}:{factory}"), options, lambda text: None)
    assert run.status.status != "failed", run.status.why
    found = rules.check(Observation(run.events, run.environment))
    for finding in found:
        print(finding.code, finding.severity, finding.line, finding.message)
    return [f for f in found if f.severity != "low"], run.counts


def test_training_is_clean_and_replayed() -> None:
    found, counts = audited("make_trained", train=True)
    print(counts)
    assert found == []
    assert counts["cudagraph_skips"] == 0
    assert counts["cudagraph_recordings"] > 0


@pytest.mark.parametrize(
    ("factory", "train", "kind"),
    [
        ("make_skipped", True, "cudagraph_skip"),
        ("make_marked", True, "cudagraph_lifetime"),
        ("make_held", False, "cudagraph_lifetime"),
    ],
)
def test_a_broken_rule_is_found(factory: str, train: bool, kind: str) -> None:
    found, counts = audited(factory, train=train)
    assert kind in {f.kind for f in found if f.severity == "high"}
    assert (counts["cudagraph_skips"] > 0) is (kind == "cudagraph_skip")
