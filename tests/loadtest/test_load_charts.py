"""The charts of a load test: what they draw, and that they stay small."""

from __future__ import annotations

import dataclasses
import math
import re
from itertools import pairwise
from typing import get_args

import html_runs
import load_runs
import pytest
from facts import missing
from report_readers import Page

from torchproof.records import LoadResult, LoadTest, Requests, Stall, StallKind
from torchproof.report import render
from torchproof.report.html import load_charts
from torchproof.report.html.load_charts import Timeline


@pytest.fixture(scope="module")
def three() -> LoadTest:
    test = load_runs.run().load_test
    assert test is not None
    return test


def dots(path: str) -> list[tuple[float, float]]:
    """Positions in percent."""
    found = re.findall(r"M([\d.]+) ([\d.]+)", path)
    unit = load_charts.SQUARE / 100
    return [(float(x) / unit, float(y) / unit) for x, y in found]


def panel(test: LoadTest, name: str) -> Timeline:
    drawn = load_charts.timelines(test)
    assert drawn is not None
    return next(each for each in drawn.panels if each.name == name)


def test_culprits_and_stalls_stand_where_they_happened(three: LoadTest) -> None:
    full = panel(three, "full")
    requests = three.results[0].requests
    last = max(requests.arrival_s)
    by_label = {mark.label: mark for mark in full.culprits}
    assert set(by_label) == {"0", "700", "1100"}
    for number in (0, 700, 1100):
        at = 100 * requests.arrival_s[number] / last
        assert by_label[str(number)].x == pytest.approx(at, abs=0.1)
    outermost = [band for band in full.bands if band.whole]
    assert {band.tone for band in outermost} == {"p0", "p2"}  # not Inductor's
    stall = three.results[0].stalls[2]
    (band,) = (b for b in outermost if f"from {stall.begin_s:.1f} s" in b.title)
    assert band.width == pytest.approx(100 * 1.4 / last, abs=0.1)


def test_slow_requests_lie_above_usual_ones(three: LoadTest) -> None:
    full = panel(three, "full")
    assert max(y for _, y in dots(full.slow)) < min(y for _, y in dots(full.usual))
    assert not full.lost and full.warm is not None
    assert all(0 <= x <= 100 and 0 <= y <= 100 for x, y in dots(full.usual + full.slow))


def test_a_compilation_in_the_background_is_no_band() -> None:
    """Requests do not wait for it, so it is only in the bar below the chart."""
    result = load_runs.clean()
    behind = Stall("compile", 1.0, 9.0, "compile", data={"background": True})
    inside = Stall("gc", 2.0, 2.1, "collection")
    result = dataclasses.replace(result, stalls=(behind, inside))
    drawn = panel(load_runs.load_test([result]), "full")
    assert [(band.tone, band.whole) for band in drawn.bands] == [
        ("p0", False),
        ("p2", True),
    ]


def test_requests_without_an_answer_are_marked(three: LoadTest) -> None:
    eager = panel(three, "eager")
    assert eager.lost and not eager.culprits and not eager.bands


def test_every_kind_of_stall_has_its_colour() -> None:
    assert set(load_charts.KINDS) == set(get_args(StallKind))
    tones = {tone for tone, _ in load_charts.KINDS.values()}
    assert len(tones) == len(load_charts.KINDS)


def test_a_clean_strategy_has_no_marks() -> None:
    clean = panel(load_runs.load_test([load_runs.clean()]), "full")
    assert clean.usual and not (clean.slow or clean.lost or clean.culprits)


def test_percentiles_are_marked_with_their_intervals(three: LoadTest) -> None:
    drawn = load_charts.distribution(three)
    assert drawn is not None and drawn.limit is not None
    marks = {strip.name: {m.name: m for m in strip.marks} for strip in drawn.strips}
    assert set(marks["full"]) == {"p50", "p90", "p99"}
    assert set(marks["compile:nowait"]) == {"p50", "p90"}
    middle, tail = marks["full"]["p50"], marks["full"]["p99"]
    assert middle.low is not None and middle.high is not None
    assert middle.low < middle.x < middle.high
    # Too few stalls to say how slow the slowest are, at most.
    assert tail.low is not None and tail.low < tail.x and tail.high is None
    assert middle.x < drawn.limit < tail.x
    assert {strip.lost for strip in drawn.strips} == {0, three.results[1].unserved}


