"""The HTML report as text: what is in the file, and what must not be."""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import bench_runs
import html_runs
import pytest
from facts import missing, numbers

from torchproof.cli import main, output
from torchproof.measure import comparison
from torchproof.records.run import Finding, Part, Run
from torchproof.report import earlier_run, render, render_comparison
from torchproof.report.html import charts, headline, rich, visible
from torchproof.report.html.finding_list import Line, code_lines, entries


class Reader(HTMLParser):
    """Every tag with its attributes, and the words outside of style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._raw = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(run: Run, *, source: bool = True) -> Reader:
    return Reader(render(run, "html", source=source))


def element(text: str, start: str, name: str) -> str:
    return text.partition(start)[2].partition(f"</{name}>")[0]


# -- the file --------------------------------------------------------------------------


def test_the_policy_lets_only_the_pages_own_style_and_script_work() -> None:
    text = render(html_runs.check(), "html")
    policy = html.unescape(re.search(r'Policy" content="([^"]*)"', text)[1])
    for name, start in (("style", "<style>"), ("script", "<script>")):
        own = element(text, start, name)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy and "http" not in policy


def test_nothing_is_loaded_and_no_tag_carries_style_or_code() -> None:
    found = page(html_runs.check())
    loads = {"img", "link", "iframe", "object", "embed", "audio", "video", "source"}
    for tag, values in found.tags:
        if tag in loads:
            assert (tag, values["rel"]) == ("link", "icon")
            assert values["href"].startswith("data:")
        assert not [name for name in values if name.startswith("on")], tag
        assert "src" not in values and "style" not in values, tag
        if tag == "a":
            assert re.match(r"#|https://", values["href"])
    style = element(render(html_runs.check(), "html"), "<style>", "style")
    assert "url(" not in style and "@import" not in style


def test_the_run_is_in_the_page_as_data() -> None:
    run = html_runs.hostile()
    text = render(run, "html")
    start = '<script type="application/json" id="run-json">'
    data = element(text, start, "script")
    assert not set(data) & set("<>&") and data.isascii()
    assert json.loads(data)["id"] == run.id
    same = Run.from_json(
        json.loads(element(render(html_runs.check(), "html"), start, "script"))
    )
    assert json.dumps(same.to_json()) == json.dumps(html_runs.check().to_json())


def test_a_usual_page_is_small() -> None:
    assert len(render(html_runs.check(), "html").encode()) < 150_000


def test_any_text_can_be_written_to_a_file() -> None:
    assert render(html_runs.hostile(), "html").encode()


def test_without_source_no_line_of_code_is_in_the_file() -> None:
    run = html_runs.check()
    site = dataclasses.replace(run.configuration[0], source="model = compile(SECRET)")
    quoting = 'torch: computed as follows: # File "model.py", line 9, code: y = HIDDEN'
    found = html_runs.finding(evidence=(quoting,))
    run = dataclasses.replace(run, configuration=(site,), findings=(found,))
    shown = render(run, "html")
    hidden = render(run, "html", source=False)
    for line in ("scores = self.score(x)", "scores.clamp", "SECRET", "HIDDEN"):
        assert line in shown
        assert line not in hidden
    assert "Model.forward" in hidden


def test_a_saved_run_becomes_a_file(tmp_path: Path) -> None:
    saved, shown, bare = (tmp_path / name for name in ("run.json", "a.html", "b.html"))
    saved.write_text(json.dumps(html_runs.check().to_json()))
    command = ["show", str(saved), "--format", "html", "-q", "-o"]
    assert main([*command, str(shown)]) == 0
    assert main([*command, str(bare), "--no-source"]) == 0
    assert shown.read_text().startswith("<!doctype html>\n")
    assert "scores.clamp" in shown.read_text()
    assert "scores.clamp" not in bare.read_text()


@pytest.mark.parametrize("format", ["html", "sarif", "github", "gitlab"])
def test_no_comparison_in_words_follows_a_document(
    format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = bench_runs.bench([html_runs.row("eager", 1.0), html_runs.row("full", 0.5)])
    asked = {"format": format, "output": None, "verbose": False, "no_source": False}
    options = argparse.Namespace(**asked, quiet=True)
    compared = comparison.compare(run, run)
    output.show(run, options, compared)
    after = capsys.readouterr().out.rpartition("</html>")[2].splitlines()
    words = render_comparison(compared, "text").splitlines()
    assert not set(filter(None, words)) & set(after)


# -- what it says ----------------------------------------------------------------------


def test_what_was_not_measured_is_said_once_and_not_drawn() -> None:
    def not_drawn(run: Run) -> str:
        return element(render(run, "html"), '<p class="missing">', "p")

    bare = html_runs.check(measurements=(), findings=(), counts={}, baseline=None)
    charts_of_a_check = ("strategies", "phases", "cost", "sweep")
    assert missing(not_drawn(bare), *charts_of_a_check) == []
    assert not [tag for tag, _ in page(bare).tags if tag == "svg"]
    full = html_runs.check()
    assert not_drawn(full) == ""
    swept = tuple(row for row in full.measurements if row.variant)
    assert "strategies" not in not_drawn(bench_runs.bench(swept))


def test_the_verdict_of_a_check_names_the_worst_finding_and_its_cost() -> None:
    cheap = html_runs.finding(cost_us=3.0, message="cheap", cause="b")
    dear = html_runs.finding(cost_us=300.0, message="dear", cause="c")
    low = html_runs.finding(severity="low", cost_us=999.0, cause="d")
    run = html_runs.check(findings=(low, cheap, dear))
    said = headline.headline(run, entries(run))
    assert said.tone == "bad" and said.word.startswith("3 ")
    assert missing(said.text, "300 us", "dear") == []


def test_the_verdict_of_a_clean_check_says_no_more_than_was_looked_at() -> None:
    run = html_runs.check(findings=(), parts={"breaks": Part("passed")})
    looked_for = ("graph break", "skipped frame", "recompile", "error")
    said = headline.headline(run, [])
    assert missing(said.text, *looked_for, "6 calls") == [] and said.tone == "good"
    run = html_runs.check(findings=(), parts={"static": Part("passed")})
    said = headline.headline(run, [])
    assert missing(said.text, *looked_for) == [*looked_for] and said.tone == "good"
    assert numbers(said.text) == []
    run = html_runs.check(findings=(), parts={"breaks": Part("failed", "why")})
    assert headline.headline(run, []).tone == "open"


def test_a_run_that_was_cut_short_says_so_first() -> None:
    run = html_runs.check(ending="timeout")
    said = headline.headline(run, entries(run))
    assert said.tone == "bad" and "(timeout)" in said.text
    whole = html_runs.check()
    seen = headline.headline(whole, entries(whole)).text
    assert seen in said.more[0] and said.more[0] != seen


def test_the_verdict_of_a_bench_is_its_decision() -> None:
    run = bench_runs.bench([html_runs.row("eager", 1.0), html_runs.row("full", 0.5)])
    said = headline.headline(run, [])
    assert (said.tone, said.word) == ("good", "keep compiled")
    assert missing(said.text, "full", "2.00x faster") == []
    slow = bench_runs.bench([html_runs.row("eager", 1.0), html_runs.row("full", 2.0)])
    assert headline.headline(slow, []).word == "stay eager"


def test_the_interval_of_a_loss_reads_as_the_loss_does() -> None:
    run = bench_runs.bench([html_runs.row("eager", 1.0), html_runs.row("full", 2.0)])
    tile = headline.tiles(run, [])[0]
    assert "eager" in tile.label and tile.value == "2.00x slower"
    assert missing(tile.note, "full", "1.96-2.04") == []


def test_resolved_and_intentional_ones_are_listed_and_not_counted() -> None:
    found = page(html_runs.check())
    listed = [v["data-status"] for _, v in found.tags if v.get("data-status")]
    assert [listed.count(s) for s in ("open", "resolved", "intentional")] == [3, 1, 1]
    assert "3 open" in found.text
    [gone] = re.findall(r"\b1 finding [^.]*20260101-0000-model[^.]*\.", found.text)
    assert "resolved" in gone


def test_a_comparison_is_part_of_the_page() -> None:
    fast = bench_runs.bench([html_runs.row("eager", 1.0), html_runs.row("full", 0.5)])
    slow = bench_runs.bench([html_runs.row("eager", 1.0), html_runs.row("full", 0.8)])
    slow = dataclasses.replace(slow, id="20260102-0305-model")
    found = comparison.compare(fast, slow)
    text = render(slow, "html", compared=found)
    assert text.rstrip().endswith("</html>")
    told = Reader(text).text
    assert missing(told, *found.regressions) == []
    assert "1.60x slower" in told
    assert fast.id in told and fast.id not in page(slow).text
    assert told.count("regression") == len(found.regressions) == 2  # the tail as well


# -- charts ----------------------------------------------------------------------------


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    run = bench_runs.bench(
        [html_runs.row("eager", 2.0), html_runs.row("full", 1.0, eager_ms=2.0)]
    )
    chart = charts.strategies(run)
    eager, full = chart.bars
    assert full.length == pytest.approx(eager.length / 2, rel=0.01)
    assert chart.reference == eager.length
    assert full.whisker[0] < full.length < full.whisker[1]
    assert (eager.tone, full.tone) == ("eager", "faster")
    assert max(*eager.ticks, *full.ticks, eager.whisker[1]) == pytest.approx(100)


def test_one_slow_round_does_not_flatten_the_chart() -> None:
    row = html_runs.row("eager", 1.0)
    slow = dataclasses.replace(row, rounds_ms=(*row.rounds_ms, (50.0,)))
    chart = charts.strategies(bench_runs.bench([slow]))
    assert chart.beyond == 1
    assert chart.bars[0].length > 80


def test_wrong_rows_and_numbers_that_no_clock_gives_have_no_bar() -> None:
    rows = [
        html_runs.row("eager", 1.0),
        html_runs.row("wrong", 0.1, **bench_runs.WRONG),
        dataclasses.replace(html_runs.row("lost", 1.0), median_ms=float("nan")),
        dataclasses.replace(html_runs.row("huge", 1.0), median_ms=1e300),
    ]
    run = bench_runs.bench(rows)
    assert [bar.name for bar in charts.strategies(run).bars] == ["eager"]
    assert bench_runs.WRONG["numerics"]["why"] in page(run).text


def test_phases_add_up_to_the_time_compiling_took() -> None:
    run = bench_runs.bench([html_runs.row("eager", 1.0), html_runs.row("full", 0.5)])
    (row,) = charts.phases(run)
    assert row.total == "8.20 s"
    assert sum(part.length for part in row.segments) == pytest.approx(100)
    assert [part.label for part in row.segments][1] == "AOTAutograd"


def test_a_sweep_marks_the_sizes_that_were_compiled_again() -> None:
    run = html_runs.check()
    (chart,) = charts.sweeps(run)
    again = {bar.name: bar.recompiles for bar in chart.bars if bar.tone != "eager"}
    assert again == {"batch 2 full": 0, "batch 4 full": 1, "batch 3 full": 0}
    assert page(run).text.count("\u25c6 1 recompile") == 1
    assert [bar.name for bar in charts.strategies(run).bars] == ["eager", "full"]


def test_a_sweep_of_one_strategy_names_it_once() -> None:
    rows = [
        html_runs.row("full", size * 1.0, variant={"sequence": size}, vs_eager=None)
        for size in (128, 192)
    ]
    (chart,) = charts.sweeps(bench_runs.bench(rows))
    assert "sequence" in chart.title and chart.title.endswith("(full)")
    assert [bar.name for bar in chart.bars] == ["sequence 128", "sequence 192"]
    assert {bar.verdict for bar in chart.bars} == {""}  # no eager to compare with


def test_a_size_that_all_rows_share_sets_none_apart() -> None:
    rows = [
        html_runs.row(name, ms, variant={"batch": 8})
        for name, ms in (("eager", 1.0), ("full", 0.5))
    ]
    run = bench_runs.bench(rows)
    assert len(charts.strategies(run).bars) == 2
    assert charts.sweeps(run) == []
    assert "Strategies batch 8" in page(run).text


# -- text ------------------------------------------------------------------------------


def test_code_and_addresses_in_a_sentence_are_marked() -> None:
    said = rich("call `a<b>` or see https://pytorch.org/x?a=1&b=2.")
    assert said == (
        "call <code>a&lt;b&gt;</code> or see "
        '<a href="https://pytorch.org/x?a=1&amp;b=2" rel="noreferrer noopener">'
        "https://pytorch.org/x?a=1&amp;b=2</a>."
    )
    assert rich("raise --seconds, x--y") == (
        'raise <code class="flag">--seconds</code>, x--y'
    )
    assert "<a" not in rich("javascript:alert(1) data:text/html,x")


def test_what_cannot_be_seen_is_written_out() -> None:
    shown = visible(html_runs.HIDDEN)
    assert "\u27e8U+202E\u27e9" in shown and "\u27e8U+D800\u27e9" in shown
    assert not set(shown) & set("\u202e\u2066\u200b\u2028\x00\x1b\ufeff\ud800")
    assert visible("plain\n\ttext \u05d0\u4e2d") == "plain\n\ttext \u05d0\u4e2d"
    assert len(visible("e" + "\u0301" * 50)) == 5


def lines(**more: object) -> list[Line]:
    return code_lines(html_runs.finding(**more))


def test_the_line_and_its_columns_are_marked() -> None:
    shown = lines()
    assert [line.number for line in shown] == [10, 11, 12, 13, 14]
    (here,) = [line for line in shown if line.here]
    assert (here.before, here.marked) == ("    if ", "scores.max().item()")
    assert here.after == " > self.limit:"
    assert shown[0].before == "def forward(self, x):"


def test_without_columns_what_the_message_quotes_is_marked() -> None:
    (here,) = [line for line in lines(column=None, end_column=None) if line.here]
    assert here.marked == "scores.max().item()"
    (here,) = [
        line for line in lines(column=None, end_column=None, message="?") if line.here
    ]
    assert here.marked == "if scores.max().item() > self.limit:"


@pytest.mark.parametrize(
    "more",
    [
        {"line": None},
        {"source": None, "context": ()},
        {"source": "  ", "context": ("", " "), "context_from": 11},
    ],
)
def test_no_code_where_there_is_none(more: dict[str, object]) -> None:
    assert lines(**more) == []


def test_context_of_other_lines_is_not_shown_as_that_of_the_finding() -> None:
    (only,) = lines(context_from=500)
    assert only.number == 12 and only.here


def test_links_to_a_finding_outlive_other_edits() -> None:
    found = html_runs.finding()
    moved = dataclasses.replace(found, line=99, count=3)
    first, again = entries(html_runs.check(findings=(found, moved)))
    assert entries(html_runs.check(findings=(moved,)))[0].anchor == first.anchor
    assert first.anchor != again.anchor


def test_before_and_after() -> None:
    told = {
        c.name: (c.before, c.after, c.tone)
        for c in earlier_run.changes(html_runs.check())
    }
    high, low = ([told[n] for n in told if n.endswith(s)] for s in (" high", " low"))
    assert high == [("4", "1", "good")] and low == [("0", "1", "bad")]
    assert told["graph breaks"] == ("5", "2", "good")
    assert told["calls"] == ("6", "6", "")
    assert next(told[name] for name in told if name.startswith("eager"))[0] == "1.10 ms"
    [unlike] = earlier_run.unlike(html_runs.check())
    assert unlike.startswith("threads") and numbers(unlike) == [4, 2]
    assert earlier_run.changes(html_runs.check(baseline=None)) == []


def test_a_code_that_no_rule_has_gets_no_link() -> None:
    strange = Finding("ZZ999", "config", "low", "m", "c", "f")
    found = page(html_runs.check(findings=(strange,)))
    assert not [v for tag, v in found.tags if tag == "a" and "ZZ999" in v["href"]]
    assert "torchproof rule ZZ999" in found.text


def test_the_key_numbers_of_a_check_are_those_of_its_own_strategy() -> None:
    eager, regional = (bench_runs.row(name, 1.0) for name in ("eager", "regional"))
    wrong = bench_runs.row("full", 2.0, **bench_runs.WRONG)
    run = dataclasses.replace(html_runs.check(), measurements=(eager, wrong, regional))
    shown = {tile.label: tile.value for tile in headline.tiles(run, [])}
    assert (shown["Median call"], shown["Outputs"]) == ("2.00 ms", "wrong")
    right = dataclasses.replace(run, measurements=(eager, regional))
    shown = {tile.label: tile.value for tile in headline.tiles(right, [])}
    assert (shown["Median call"], shown["Outputs"]) == ("1.00 ms", "same")
