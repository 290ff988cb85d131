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
from torchproof.records.run import Finding, Observation
from torchproof.targets.options import Options
from torchproof.targets.target import parse
from torchproof.targets.workloads import megacontext_original

CONTROLS = Path(__file__).with_name("megacontext_controls.py")
ORIGINAL = Path(megacontext_original.__file__)
MARK = "torch.compiler.cudagraph_mark_step_begin()"

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


def lines(findings: list[Finding], path: Path) -> set[tuple[str, str, str]]:
    """Code, severity and source line of each finding."""
    source = path.read_text().splitlines()
    here = [f for f in findings if Path(f.file or "").name == path.name]
    assert len(here) == len(findings), findings
    return {(f.code, f.severity, source[(f.line or 0) - 1].strip()) for f in here}


def test_fixed_micro_step_is_clean() -> None:
    assert audited(f"{CONTROLS}:make_trained", train=True) == ([], "passed")


@pytest.mark.parametrize(
    ("factory", "produced"),
    [
        (
            "step",
            'scores = controller.lens_net(**inputs | {"x": inputs["x"].detach()})',
        ),
        ("session", "scores = controller.lens_net(self.context)"),
    ],
)
def test_defects_of_the_original_are_found(factory: str, produced: str) -> None:
    """Training marks a step before each call; both hold scores without a copy."""
    train = factory == "step"
    found, status = audited(f"{CONTROLS}:make_original_{factory}", train=train)
    by_code = {code: line for code, _, line in lines(found, ORIGINAL)}
    assert status == "found"
    assert by_code.pop("CG303", MARK) == MARK
    assert (len(found) == 2) is train
    remembered = "self.last_scores = scores.detach()"
    assert by_code["CG301"].startswith((produced, remembered))
