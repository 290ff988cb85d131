"""The search for edits: real targets, real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from fix_runs import fixed, verified
from rule_programs import FOLDER

from torchproof.checking import rules
from torchproof.checking.rules.recompile_groups import RecompileGroup
from torchproof.fixing import FixOptions, proof_child
from torchproof.fixing.edits import Edit
from torchproof.fixing.proof import Proof, Prover, reason_to_reject
from torchproof.fixing.proposals import Refusal
from torchproof.fixing.search import Fixer, _keep_refusal, _not_easier
from torchproof.observe import AuditResult, audit
from torchproof.records import (
    Finding,
    Observation,
    Overlay,
    Part,
    Remedy,
    Replacement,
    Run,
    Setting,
    UserError,
)
from torchproof.report import render
from torchproof.targets import Options, parse

READS_A_VALUE = """
import warnings

import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        warnings.warn("text of the constructor is not text of the calls")
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        scale = y.sum().item()
        return y * scale

def make():
    return Net(), [(torch.randn(2, 4),), (torch.randn(2, 4),)]
"""
NEVER_THE_SAME = READS_A_VALUE.replace(
    "def make():", "import os\n\ndef make():"
).replace(
    "(torch.randn(2, 4),), (torch.randn(2, 4),)",
    "(torch.tensor(list(os.urandom(8))).float().view(2, 4),) for _ in range(2)",
)
CLEAN = """
import torch

def make():
    return torch.nn.Linear(4, 4), [(torch.randn(2, 4),)]
"""

DRAWS_WITH_NUMPY = """
import numpy
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x):
        if x.max() > 100:
            raise ValueError("too large")
        kept = torch.from_numpy(numpy.random.rand(2, 4) < 0.5)
        return self.dropout(self.linear(x)) * kept

def make():
    return Net(), [(torch.randn(2, 4),), (torch.randn(2, 4),)]
"""


def test_a_setting_that_removes_a_break_is_proved(tmp_path: Path) -> None:
    run = fixed(tmp_path, READS_A_VALUE)
    (accepted,) = verified(run)
    assert accepted.tier == "safe" and "GB101" in accepted.codes
    receipt = accepted.receipt
    assert receipt is not None
    assert receipt.breaks == (1, 0) and receipt.graphs[1] == 1
    assert receipt.outputs in ("same", "rounding") and receipt.unseen_inputs > 5
    assert run.fixing is not None and run.fixing.remaining == ()
    assert Run.from_json(run.to_json()) == run


COUNTS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.step = 0

    def forward(self, x):
        self.step += 1
        return self.linear(x) * self.step

def make():
    return Net(), [(torch.ones(2, 4),)] * 4
"""


def test_an_edit_of_a_rule_that_changes_the_outputs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = rules.by_code("RC213")
    for others in ("settings", "rewrites", "last_rewrites"):
        monkeypatch.setattr(rule, others, ())
    lines = COUNTS.splitlines(True)
    (at,) = (n for n, text in enumerate(lines) if "+= 1" in text)

    def by_two(self: object, group: RecompileGroup) -> Remedy:
        assert group.frame is not None
        new = (lines[at].replace("1", "2"),)
        change = Replacement(group.frame.file, at + 1, (lines[at],), new)
        return Remedy("edit", (change,), title="count by two")

    monkeypatch.setattr(type(rule), "edit", by_two)
    run = fixed(tmp_path, COUNTS)
    assert verified(run) == [] and "RC213" in {each.code for each in run.findings}


# Some of the numbers are numpy's in compiled code too: no graph has those.
DRAWS_SOME_OUTSIDE = DRAWS_WITH_NUMPY.replace(
    "class Net",
    "@torch.compiler.disable\ndef outside():\n    numpy.random.rand()\n\nclass Net",
).replace("        kept =", "        outside()\n        kept =")


@pytest.mark.slow
@pytest.mark.parametrize("code", [DRAWS_WITH_NUMPY, DRAWS_SOME_OUTSIDE])
def test_an_original_that_draws_other_numbers_when_compiled(
    code: str, tmp_path: Path
) -> None:
    run = fixed(tmp_path, code)
    (accepted,) = verified(run)
    assert accepted.receipt is not None and accepted.receipt.outputs == "random"
    assert "equal in eager" in accepted.receipt.text


def test_a_proof_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    job, stream = Mock(probes=True), Mock()
    monkeypatch.setattr(proof_child, "_probe", Mock(side_effect=KeyError("depth")))
    assert proof_child.prove(job, stream) == 2
    call = stream.write.mock_calls[-1]
    assert call.args == ("unusable",)
    assert call.kwargs["message"].startswith("KeyError: 'depth' (mock.py:")


def test_a_target_without_findings_needs_no_fix(tmp_path: Path) -> None:
    run = fixed(tmp_path, CLEAN)
    assert run.fixes == () and run.fixing is not None
    assert run.fixing.proofs == 1 and run.fixing.remaining == ()


