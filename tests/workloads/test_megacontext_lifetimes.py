"""What `check` says of CUDA graphs in megacontext, and where a rule of it is broken.

Without a GPU: with the lifetimes that graphs would give what they return.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.checking import rules
from torchproof.checking.measured_parts import MeasuredParts
from torchproof.checking.observed_parts import ObservedParts
from torchproof.observe import audit
from torchproof.records.events import Observation
from torchproof.records.options import Options
from torchproof.records.run import Finding
from torchproof.targets.target import parse

CONTROLS = Path(__file__).with_name("megacontext_controls.py")

pytestmark = pytest.mark.slow


def audited(target: str, *, train: bool) -> tuple[list[Finding], str]:
    """What is found about memory, and what became of the part."""
    options = Options(train=train, device="cpu")
    run = audit.audit(parse(target), options, lambda text: None)
    found = rules.check(Observation(run.events, run.environment))
    parts = ObservedParts(Observation((), {}), MeasuredParts(), run)
    part = parts.part("lifetimes", found)
    assert part is not None
    return found, part.status


def source_line(finding: Finding) -> str:
    assert finding.file and finding.line
    return Path(finding.file).read_text().splitlines()[finding.line - 1].strip()


def test_fixed_micro_step_is_clean() -> None:
    assert audited(f"{CONTROLS}:make_trained", train=True) == ([], "passed")


@pytest.mark.parametrize(
    ("factory", "train", "expected"),
    [
        (
            "make_original_step",
            True,
            {
                "CG301": "self.last_scores = scores.detach()",
                "CG303": "torch.compiler.cudagraph_mark_step_begin()",
            },
        ),
        ("make_original_session", False, {"CG301": "self.scores = scores"}),
    ],
)
def test_defects_of_the_original_are_found(
    factory: str, train: bool, expected: dict[str, str]
) -> None:
    """Training marks a step before each call; both hold scores without a copy."""
    found, status = audited(f"{CONTROLS}:{factory}", train=train)
    assert status == "found" and len(found) == len(expected)
    assert {each.code: source_line(each) for each in found} == expected
