"""Models nobody here wrote: counts confirmed by hand against torch's own logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from torchproof import rules
from torchproof.api import counts_of
from torchproof.records import Finding

transformers = pytest.importorskip("transformers")
if not transformers.__version__.startswith("5.22."):
    pytest.skip("the counts hold for transformers 5.22", allow_module_level=True)

ZOO = Path(__file__).parent / "models" / "zoo.py"
NAMESPACE: dict[str, Any] = {}
exec(compile(ZOO.read_text(), str(ZOO), "exec"), NAMESPACE)
TRUTH: dict[str, dict[str, Any]] = NAMESPACE["TRUTH"]
OLDER: dict[str, dict[str, Any]] = NAMESPACE["TRUTH_2_11"]
BREAKS = {"graph_break", "skipped_frame"}


def truth(name: str) -> dict[str, Any]:
    older = OLDER.get(name, {}) if torch.__version__ < (2, 13) else {}
    return TRUTH[name] | older


def squashed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def place(finding: Finding) -> str:
    """`modeling_x.py: the source line`, which survives other versions' line numbers."""
    return squashed(f"{Path(finding.file or '').name}: {finding.source}")


# Seconds, not tens of seconds; the others are checked by `make prove`.
QUICK = {
    *("gpt2", "vit"),
}
SLOW = pytest.mark.slow
NAMES = [name if name in QUICK else pytest.param(name, marks=SLOW) for name in TRUTH]


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_the_logs(name: str, observe: Any) -> None:
    expected = truth(name)
    observation = observe(f"{ZOO}:{name}")
    findings = rules.check(observation)
    counted = counts_of(observation)
    if expected.get("raises"):  # plain torch stops there, torchproof goes on in eager
        assert "compile_error" in {f.kind for f in findings}
        assert counted["graph_breaks"] >= expected["graph_breaks"]
        return
    keys = ("graph_breaks", "skipped_frames", "recompiles")
    told = {key: counted[key] for key in keys}
    assert told == {key: expected[key] for key in told}
    assert counted["graphs"] == expected["graphs"]
    limits = [f for f in findings if f.kind == "recompile_limit"]
    assert bool(limits) == expected["limit_hit"]
    places = sorted(place(f) for f in findings if f.kind in BREAKS)
    assert places == sorted(map(squashed, expected["places"]))
    for finding in findings:
        assert finding.message and finding.cause and finding.fix
        assert finding.file is None or "-packages/torch/" not in finding.file
