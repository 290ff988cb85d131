"""The exit codes of verbs; what could not be done is an error, whose code is 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchproof.cli.commands import Check
from torchproof.records import SEVERITIES, CauseTree, Finding, Run, UserError
from torchproof.records.options import Options

if TYPE_CHECKING:
    from torchproof.api import Comparison


def check_code(run: Run, options: Check) -> int:
    """1 if a finding of the severity of `--fail-on` or worse is open."""
    if interrupted := interrupted_code(run, options):
        return interrupted
    if options.fail_on != "never":
        bad = SEVERITIES[: SEVERITIES.index(options.fail_on) + 1]
        tree = CauseTree(run.findings)  # a cause is as severe as the worst it explains
        if any(tree.severity(cause) in bad for cause in tree.causes):
            return 1
    _assert_complete(run)
    return 0


def _assert_complete(run: Run) -> None:
    """An error if a part failed for a reason that no finding tells."""
    if any(_tells_error(f) for f in run.findings if f.status == "open"):
        return
    failed = {n: part.why for n, part in run.parts.items() if part.status == "failed"}
    if failed:
        parts = [f"part {name} failed: {why}" for name, why in failed.items()]
        raise UserError("; ".join(parts))


def _tells_error(finding: Finding) -> bool:
    """Whether a finding is about an error of a call that eager completes."""
    kinds = {"compile_error", "cudagraph_lifetime"}
    return finding.kind in kinds or finding.code == "NM407"


def interrupted_code(run: Run, options: Options) -> int:
    """130 if the run was interrupted, 0 if it is complete, else an error."""
    if run.ending == "interrupted":
        return 130
    if run.ending == "timeout":
        raise UserError(f"target stopped after {options.timeout_s:g} s (--timeout)")
    if run.error:
        raise UserError(run.error)
    return 0


def comparison_code(comparison: Comparison) -> int:
    """1 on a regression; an error if a row could not be compared."""
    if comparison.regressions:
        return 1
    if comparison.uncompared:
        raise UserError(f"not compared: {'; '.join(comparison.uncompared)}")
    return 0
