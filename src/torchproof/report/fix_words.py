"""A run of `fix` in words: what every report says about it in the same way."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchproof.records import (
    Finding,
    Fix,
    Fixing,
    Run,
    cells,
    is_own,
    shown_briefly,
)
from torchproof.report import commands, numbers, run_words
from torchproof.report.document import FixBlock

# The counts that a fix may change, with their names in a sentence.
COUNTS = {
    "graphs": "graphs",
    "graph_breaks": "breaks",
    "skipped_frames": "skipped frames",
    "recompiles": "recompiles",
}


@dataclass(frozen=True)
class Left:
    """A finding that is not fixed, and why."""

    finding: Finding
    why: str
    is_new: bool  # another finding had hidden it


def outcome(run: Run) -> Fixing:
    return run.fixing or Fixing(rounds=0, proofs=0, seconds=0.0, counts=run.counts)


def helpful(run: Run) -> list[Fix]:
    """The fixes to show: verified, applied, or only suggested."""
    return [fix for fix in run.fixes if fix.status != "rejected"]


def rejected(run: Run) -> list[Fix]:
    return [fix for fix in run.fixes if fix.status == "rejected"]


def changes(run: Run) -> list[tuple[str, str, str]]:
    """The counts without fixes and with all of them: (name, before, after)."""
    after = outcome(run).counts
    return [
        (name, numbers.count(run.counts.get(key)), numbers.count(after.get(key)))
        for key, name in COUNTS.items()
        if run.counts.get(key) is not None or after.get(key) is not None
    ]


def place(fix: Fix) -> str:
    """`model.py:42`; settings have no place."""
    if fix.file is None:
        return "settings"
    return run_words.place(replace(fix, file=shown_briefly(fix.file)))


def written(fix: Fix) -> str:
    """Where the fix is, or why it is not written; empty if nobody asked."""
    if fix.status == "applied":
        return f"written to {fix.written_to or numbers.UNKNOWN}"
    if fix.status == "suggested":
        return f"not verified, so it is never written: {fix.why or numbers.UNKNOWN}"
    return f"not written: {fix.why}" if fix.why else ""


def proof(fix: Fix, before: Fix | None = None) -> str:
    """The figures of the receipt, unless the fix before it has the same one."""
    if fix.receipt is None:
        return "no"
    if before is not None and before.receipt == fix.receipt:
        return "together with the fix before it"
    return fix.receipt.text


def fix_blocks(run: Run) -> list[FixBlock]:
    """The fixes to show, with what proves them."""
    fixes = helpful(run)
    pairs = enumerate(zip([None, *fixes], fixes, strict=False), 1)
    return [
        FixBlock(number, fix, place(fix), proof(fix, before), written(fix))
        for number, (before, fix) in pairs
    ]


def left(run: Run) -> list[Left]:
    known = {finding.identity for finding in run.findings}
    done = outcome(run)
    return [
        Left(
            finding,
            done.reasons.get(finding.identity, "no fix is known"),
            finding.identity not in known,
        )
        for finding in done.remaining
    ]


def summary(run: Run) -> str:
    """`2 fixes verified, 1 applied; 3 of 5 findings fixed, 2 left.`"""
    fixes = helpful(run)
    if not fixes and not left(run) and run.ending == "finished":
        return "Nothing to fix: no findings."
    counts = {
        status: sum(fix.status == status for fix in fixes)
        for status in ("verified", "applied", "suggested")
    }
    named = {status: count for status, count in counts.items() if count}
    text = f"{len(fixes) or 'no'} fix{'' if len(fixes) == 1 else 'es'}"
    if len(named) == 1:
        text += f" {next(iter(named))}"
    elif named:
        parts = [f"{count} {status}" for status, count in named.items()]
        text += f" ({', '.join(parts)})"
    still = left(run)
    remaining = {each.finding.identity for each in still}
    start = [f for f in run.findings if f.status == "open"]
    gone = sum(finding.identity not in remaining for finding in start)
    text += f"; {gone} of {numbers.amount(len(start), 'finding')} fixed"
    if still:
        hidden = sum(each.is_new for each in still)
        text += f", {len(still)} left"
        text += f" ({hidden} hidden before)" if hidden else ""
    return f"{text}."


def effort(run: Run) -> str:
    """What the search took."""
    done = outcome(run)
    text = f"{numbers.amount(done.proofs, 'proof')} in {done.seconds:.0f} s"
    dropped = len(rejected(run))
    return f"{text}, {numbers.amount(dropped, 'edit')} rejected" if dropped else text


def note(run: Run) -> str:
    """A caution if only some of the fixes were written; empty if there is none."""
    written = {fix.status for fix in helpful(run)} - {"suggested"}
    if written != {"verified", "applied"} or outcome(run).proved_alone:
        return ""
    return (
        "The fixes were proved all together. What was written was not proved without"
        " the rest."
    )


def code(run: Run) -> str:
    """The settings and marks of all fixes, as code to paste."""
    fixes = [fix for fix in helpful(run) if fix.status != "suggested"]
    settings = tuple(s for fix in fixes for s in fix.settings)
    marks = tuple(m for fix in fixes for m in fix.marks)
    whole = Fix("", "safe", "verified", (), settings=settings, marks=marks)
    return "\n".join(dict.fromkeys(whole.code))


def next_steps(run: Run) -> Iterator[tuple[str, str]]:
    """What to run next: (purpose, command)."""
    waiting = [fix for fix in run.fixes if fix.status == "verified" and not fix.why]
    in_cells = [fix for fix in waiting if fix.file and cells.name_in(fix.file)]
    waiting = [fix for fix in waiting if fix not in in_cells]
    own = [fix for fix in waiting if not fix.file or is_own(fix.file)]
    foreign = [fix for fix in waiting if fix.file and not is_own(fix.file)]
    if not run_words.incomplete(run):
        if _writable(own):
            yield "Apply them", shlex.join(["torchproof", "fix", run.id, "--write"])
        if foreign:
            patch = ["torchproof", "fix", run.id, "--patch", "DIR"]
            yield "As a patch of the library", shlex.join(patch)
        if in_cells:
            names = dict.fromkeys(cells.name_in(fix.file or "") for fix in in_cells)
            text = f"Edit {', '.join(filter(None, names))} as shown, then check again"
            yield text, commands.of(run, "check")
    still = {each.finding.identity for each in left(run)}
    unsafe = [
        fix
        for fix in rejected(run)
        if fix.refused == "tier" and not still.isdisjoint(fix.findings)
    ]
    if unsafe:
        more = f"Unsafe ones too ({len(unsafe)} more)"
        yield more, commands.of(run, "fix", *_flags(run), "--unsafe")


def _writable(fixes: Sequence[Fix]) -> bool:
    """Whether `--write` writes any of them: files, or settings without marks."""
    return any(fix.file or (fix.settings and not fix.marks) for fix in fixes)


def _flags(run: Run) -> list[str]:
    """The flags of `fix` that say what to fix."""
    flags = []
    effort, select = run.options.get("effort"), run.options.get("select")
    if effort and effort != "normal":
        flags += ["--effort", str(effort)]
    if select:
        flags += ["--select", ",".join(select)]
    return flags