@pytest.mark.parametrize("unsafe", [False, True])
def test_only_allowed_tiers_are_tried(unsafe: bool) -> None:
    finding = Finding("GB102", "graph_break", "high", "", "", "")
    fixer = Fixer(Mock(), FixOptions(unsafe=unsafe), lambda text: None)
    assert fixer._may(Edit("title", "safe", finding))
    assert fixer._may(Edit("title", "unsafe", finding)) is unsafe


def test_only_selected_open_findings_are_fixed() -> None:
    finding = Finding("GB102", "graph_break", "high", "", "", "")
    for codes, wanted in (((), True), (("GB",), True), (("GB101",), False)):
        fixer = Fixer(Mock(), FixOptions(select=codes), lambda text: None)
        assert fixer._is_eligible(finding) is wanted
        assert not fixer._is_eligible(replace(finding, status="intentional"))


def test_the_reason_that_names_code_is_kept() -> None:
    finding = Finding("GB105", "graph_break", "high", "", "", "")
    kept: dict[str, Refusal] = {}
    for why in ("no number is computed here", "`g(x)` would leave the graph", "other"):
        refusal = Refusal(finding, "", why, names_code="g(x)" in why)
        _keep_refusal(kept, finding, refusal)
    assert kept[finding.identity].why == "`g(x)` would leave the graph"


def test_an_edit_that_cannot_be_verified_is_only_suggested(tmp_path: Path) -> None:
    run = fixed(tmp_path, NEVER_THE_SAME, write=True)
    suggested = [each for each in run.fixes if each.status == "suggested"]
    assert suggested and not verified(run)
    assert suggested[0].tier == "suggested" and suggested[0].receipt is None
    assert "differs each time the target is loaded" in suggested[0].why
    # An import is inserted above the class, not below the one that follows it.
    assert not any("NameError" in each.why for each in run.fixes)
    assert all(each.diff for each in suggested if each.replacements)
    text = render(run, "text")
    assert "never written" in text


def test_a_proof_that_takes_too_long_decides_nothing() -> None:
    before, after = (Proof(Overlay(), Observation((), {})) for _ in range(2))
    late = replace(after, timed_out=True)
    assert reason_to_reject(before, late, []) == late.undecided
    assert late.undecided == "the proof reached the limit of --timeout"
    assert before.undecided is None


# -- a setting that makes breaks cheaper in functions that compiled code calls ---------

CALLED = """
import torch

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def bounds(self, x):
        words = str(x.sin()).split()
        return x.cos() * len(words)

    def forward(self, x):
        return self.linear(self.bounds(self.linear(x)))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x):
        x = self.first(x.relu()) + 1
        return self.second(x) * 2

def make():
    return Net(), [(torch.ones(2, 4),), (torch.ones(2, 4),)]
"""


@pytest.mark.slow
def test_fewer_graphs_around_a_break_that_stays(tmp_path: Path) -> None:
    run = fixed(tmp_path, CALLED)
    (accepted,) = verified(run)
    assert (
        accepted.settings == (Setting("dynamo.nested_graph_breaks", True),)
        and accepted.tier == "safe"
    )
    receipt = accepted.receipt
    assert receipt is not None and run.fixing is not None
    before, after = receipt.graphs
    assert before is not None and after is not None and after < before
    assert receipt.breaks == (1, 1)
    assert [finding.kind for finding in run.fixing.remaining] == ["graph_break"]


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ({"graphs": 3, "recompiles": 0}, None),
        ({"graphs": 9, "recompiles": 1}, None),
        ({"graphs": 9, "recompiles": 2}, "it changes nothing: graphs stay at 9"),
        ({"graphs": 3, "recompiles": 4}, "recompiles rise from 2 to 4"),
        ({"graphs": 3, "skipped_frames": 1}, "skipped frames rise from 0 to 1"),
    ],
)
def test_less_has_to_go_wrong(after: dict[str, int | None], why: str | None) -> None:
    counts: dict[str, int | None] = {"graphs": 9, "recompiles": 2, "skipped_frames": 0}
    nothing = Observation((), {})
    one = Proof(Overlay(), nothing, counts=counts)
    assert _not_easier(one, Proof(Overlay(), nothing, counts=after)) == why


# -- tensors that outlive their memory in a CUDA graph, which the CPU simulates --------


# The proof watches lifetimes, so that the finding has to be gone.
@pytest.mark.slow
def test_a_hazard_is_removed(tmp_path: Path) -> None:
    text = (FOLDER / "CG301.py").read_text() + "\n\nmake = bad_view\n"
    run = fixed(tmp_path, text, as_written=True)
    (accepted,) = verified(run)
    assert accepted.codes == ("CG301",) and accepted.tier == "safe"
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
