"""The exit codes of verbs, with the line on stderr that explains each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchproof.cli import output
from torchproof.cli.commands import Check
from torchproof.records import SEVERITIES, CauseTree, Finding, Run
from torchproof.records.options import Options

if TYPE_CHECKING:
    from torchproof.api import Comparison


def check_code(run: Run, options: Check) -> int:
    """1 if a finding of the severity of `--fail-on` or worse is open."""
    failed = failed_code(run, options)
    if failed is not None:
        return failed
    if options.fail_on != "never":
        bad = SEVERITIES[: SEVERITIES.index(options.fail_on) + 1]
        tree = CauseTree(run.findings)  # a cause is as severe as the worst it explains
        if any(tree.severity(cause) in bad for cause in tree.causes):
            return 1
    return incomplete_code(run)


def incomplete_code(run: Run) -> int:
    """2 if a part failed for a reason that no finding tells."""
    if any(_tells_error(f) for f in run.findings if f.status == "open"):
        return 0
    broken = [name for name, part in run.parts.items() if part.status == "failed"]
    for name in broken:
        output.note(f"torchproof: error: part {name} failed: {run.parts[name].why}")
    return 2 if broken else 0


def _tells_error(finding: Finding) -> bool:
    """Whether a finding is about an error of a call that eager completes."""
    kinds = {"compile_error", "cudagraph_lifetime"}
    return finding.kind in kinds or finding.code == "NM407"


def failed_code(run: Run, options: Options) -> int | None:
    """The exit code of a run that did not complete; None if it did."""
    if run.ending == "interrupted":
        return 130
    if run.ending == "timeout":
        output.note(
            f"torchproof: target stopped after {options.timeout_s:g} s (--timeout)"
        )
        return 2
    if run.error:
        output.note(f"torchproof: error: {run.error}")
        return 2
    return None


def comparison_code(comparison: Comparison) -> int:
    """1 on a regression; 2 if a row could not be compared."""
    if comparison.regressions or not comparison.uncompared:
        return int(bool(comparison.regressions))
    rows = "; ".join(comparison.uncompared)
    output.note(f"torchproof: error: not compared: {rows}")
    return 2
