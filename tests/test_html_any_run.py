"""The HTML report of checks made at random: every finding is there, as text."""

from __future__ import annotations

import re
from collections import Counter

import check_runs
import pytest
from hypothesis import HealthCheck, given, settings
from test_html import Reader

from torchproof.records.run import Run
from torchproof.report import render

# The tags of a page in which every section is there.
KNOWN = {tag for tag, _ in Reader(render(check_runs.FULL, "html")).tags}
KNOWN |= {"a", "code", "mark"}
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(check_runs.runs())
def test_any_run_is_a_whole_page_of_known_tags(run: Run) -> None:
    text = render(run, "html")
    text.encode()  # can be written to a file
    found = Reader(text)
    assert {tag for tag, _ in found.tags} <= KNOWN
    assert not [name for _, values in found.tags for name in values if name[:2] == "on"]
    assert not UNSEEN.search(found.text)
    listed = [v for tag, v in found.tags if tag == "details" and v.get("data-severity")]
    told = [(v["data-severity"], v["data-status"], v["data-kind"]) for v in listed]
    assert Counter(told) == Counter(
        (f.severity, f.status, f.kind) for f in run.findings
    )
    assert len({v["id"] for v in listed}) == len(run.findings)
    still_open = sum(f.status == "open" for f in run.findings)
    assert f"Open findings {still_open} " in found.text
