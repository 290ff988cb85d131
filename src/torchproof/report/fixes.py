"""Renders a run of `fix` as text: each fix with its diff and receipt, then the rest."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.records import Finding, Fix, Run
from torchproof.report.text_layout import INDENT, wrap


def render(run: Run, *, width: int = 80) -> str:
    width = max(width, 40)
    lines = [f"torchproof fix {run.target}", ""]
    for fix in run.fixes:
        if fix.status != "rejected":
            lines += [*_fix(fix, width), ""]
    lines += [*_remaining(run, width), *_summary(run, width)]
    return "\n".join(lines) + "\n"


def _fix(fix: Fix, width: int) -> Iterator[str]:
    codes = ", ".join(fix.codes)
    yield from wrap(f"{codes}  {fix.title}  ({fix.tier})", width)
    if fix.diff:
        yield from fix.diff.splitlines()
    code = [s.code for s in fix.settings] + [m.code for m in fix.marks]
    yield from (f"{INDENT}{line}" for line in code)
    if fix.receipt:
        yield from wrap(f"proved: {fix.receipt.text}", width, INDENT, INDENT)


def _remaining(run: Run, width: int) -> Iterator[str]:
    if run.fixing is None or not run.fixing.remaining:
        return
    yield "Not fixed:"
    for finding in run.fixing.remaining:
        why = run.fixing.reasons.get(finding.identity, "")
        text = f"{_place(finding)}  {finding.code}  {finding.message}"
        yield from wrap(text, width, INDENT, INDENT * 2)
        yield from wrap(f"why: {why}", width, INDENT * 2, INDENT * 2)
    yield ""


def _place(finding: Finding) -> str:
    return f"{finding.file}:{finding.line}" if finding.file else "-"


def _summary(run: Run, width: int) -> Iterator[str]:
    if run.fixing is None:
        return
    fixed = sum(fix.status in ("verified", "applied") for fix in run.fixes)
    rejected = sum(fix.status == "rejected" for fix in run.fixes)
    text = (
        f"{fixed} fixes proved, {rejected} rejected,"
        f" {len(run.fixing.remaining)} findings left;"
        f" {run.fixing.proofs} proofs in {run.fixing.seconds:.0f} s"
    )
    yield from wrap(text, width)
