"""What the snapshots of a load test do not show: other runs, and limits of the page."""

from __future__ import annotations

import dataclasses
from typing import get_args

import load_runs
import pytest
import report_runs
from facts import missing
from report_readers import Page

from torchproof.records import LoadResult, Requests, Run, Stall, StallKind
from torchproof.report import formats, render
from torchproof.report.charts import load as load_charts
from torchproof.report.load_sections import share
from torchproof.report.log import observation


def text(run: Run) -> str:
    return render(run, "text")


def test_a_clean_load_test_is_short_and_blames_nothing() -> None:
    results = [load_runs.clean("eager", middle_s=0.008), load_runs.clean()]
    clean = text(load_runs.run(results))
    assert "LT1" not in clean and "unexplained" not in clean
    assert 12 <= len(clean.splitlines()) <= 25
    plain = dataclasses.replace(
        load_runs.clean(), verdict=None, goodput_rate=None, cold=None
    )
    assert "--slo" in text(load_runs.run([plain], test={"objective": None}))
    failed = dataclasses.replace(plain, failed=3, errors={"RuntimeError: odd": 3})
    assert "3 of 1500 requests: RuntimeError: odd" in text(load_runs.run([failed]))


def test_a_run_that_ended_before_any_result_has_every_format() -> None:
    empty = load_runs.run([], error="the target is missing")
    for format in formats.FORMATS:
        assert render(empty, format)
    assert "the target is missing" in text(empty)
    assert text(dataclasses.replace(empty, load_test=None))


def test_the_log_says_what_was_learned() -> None:
    run = load_runs.run()
    assert missing(observation.sentence(run), "model.py:make", "p99", "full") == []
    details = " ".join(observation.details(run))
    assert missing(details, "LT101", "request 700", "could not keep up") == []


def test_shares_never_round_to_all_or_nothing() -> None:
    assert [share(part) for part in (None, 0.0, 0.004, 0.61, 0.998, 1.0)] == [
        *("-", "0%", "<1%", "61%", ">99%", "100%")
    ]


def test_every_kind_of_stall_has_its_colour() -> None:
    assert set(load_charts.KINDS) == set(get_args(StallKind))
    tones = {tone for tone, _ in load_charts.KINDS.values()}
    assert len(tones) == len(load_charts.KINDS)


def test_many_requests_fit_on_the_page() -> None:
    count = 30_000
    times = [n / 1000 for n in range(count)]
    requests = load_runs.queued(times, load_runs.services(count, 0.0005))
    stalls = tuple(Stall("gc", t, t + 0.0002, "collection") for t in times[::10])
    test = load_runs.load_test([LoadResult("full", requests, stalls=stalls)])
    drawn = load_charts.timelines(test)
    assert drawn is not None
    [panel] = drawn.panels
    assert len(panel.usual) < 200_000 and len(panel.bands) <= 300


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


def test_texts_of_a_load_test_stay_text() -> None:
    nasty = " ".join((*report_runs.MARKUP, report_runs.HIDDEN))
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
