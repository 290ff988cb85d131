"""Runs of `fix` for tests: of a program, and made up without a search."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from forked_commands import forked
from report_runs import RECEIPT

from torchproof.checking import rules
from torchproof.fixing import FixOptions, fix
from torchproof.fixing.edits import located, overlay_of, replacements, unified
from torchproof.fixing.source_text import digest, read_source
from torchproof.records import Finding, Fix, Fixing, Mark, Run, Setting
from torchproof.targets import Options

COUNTS = {"calls": 2, "graphs": 2, "graph_breaks": 1, "recompiles": 0}


def fixed(
    tmp_path: Path,
    text: str,
    *,
    train: bool = False,
    as_written: bool = False,
    **options,
) -> Run:
    """The run of `fix` for a program with a factory `make`."""
    path = tmp_path / "model.py"
    path.write_text(text)
    with forked():
        run = fix(
            f"{path}:make",
            Options(train=train, as_written=as_written),
            fix_options=FixOptions(effort="quick", **options),
            save_in=tmp_path / "runs",
        )
    assert path.read_text() == text  # nothing on disk changes
    return run


def verified(run: Run) -> list[Fix]:
    return [each for each in run.fixes if each.status == "verified"]


def edit(file: Path, after: str, **settings) -> Fix:
    """A verified fix that changes the text of a file."""
    before = read_source(str(file)).text
    changes = replacements(str(file), before, after)
    changes = tuple(located(change, before, before) for change in changes)
    values = {
        "title": "keep the value in a tensor",
        "tier": "safe",
        "status": "verified",
        "codes": ("GB101",),
        "findings": ("0123456789abcdef",),
        "file": str(file),
        "line": changes[0].line,
        "function": "step",
        "owner": "user",
        "replacements": changes,
        "diff": unified({str(file): after}, {str(file): before}),
        "receipt": RECEIPT,
    }
    return Fix(**{**values, **settings})


def setting(
    *settings: Setting, marks: Sequence[Mark] = (), title: str = "set it"
) -> Fix:
    return Fix(
        title,
        "safe",
        "verified",
        ("GB103",),
        settings=settings,
        marks=tuple(marks),
        receipt=RECEIPT,
    )


def run_of(
    *fixes: Fix,
    remaining: Mapping[Finding, str] | None = None,
    target: str = "model.py:make",
    **settings,
) -> Run:
    files = {r.file for fix in fixes for r in fix.replacements}
    texts = {file: read_source(file).text for file in files}
    helpful = [fix for fix in fixes if fix.status != "rejected"]
    remaining = remaining or {}
    values = {
        "id": "20261116-1700-model",
        "target": target,
        "strategy": "full",
        "environment": {"torch": "2.13.0+cpu", "python": "3.11.7", "device": "cpu"},
        "counts": {"calls": 2, "graphs": 5, "graph_breaks": 2, "recompiles": 3},
        "findings": tuple(remaining),
        "fixes": fixes,
        "fixing": Fixing(
            rounds=2,
            proofs=3,
            seconds=4.2,
            counts=COUNTS,
            remaining=tuple(remaining),
            reasons={f.identity: why for f, why in remaining.items()},
            sources={file: digest(text) for file, text in texts.items()},
            edited={
                file: digest(text)
                for file, text in overlay_of(helpful, texts).texts.items()
            },
        ),
        "verb": "fix",
        "command": f"torchproof fix {target}",
        "started": "2026-11-16T17:00:00",
    }
    return rules.with_texts(Run(**{**values, **settings}))
