"""A comparison of two runs as a reader sees it, at width 80."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from textwrap import dedent

from bench_runs import ENVIRONMENT, bench, row

from torchproof.measure.comparison import compare
from torchproof.report import render_comparison


def test_a_comparison() -> None:
    before = bench([row("eager", 1.0), row("full", 0.5)], id="before")
    counts = {"graph_breaks": 1, "recompiles": 0}
    after = bench(
        [row("eager", 1.0, seed=1), row("full", 0.6, peak_bytes=2**30, counts=counts)],
        id="after",
    )
    assert render_comparison(compare(before, after), "text") == dedent(
        """\
        A  before  model.py:make
        B  after  model.py:make

        eager: the control
           speed         1.00 ms  ->    1.00 ms   not significant (0.95-1.06)
           tail          1.02 ms  ->    1.03 ms   not significant (0.94-1.05)
           memory        512 MiB  ->    512 MiB   same

        full
           speed        0.500 ms  ->   0.600 ms   1.20x slower (1.14-1.27)  REGRESSION
           vs eager        2.00x  ->      1.67x   1.20x less (1.12-1.30)
           tail         0.508 ms  ->   0.616 ms   1.21x slower (1.15-1.29)  REGRESSION
           memory        512 MiB  ->   1.00 GiB   2.00x more  REGRESSION
           compile        12.0 s  ->     12.0 s   not significant
              less than 1 s apart
           breaks              0  ->          1   1 more  REGRESSION
           recompiles          0  ->          0   same

        The runs were taken at different times: intervals come from each run by itself,
           they are not paired.
        Worse in B: full: speed 1.20x slower; full: tail 1.21x slower; full: memory
           2.00x more; full: breaks 1 more.
        Decision for B: keep compiled: full is 1.67x faster than eager (1.63 to 1.70);
           compiling pays off after 24 steps.
        """
    )
    shown = render_comparison(compare(before, after), "md")
    assert "| breaks | 0 | 1 | 1 more | regression |" in shown.splitlines()
    assert json.loads(render_comparison(compare(before, after), "json"))


def test_a_comparison_warns_before_it_shows_numbers() -> None:
    a = bench([row("eager", 1.0), row("full", 0.5)])
    other = replace(a, environment={**ENVIRONMENT, "torch": "2.11.0"})
    shown = render_comparison(compare(a, other), "text")
    loud = "UNLIKE ENVIRONMENTS, so no verdict on time or memory"
    assert shown.index(loud) < shown.index("speed")
    slow = bench([row("eager", 1.2), row("full", 0.6, eager_ms=1.2)])
    shown = render_comparison(compare(a, slow), "text")
    assert re.search(r"Eager itself is 1.20x slower \(1.1\d-1.2\d\) in B", shown)
