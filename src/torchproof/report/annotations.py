"""What of a document stands beside lines of code in a review: findings and fixes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchproof.records import SEVERITIES
from torchproof.report import finding_block
from torchproof.report.document import (
    Block,
    FixBlock,
    Fold,
    Group,
    Items,
    Section,
    Title,
    Verdict,
    View,
    plain,
    seen_by,
)
from torchproof.report.finding_block import FindingBlock, Findings


@dataclass(frozen=True)
class Annotations:
    title: Title
    result: str  # in one line
    failures: list[str]
    findings: list[FindingBlock]  # causes first, the worst first
    fixes: list[FixBlock]


def annotations_of(blocks: Iterable[Block]) -> Annotations:
    every = [*_flat(seen_by(View.REVIEW, blocks))]
    title = next(each for each in every if isinstance(each, Title))
    verdict = next(each for each in every if isinstance(each, Verdict))
    failed = [b for b in every if isinstance(b, Items) and b.style == "failures"]
    findings = [each for b in every if isinstance(b, Findings) for each in b.findings]
    findings = finding_block.everything(findings)
    findings.sort(key=lambda f: (f.is_effect, SEVERITIES.index(f.finding.severity)))
    return Annotations(
        title,
        result=f"{verdict.word}: {verdict.text}".rstrip(": "),
        failures=[plain(text) for items in failed for text in items.lines],
        findings=findings,
        fixes=[each for each in every if isinstance(each, FixBlock)],
    )


def _flat(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Section | Group | Fold):
            yield from _flat(block.blocks)