def test_labels_of_percentiles_do_not_touch(three: LoadTest) -> None:
    drawn = load_charts.distribution(three)
    assert drawn is not None
    for strip in drawn.strips:
        places = sorted(mark.x for mark in strip.marks if mark.label)
        assert all(after - before > 10 for before, after in pairwise(places))


def test_rates_are_drawn_if_they_were_searched(three: LoadTest) -> None:
    assert load_charts.rates(three) is None
    drawn = load_charts.rates(load_runs.load_test([load_runs.searched()]))
    assert drawn is not None
    (series,) = drawn.series
    assert [t.verdict for t in series.trials] == [
        *("met", "met", "met", "undecided", "missed", "missed")
    ]
    xs = [trial.x for trial in series.trials]
    assert xs == sorted(xs)
    met = [t.y for t in series.trials if t.verdict == "met"]
    assert drawn.limit is not None and all(y > drawn.limit for y in met)


def test_a_hundred_thousand_requests_fit_on_the_page() -> None:
    count = 100_000
    times = [n / 1000 for n in range(count)]
    service = load_runs.services(count, 0.0005)
    requests = load_runs.queued(times, service)
    stalls = tuple(Stall("gc", t, t + 0.0002, "collection") for t in times[::10])
    drawn = panel(
        load_runs.load_test([LoadResult("full", requests, stalls=stalls)]), "full"
    )
    assert len(drawn.usual) < 200_000
    assert len(drawn.bands) <= 300


@pytest.mark.parametrize(
    "requests",
    [
        Requests(),
        Requests((0.0,), (None,), (None,), (0,), (None,), (None,)),
        Requests((0.0,), (0.0,), (0.0,), (0,), (0,), (1,)),  # no time passed
    ],
)
def test_without_an_answer_there_is_no_chart(requests: Requests) -> None:
    test = load_runs.load_test([LoadResult("full", requests)])
    assert load_charts.timelines(test) is load_charts.distribution(test) is None
    assert render(load_runs.run([LoadResult("full", requests)]), "html")


def test_one_request_is_a_chart() -> None:
    requests = Requests((0.0,), (0.0,), (0.004,), (0,), (0,), (1,))
    test = load_runs.load_test([LoadResult("full", requests)])
    drawn = load_charts.timelines(test)
    assert drawn is not None and all(math.isfinite(at) for at, _ in drawn.x.ticks)
    assert dots(drawn.panels[0].usual)


def test_the_page_has_all_sections_and_numbers() -> None:
    page = Page(render(load_runs.run(), "html"))
    anchors = {values.get("id") for tag, values in page.tags if tag == "section"}
    assert {"load", "timeline", "distribution", "slow", "findings"} <= anchors
    assert "rates" not in anchors
    assert missing(page.text, "LT101", "request 700", "or pad to 576") == []
    assert missing(page.text, "eager left 265", "p99.9 needs 4603") == []
    searched = Page(render(load_runs.run([load_runs.searched()]), "html"))
    assert "rates" in {v.get("id") for tag, v in searched.tags if tag == "section"}


def test_texts_of_a_load_test_stay_text() -> None:
    nasty = " ".join((*html_runs.MARKUP, html_runs.HIDDEN))
    plain = load_runs.recompiling()
    assert plain.tail is not None
    cause = dataclasses.replace(
        plain.tail.causes[0], code="<b>", text=nasty, remedy=nasty
    )
    result = dataclasses.replace(
        plain,
        strategy=nasty,
        stalls=tuple(dataclasses.replace(s, text=nasty) for s in plain.stalls),
        tail=dataclasses.replace(plain.tail, causes=(cause,), missing={nasty: nasty}),
        notes=(nasty,),
        error=nasty,
    )
    run = load_runs.run([result], test={"arrivals": nasty, "calls": (nasty,)})
    known = {tag for tag, _ in Page(render(load_runs.run(), "html")).tags}
    page = Page(render(run, "html"))
    assert {tag for tag, _ in page.tags} <= known | {"a", "code"}
    assert not [n for _, values in page.tags for n in values if n.startswith("on")]
