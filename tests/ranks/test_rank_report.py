"""The reports of a run with ranks: differences, waits, and a track for each rank."""

from __future__ import annotations

import json
from dataclasses import replace

import rank_runs
from rank_runs import (
    all_reduce,
    checked,
    compiled,
    ranks,
    recompiled,
)

from torchproof.records import RankRun
from torchproof.report import formats, rank_sections, rank_trace
from torchproof.report.charts import ranks as lanes
from torchproof.report.finding_block import blocks

RUN = checked(rank_runs.short_last_batch())


def eight() -> RankRun:
    every = [[compiled(), all_reduce(18, 17.2, 3.0)] for _ in range(7)]
    late = [compiled(), recompiled(17, seconds=2.9), all_reduce(18, 20.1)]
    return ranks(*every[:3], late, *every[3:])


def test_timelines_show_who_waited_and_who_compiled() -> None:
    run = checked(eight()).ranks
    assert run is not None
    waiting, compiling, _ = rank_sections.timeline(run)
    assert waiting.startswith("ranks 0-2 and 4-7") and "w" in waiting.split()[-1]
    assert "R" in compiling.split()[-1] and "w" not in compiling.split()[-1]
    drawn = lanes.timeline(run)
    assert drawn is not None and len(drawn.lanes) == 8
    for lane in drawn.lanes:
        assert all(0 <= band.x <= band.x + band.width <= 100.1 for band in lane.bands)


def test_a_finding_of_one_process_names_its_ranks_unless_all_have_it() -> None:
    finding = replace(RUN.findings[0], code="RC201", kind="recompile")
    on_all = replace(RUN, findings=(replace(finding, ranks=(0, 1)),))
    alone = replace(RUN, findings=(finding,))
    assert [each.ranks for each in blocks(alone)] == ["rank 1 only"]
    assert [each.ranks for each in blocks(on_all)] == [""]
    for format in ("sarif", "github"):
        assert "(rank 1 only)" in formats.render(alone, format)


def test_a_trace_has_a_track_for_each_rank() -> None:
    events = json.loads(rank_trace.render(RUN))["traceEvents"]
    tracks = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert tracks == ["rank 0", "rank 1"]
    kinds = {(e["tid"], e["cat"]) for e in events if e["ph"] == "X"}
    assert (1, "wait") in kinds and (2, "recompile") in kinds
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


def test_a_rank_without_any_time_has_no_timeline() -> None:
    empty = ranks([], [], first_seen_s=None, last_seen_s=None)
    assert lanes.timeline(empty) is None and rank_sections.timeline(empty) == []
    assert "2 ranks" in formats.render(checked(empty), "text")
    assert formats.render(checked(empty), "html")
