"""A comparison of two runs as a reader sees it, at width 80."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from bench_runs import ENVIRONMENT, bench, row
from facts import missing

from torchproof.measure.comparison import compare
from torchproof.report import render_comparison


def test_a_comparison() -> None:
    before = bench([row("eager", 1.0), row("full", 0.5)], id="before")
    counts = {"graph_breaks": 1, "recompiles": 0}
    after = bench(
        [row("eager", 1.0, seed=1), row("full", 0.6, peak_bytes=2**30, counts=counts)],
        id="after",
    )
    shown = render_comparison(compare(before, after), "text")
    head, eager, full, end = (block.split("\n") for block in shown.split("\n\n"))
    assert [line.split() for line in head] == [
        ["A", "before", "model.py:make"],
        ["B", "after", "model.py:make"],
    ]
    assert eager[0].startswith("eager") and full[0] == "full"
    assert cells(eager[1:]) == [
        ["speed", "1.00 ms", "1.00 ms", "not significant (0.95-1.06)"],
        ["tail", "1.02 ms", "1.03 ms", "not significant (0.94-1.05)"],
        ["memory", "512 MiB", "512 MiB", "same"],
    ]
    assert cells(full[1:]) == [
        ["speed", "0.500 ms", "0.600 ms", "1.20x slower (1.14-1.27)", "REGRESSION"],
        ["vs eager", "2.00x", "1.67x", "1.20x less (1.11-1.30)"],
        ["tail", "0.508 ms", "0.616 ms", "1.21x slower (1.15-1.29)", "REGRESSION"],
        ["memory", "512 MiB", "1.00 GiB", "2.00x more", "REGRESSION"],
        ["compile", "12.0 s", "12.0 s", "not significant"],
        ["breaks", "0", "1", "1 more", "REGRESSION"],
        ["recompiles", "0", "0", "same"],
    ]
    said = " ".join(" ".join(end).split())
    assert re.search(r"speed 1\.20x .*tail 1\.21x .*memory 2\.00x .*breaks 1 ", said)
    assert missing(said, "keep compiled", "1.67x", "1.63", "1.70", "24") == []
    shown = render_comparison(compare(before, after), "md")
    [breaks] = [line for line in shown.splitlines() if line.startswith("| breaks ")]
    cells_of_breaks = breaks.strip("| ").split(" | ")
    assert cells_of_breaks == ["breaks", "0", "1", "1 more", "regression"]
    assert json.loads(render_comparison(compare(before, after), "json"))


def cells(lines: list[str]) -> list[list[str]]:
    """Of the rows with an arrow; other lines are notes to them."""
    rows = [line.strip() for line in lines if "->" in line]
    return [re.split(r"(?: +-> +)|  +", row) for row in rows]


def test_a_comparison_warns_before_it_shows_numbers() -> None:
    a = bench([row("eager", 1.0), row("full", 0.5)])
    other = replace(a, environment={**ENVIRONMENT, "torch": "2.11.0"})
    shown = render_comparison(compare(a, other), "text")
    assert shown.index("ENVIRONMENTS") < shown.index("2.11.0") < shown.index("speed")
    slow = bench([row("eager", 1.2), row("full", 0.6, eager_ms=1.2)])
    shown = render_comparison(compare(a, slow), "text")
    warned = shown.partition("speed")[0]
    assert re.search(r"\b[Ee]ager .*1\.20x slower \(1\.1\d-1\.2\d\)", warned)
