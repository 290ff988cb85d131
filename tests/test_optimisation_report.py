"""The optimisation report: its sections, its sums, and that it claims nothing else."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import bench_runs
import check_runs
import pytest
from check_runs import BEFORE, FULL, GONE, ITEM, NOWHERE, READ, SITE, SIZE, WANTED
from facts import missing, numbers
from hypothesis import HealthCheck, given, settings
from markdown_it import MarkdownIt
from markdown_it.token import Token

from torchproof.checking import rules
from torchproof.records.run import CATEGORIES, SEVERITIES, Run
from torchproof.report import render
from torchproof.report.finding_section import IMPACT

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SECTIONS = ["Baseline comparison", "Summary", "Configuration detected", "Findings"]
SECTIONS += ["Priorities", "Diagnostic commands", "Before and after", "Resolved"]
SECTIONS += ["Intentional", "Config ablation", "Parts of this check"]


def shown(run: Run) -> str:
    return render(run, "md")


def headings(text: str, level: str = "h2") -> list[str]:
    tokens = READER.parse(text)
    return [
        following.content
        for token, following in itertools.pairwise(tokens)
        if token.type == "heading_open" and token.tag == level
    ]


def tables(text: str) -> list[list[list[str]]]:
    """Every table as rows of cells, as a reader of Markdown sees them."""
    found: list[list[list[str]]] = []
    for token in READER.parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and found[-1] and _in_cell(token):
            found[-1][-1].append(token.content)
    return found


def _in_cell(token: Token) -> bool:
    return token.level == 4  # table, thead or tbody, tr, td


def summary(text: str) -> list[list[str]]:
    return next(rows for rows in tables(text) if rows[0][0] == "Category")


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_sections_come_in_the_order_of_the_report() -> None:
    assert headings(shown(FULL)) == SECTIONS


def test_the_head_says_when_how_and_where() -> None:
    head = shown(FULL).partition("\n## ")[0]
    assert re.match(r"# .*torch\.compile.*: `model\.py:make`\n", head)
    told = dict(re.findall(r"^- \*\*(.+?):\*\* (.*)$", head, re.M))
    for name, *facts in (
        ("Analysed", "2026-01-02 03:04:05"),
        ("Last verified", "2026-01-02 03:04:05"),
        ("Mode", "static", "dynamic", "effort quick"),
        ("Entry point", "`make()`", "`model.py`"),
        ("Command", f"`{FULL.command}`"),
        ("Compared with", "`20260101-0900-model`", "2026-01-01 09:00:00"),
    ):
        assert missing(told[name], *facts) == []
    known = ("torch 2.13.0+cpu", "python 3.11.7", "device cpu", "threads 2")
    assert missing(head, *known) == []


def test_a_finding_has_all_its_parts() -> None:
    text = section(shown(FULL), "Findings")
    entry = text.partition("### [MEDIUM]")[0].strip()
    assert entry.splitlines()[0] == f"### [HIGH] {ITEM.category}: {ITEM.message}"
    told = dict(re.findall(r"^- \*\*(.+?):\*\* (.*)$", entry, re.M))
    assert told["Location"] == "`model.py:42`, `Net.forward`"
    often = ("6 of 6 calls", "12 times", "`20260101-0900-model`")
    assert missing(told["Trigger"], *often) == []
    for part in (
        " 180 us ",
        "```text\n  41 | for block in self.blocks:\n"
        "> 42 |     if loss.item() > limit:\n"
        "     |        ^^^^^^^^^^^\n  43 |         break\n```\n",
        f"**Fix:** {ITEM.fix}.",
        "```python\nhistory.append(loss.detach())",
        f"**Why:** {ITEM.cause}",
        "torchproof check model.py:make --train --effort quick --select GB101"
        " --fail-on low\n",
        "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0124.html",
        "https://docs.pytorch.org/docs/stable/",
        "`torchproof rule GB101`",
    ):
        assert part in entry, part


def test_what_was_not_measured_is_said_and_not_filled_in() -> None:
    text = shown(replace(FULL, measurements=(), baseline=None))
    said = section(text, "Baseline comparison")
    assert tables(said) == []
    assert "```bash\ntorchproof check model.py:make --train\n```" in said
    assert SECTIONS[6] not in headings(text), "before and after"
    impacts = re.findall(r"^- \*\*Impact:\*\* (.*)$", text, re.M)
    assert [numbers(impact) for impact in impacts] == [[180], [], [], []]
    assert not re.search(r"TBD|TODO|\bnan\b|None", text)


def test_a_baseline_is_a_table() -> None:
    rows = tables(section(shown(FULL), "Baseline comparison"))[0]
    assert rows[1][:2] == ["eager", "1.00 ms"] and rows[1][4] == "reference"
    assert rows[2][4] == "2.00x (1.96-2.04)"


def test_measured_shapes_and_settings_have_their_tables() -> None:
    more = [bench_runs.row("full", 2.0, variant={"batch": 4})]
    more += [bench_runs.row("full", 2.0, variant={"config": "max_autotune=True"})]
    text = shown(replace(FULL, measurements=(*FULL.measurements, *more)))
    heads = [rows[0][0] for rows in tables(section(text, "Baseline comparison"))]
    assert "Batch" in heads
    assert "max_autotune=True" in section(text, "Config ablation")
    assert "--ablate" in section(shown(FULL), "Config ablation")


def test_configuration_is_a_row_a_call_of_compile() -> None:
    text = section(shown(FULL), "Configuration detected")
    (rows,) = tables(text)
    assert rows[1][:4] == ["`train.py:12-14`", "`model`", "-", '`"reduce-overhead"`']
    assert SITE.order in rows[1][-2] and rows[1][-1] == "6"
    assert f"- `train.py:12-14`: {SITE.observation}" in text
    unread = replace(FULL, configuration=(), parts={})
    without = replace(FULL, configuration=())
    said = [section(shown(run), "Configuration detected") for run in (unread, without)]
    assert tables(said[0]) == tables(said[1]) == []
    assert said[0] != said[1], "nothing was read, and nothing is there"


def test_before_and_after_come_from_the_record_of_the_earlier_run() -> None:
    text = section(shown(FULL), "Before and after")
    (rows,) = tables(text)
    found = {row[0]: row[1:] for row in rows}
    [high] = [found[name] for name in found if name.endswith(" high")]
    [medium] = [found[name] for name in found if name.endswith(" medium")]
    assert high == ["2", "1", "-1"] and medium[:2] == ["1", "1"]
    assert found["graph breaks"] == ["3", "1", "-2"]
    step, _, memory = (found[name] for name in found if name.startswith("full,"))
    assert step[:2] == ["2.00 ms (1.90-2.10)", "0.500 ms (0.495-0.505)"]
    assert memory[:2] == ["-", "512 MiB"]
    assert missing(text, "2.12.0+cpu", "2.13.0+cpu") == []
    judge = "`torchproof compare 20260101-0900-model 20260102-0304-model`"
    assert judge in text
    untimed = replace(FULL, measurements=(), baseline=replace(BEFORE, measurements=()))
    assert judge not in shown(untimed)


def test_the_earlier_run_of_another_target_is_named_with_it() -> None:
    before = replace(BEFORE, target="model.py:old")
    head = shown(check_runs.check(baseline=before)).partition("\n## ")[0]
    assert "`model.py:old`" in head


def test_what_is_not_open_is_counted_and_listed_apart() -> None:
    text = shown(FULL)
    facts = ("1 resolved", "1 intentional")
    assert missing(section(text, "Summary"), *facts) == []
    for status, finding in (("Resolved", GONE), ("Intentional", WANTED)):
        (rows,) = tables(section(text, status))
        assert [row[0] for row in rows[1:]] == [finding.code]
    assert GONE.code not in section(text, "Findings")
    assert GONE.code not in section(text, "Priorities")


def test_priorities_are_boxes_to_tick() -> None:
    lines = section(shown(FULL), "Priorities").splitlines()
    boxes = [line for line in lines if line.startswith("- [ ] ")]
    assert [line.split()[3] for line in boxes] == ["GB101", "RC201", "GB102", "NC806"]
    groups = [line for line in lines if line.startswith("**")]
    assert [line.split()[-1] for line in groups] == ["(high)", "(medium)", "(low)"]


def test_a_suspicion_says_that_no_run_showed_it() -> None:
    text = shown(check_runs.check(READ))
    [trigger] = re.findall(r"^- \*\*Trigger:\*\* (.*)$", text, re.M)
    assert "source" in trigger and not re.search(r"\d", trigger), "no calls"
    (heading,) = headings(text, "h3")
    suspected = CATEGORIES[READ.suspects or ""]
    assert re.match(rf"\[LOW\] {READ.category} \(.*{suspected}\): `if", heading)
    assert IMPACT["graph_break"] in text
    assert "--effort static --select GB102" in text


def test_a_finding_without_a_line_has_none() -> None:
    text = shown(check_runs.check(NOWHERE))
    [location] = re.findall(r"^- \*\*Location:\*\* (.*)$", text, re.M)
    assert "`" not in location, "no file"
    assert "```text" not in text


def test_a_long_message_is_cut_in_the_heading_and_whole_below() -> None:
    long = "`" + "a + " * 60 + "b` THE_END"
    text = shown(check_runs.check(replace(SIZE, message=long)))
    (heading,) = headings(text, "h3")
    assert heading.endswith(" ...") and len(heading) < 200
    assert "THE_END" not in heading and "THE_END." in section(text, "Findings")


def test_a_cure_in_words_is_not_shown_as_code() -> None:
    text = shown(check_runs.check(replace(ITEM, code="NC804")))
    assert rules.by_code("NC804").section("Good").split("\n")[0] in text
    assert "```python" not in text


def test_a_clean_check_has_nothing_to_do() -> None:
    text = shown(check_runs.check())
    assert summary(text)[1:] == [["Total", "0", "0", "0", "0"]]
    assert headings(text, "h3") == [] and "## Priorities" not in text


def test_without_source_no_line_of_it_is_shown() -> None:
    text = render(FULL, "md", source=False)
    assert not [line for line in ITEM.context[:2] if line.strip() in text]
    assert "```text" not in text and "def forward" not in text


def test_a_run_of_another_version_has_rules_that_are_unknown_here() -> None:
    text = shown(check_runs.check(replace(ITEM, code="ZZ999")))
    assert "`ZZ999`" in text and "`torchproof rule ZZ999`" not in text


def assert_sums(run: Run, text: str) -> None:
    """Rows, columns and the grand total of the summary are those of the findings."""
    still_open = [f for f in run.findings if f.status == "open"]
    header, *rows, total = summary(text)
    assert header == ["Category", *(s.capitalize() for s in SEVERITIES), "Total"]
    found = {row[0]: [int(cell) for cell in row[1:]] for row in rows}
    for category in dict.fromkeys(CATEGORIES.values()):
        mine = [f for f in still_open if f.category == category]
        split = [sum(f.severity == s for f in mine) for s in SEVERITIES]
        assert found.get(category, [0, 0, 0, 0]) == [*split, len(mine)]
    sums = [sum(column) for column in zip([0] * 4, *found.values(), strict=True)]
    assert total == ["Total", *map(str, sums)]
    assert sums[-1] == sum(sums[:-1]) == len(still_open)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(check_runs.runs())
def test_any_run_adds_up_and_tells_each_open_finding_once(run: Run) -> None:
    text = shown(run)
    text.encode()  # can be written to a file
    assert_sums(run, text)
    still_open = [f for f in run.findings if f.status == "open"]
    marks = [heading.partition("]")[0] for heading in headings(text, "h3")]
    wanted = [f"[{f.severity.upper()}" for f in still_open]
    assert [mark for mark in marks if mark.startswith("[")] == wanted
    boxes = [line for line in text.splitlines() if line.startswith("- [ ] ")]
    assert len(boxes) == len(still_open)
    assert text.count("\n**Verification:**") == len(still_open)
    tokens = READER.parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    assert not {t.type for t in (*tokens, *inner)} & {"html_block", "html_inline"}
    assert not any(t.type == "link_open" and t.info != "auto" for t in inner)


@pytest.mark.parametrize("known", [None, ()])
def test_what_the_earlier_run_had_is_told_only_if_it_is_on_record(
    known: tuple[str, ...] | None,
) -> None:
    before = replace(BEFORE, identities=known)
    runs = [check_runs.check(ITEM, baseline=each) for each in (before, BEFORE)]
    now, had = (re.findall(r"\*\*Trigger:\*\* (.*)$", shown(r), re.M) for r in runs)
    assert (str(BEFORE.id) in now[0]) is (known is not None)
    assert now != had
