"""Every report takes time in proportion to its findings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from check_runs import ITEM

from torchproof.records import Baseline, CauseTree, Finding, Fix, Run, identity
from torchproof.report import formats


def _run(size: int, *, chain: bool) -> Run:
    """Findings that follow from the first, or each from the one before it."""
    names = [f"Net.f{number}" for number in range(size)]
    found = [replace(ITEM, function=name, context=()) for name in names]
    findings = [found[0]]
    for number, each in enumerate(found[1:]):
        above = found[number] if chain else found[0]
        links = {"cause_of": (above.identity,), "certainty": "likely"}
        findings.append(replace(each, **links))  # type: ignore[arg-type]
    fix = Fix(
        "title",
        "safe",
        "verified",
        ("GB101",),
        findings=tuple(f.identity for f in found),
    )
    known = tuple(f.identity for f in found)
    return Run(
        "id",
        "model.py:make",
        "full",
        {},
        {"calls": 2},
        tuple(findings),
        baseline=Baseline(id="earlier", identities=known),
        fixes=(fix,),
    )


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("format", formats.FORMATS)
def test_the_work_grows_with_the_number_of_findings(
    format: str, chain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Counter[str] = Counter()
    trees, causes_of, hashed = (
        CauseTree.__init__,
        CauseTree.causes_of,
        identity.identity,
    )

    def counted_tree(self: CauseTree, findings: tuple[Finding, ...]) -> None:
        done["trees"] += 1
        trees(self, findings)

    def counted_causes(self: CauseTree, finding: Finding) -> list[Finding]:
        done["causes"] += 1
        return causes_of(self, finding)

    def counted_hash(*parts: str) -> str:
        done["hashes"] += 1
        return hashed(*parts)

    monkeypatch.setattr(CauseTree, "__init__", counted_tree)
    monkeypatch.setattr(CauseTree, "causes_of", counted_causes)
    monkeypatch.setattr(identity, "identity", counted_hash)
    work = []
    for size in (50, 200):
        run = _run(size, chain=chain)
        done.clear()
        assert formats.render(run, format)
        assert done["trees"] <= 4
        work.append(done["causes"] + done["hashes"])
    assert work[1] <= 5 * work[0] + 10
