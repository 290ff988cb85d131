"""Models nobody here wrote: counts confirmed by hand against torch's own logs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from torchproof.checking import rules
from torchproof.checking.counts import counts_of
from torchproof.records.run import Finding

transformers = pytest.importorskip("transformers")
if not transformers.__version__.startswith("5.22.") or torch.__version__ < (2, 13):
    pytest.skip("counts of transformers 5.22, torch 2.13", allow_module_level=True)

ZOO = Path(__file__).parent / "models" / "zoo.py"
TRUTH: dict[str, Any] = runpy.run_path(str(ZOO))["TRUTH"]
BREAKS = {"graph_break", "skipped_frame"}


def squashed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def place(finding: Finding) -> str:
    """`modeling_x.py: the source line`, which survives other versions' line numbers."""
    return squashed(f"{Path(finding.file or '').name}: {finding.source}")


@pytest.mark.slow  # test_library_scripts.py compares one model with the log each time
@pytest.mark.parametrize("name", TRUTH)
def test_counts_are_those_of_the_logs(name: str, observe: Any) -> None:
    expected = TRUTH[name]
    observation = observe(f"{ZOO}:{name}")
    findings = rules.check(observation)
    counted = counts_of(observation)
    if expected.raises:  # plain torch stops there, torchproof goes on in eager
        assert "compile_error" in {f.kind for f in findings}
        assert counted["graph_breaks"] >= expected.graph_breaks
        return
    for key in ("graph_breaks", "skipped_frames", "recompiles", "graphs"):
        assert counted[key] == getattr(expected, key), key
    limits = [f for f in findings if f.kind == "recompile_limit"]
    assert bool(limits) == expected.limit_hit
    places = sorted(place(f) for f in findings if f.kind in BREAKS)
    assert places == sorted(map(squashed, expected.places))
    for finding in findings:
        assert finding.message and finding.cause and finding.fix
        assert finding.file is None or "-packages/torch/" not in finding.file
