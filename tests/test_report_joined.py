"""As text: what was only read, what no run showed, what is gone since a run before."""

from __future__ import annotations

from dataclasses import replace

from facts import missing, numbers
from test_report import CLEAN, ITEM, RUN, WANTED, blocks, text, words

from torchproof.records.run import Baseline, Part

HAZARD = replace(
    ITEM,
    code="GB104",
    kind="hazard",
    suspects="graph_break",
    severity="low",
    origin="static",
    message="`print(x)` would split the graph; this run did not compile this line",
    line=50,
)
GONE = replace(ITEM, status="resolved", line=12)
BEFORE = Baseline(id="20260101-0101-model", findings={"high": 1})
READ = replace(
    CLEAN,
    target="src",
    strategy="-",
    environment={"torch": None, "device": None},
    counts=dict.fromkeys(CLEAN.counts),
    findings=(replace(ITEM, kind="hazard", suspects="graph_break", origin="static"),),
    parts={
        "static": Part(
            "found", "7 files read, not understood: src/a.py:3 is no Python"
        ),
        "breaks": Part("skipped", "not part of --effort static"),
    },
    options={"effort": "static"},
)


def test_what_was_only_read_says_so_and_gives_no_counts() -> None:
    head, item, end = blocks(text(READ))
    assert words(head).startswith(f"src: {READ.parts['static'].why}")
    assert item[0] == "model.py:42:16  GB101 high"
    assert item[2:4] == [
        "    42 |     if loss.item() > limit:",
        "       |        ^^^^^^^^^^^",
    ]
    assert numbers(end[0]) == [1, 1]
    assert end[1].endswith(" torchproof rule GB101")
    assert end[2].endswith(f" torchproof show {READ.id} -v")
    clean = blocks(text(replace(READ, findings=())))[-1]
    skipped = {"static": Part("skipped", "left out with --skip")}
    unread = blocks(text(replace(READ, findings=(), parts=skipped)))[-1]
    assert numbers(clean[0]) == [] and "graph break" not in clean[0]
    assert clean[0] not in unread, "what was not read is not called clean"


def test_hazards_of_a_run_are_a_line_each_and_not_among_what_was_found() -> None:
    shown = text(replace(CLEAN, findings=(HAZARD, WANTED, GONE), baseline=BEFORE))
    _, suspected, wanted, gone, end = blocks(shown)
    assert words(suspected[1:]) == f"model.py:50:16 GB104 {HAZARD.message}"
    assert words(wanted[1:]) == f"model.py:57:16 GB106 {WANTED.message}"
    assert words(gone[1:]) == f"model.py:12:16 GB101 {GONE.message}"
    assert str(BEFORE.id) in gone[0]
    assert missing(words(end), "graph break", "recompile", "; 1 ") == []
    assert end[-2].endswith(" torchproof rule GB104")
    assert end[-1].endswith(f" torchproof show {CLEAN.id} -v")


def test_hazards_are_counted_beside_the_findings() -> None:
    shown = text(replace(RUN, findings=(*RUN.findings, HAZARD)))
    [count] = [line for line in shown.split("\n") if line.startswith("3 findings ")]
    assert numbers(count) == [3, 1, 1, 1, 1]
    assert "model.py:50:16  GB104 low\n" in text(
        replace(RUN, findings=(HAZARD,)), verbose=True
    )
