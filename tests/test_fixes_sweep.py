"""The sweep of `fix` over transformers models: what it counts, and its targets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import fixes  # noqa: E402


def finding(
    identity: str, kind: str = "graph_break", status: str = "open"
) -> fixes.Row:
    return {"identity": identity, "kind": kind, "status": status}


def test_what_an_edit_uncovers_counts_as_found() -> None:
    accepted = [{"codes": ["GB101"], "findings": ["a"]}]
    before, after = [finding("a")], [finding("b")]
    counts = fixes.changed(before, after, accepted, fixes.BREAKS)
    assert counts == {"before": 1, "uncovered": 1, "after": 1}


def test_what_was_uncovered_and_cured_counts_as_removed() -> None:
    accepted = [
        {"codes": ["GB101"], "findings": ["a"]},
        {"codes": ["GB102"], "findings": ["b"]},
        {"codes": ["RC201"], "findings": ["r"]},
    ]
    before = [finding("a"), finding("r", "recompile")]
    row = {"safe": {"breaks": fixes.changed(before, [], accepted, fixes.BREAKS)}}
    assert row["safe"]["breaks"] == {"before": 1, "uncovered": 1, "after": 0}
    assert fixes.removed([row], "safe") == (2, 2)


def test_intended_breaks_do_not_count() -> None:
    before = [finding("a", status="intentional")]
    counts = fixes.changed(before, before, [], fixes.BREAKS)
    assert counts == {"before": 0, "uncovered": 0, "after": 0}


_RUN_ALL = """
import torch
from benchmarks import transformers_models as models
torch.manual_seed(0)
failed = []
for name, make in models.FACTORIES.items():
    try:
        model, calls = make()
        for call in calls:
            model(**call)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
assert not failed, "\\n".join(failed)
assert len(models.TYPES) >= 70
"""


@pytest.mark.slow
def test_every_model_runs_in_eager() -> None:
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, "-c", _RUN_ALL],
        cwd=ROOT,
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
