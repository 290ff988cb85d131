"""Tensors that outlive their memory in a CUDA graph, which the CPU simulates."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_runs import fixed, verified

from torchproof.fixing.proof import Prover
from torchproof.observe import AuditResult, audit
from torchproof.records import Observation, Overlay, Part, UserError
from torchproof.targets import Options, parse

RULES = Path(__file__).resolve().parent.parent / "rules"


# The proof watches lifetimes, so that the finding has to be gone.
@pytest.mark.slow
def test_a_hazard_is_removed(tmp_path: Path) -> None:
    text = (RULES / "CG302.py").read_text() + "\n\nmake = bad_accumulated\n"
    run = fixed(tmp_path, text, as_written=True)
    (accepted,) = verified(run)
    assert accepted.codes == ("CG302",) and accepted.tier == "safe"
    assert run.fixing is not None and run.fixing.remaining == ()


def test_an_edit_that_cannot_be_watched_is_no_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = AuditResult(Part("failed", "call 1: RuntimeError"))
    monkeypatch.setattr(audit, "audit_job", lambda job, conditions: failed)
    program = tmp_path / "model.py"
    program.touch()
    prover = Prover(parse(f"{program}:make"), Options(), tmp_path)
    observation = Observation((), {})
    original = prover.job(Overlay())
    assert prover._with_lifetimes(observation, original) is observation
    edited = prover.job(Overlay(texts={str(program): "x = 1"}))
    with pytest.raises(UserError, match="call 1: RuntimeError"):
        prover._with_lifetimes(observation, edited)
