"""Streams of ranks, made up: read, laid on one clock, and joined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchproof.observe.ranks import Place
from torchproof.observe.ranks.joined_ranks import join
from torchproof.observe.ranks.rank_streams import RankStream, read_stream, stream_path
from torchproof.records import Rank
from torchproof.targets import Target

TARGET = Target("train.py", "script", "train.py")
LINE = {"filename": "train.py", "line": 3, "name": "forward"}
IDS = {"frame_id": 0, "frame_compile_id": 0}
START = {"metadata": {"dynamo_start": {"stack": [LINE]}, **IDS}, "payload": ""}
REDUCE: dict[str, Any] = {"record": 0, "name": "all_reduce", "group": "default_pg"}
REDUCE |= {"number": 1, "members": [0, 1], "created_s": 1010.0}
REDUCE |= {"completed_s": None, "ended": True}


def entry(kind: str, at: float, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "at": at, **values}


def begin(rank: int, at: float, wall: float) -> dict[str, Any]:
    facts = {"local_rank": rank, "world_size": 2, "host": "a", "pid": 1 + rank}
    return entry("rank", at, wall=wall, rank=rank, **facts)


def collectives(at: float, *new: dict[str, Any]) -> dict[str, Any]:
    return entry("collectives", at, new=list(new), ended=[], lost=0)


def metrics(at: float, **values: Any) -> dict[str, Any]:
    metadata = {"compilation_metrics": values, **IDS}
    return entry("trace", at, metadata=metadata, payload="", call=0)


def joined(
    folder: Path, *streams: list[dict[str, Any]], ending: str = "finished"
) -> tuple[Rank, ...]:
    for rank, entries in enumerate(streams):
        text = "".join(json.dumps(each) + "\n" for each in entries)
        stream_path(folder, rank).write_text(text, encoding="utf-8")
    return join(folder, len(streams), TARGET, ending=ending).run.ranks


def end(at: float, code: int | None = 0, ending: str = "finished") -> dict[str, Any]:
    return entry("rank_end", at, code=code, ending=ending)


def test_clocks_of_two_hosts_are_aligned_by_the_time_of_day(tmp_path: Path) -> None:
    first = [begin(0, 50.0, 1000.0), entry("step", 52.0, number=0), end(60.0)]
    second = [begin(1, 7.0, 1000.5), entry("step", 8.5, number=0), end(9.0)]
    ranks = joined(tmp_path, first, second)
    assert [rank.first_seen_s for rank in ranks] == [0.0, 0.5]
    assert [rank.events[0].start_s for rank in ranks] == [2.0, 2.0]
    assert [rank.events[0].seconds for rank in ranks] == [None, None]


def test_a_collective_ends_when_its_last_rank_arrives(tmp_path: Path) -> None:
    late = {**REDUCE, "created_s": 1013.5}
    first = [begin(0, 0.0, 1000.0), collectives(14.0, REDUCE)]
    second = [begin(1, 0.0, 1000.0), collectives(14.0, late)]
    events = [rank.events[0] for rank in joined(tmp_path, first, second)]
    assert [(e.start_s, e.seconds) for e in events] == [(10.0, 3.5), (13.5, 0.0)]


def test_a_record_that_was_lost_makes_no_wait_without_end(tmp_path: Path) -> None:
    later = {**REDUCE, "record": 2, "number": 2, "created_s": 1011.0}
    first = [begin(0, 0.0, 1000.0), collectives(14.0, REDUCE, later)]
    second = [begin(1, 0.0, 1000.0), collectives(14.0, later)]
    events = joined(tmp_path, first, second)[0].events
    assert [event.seconds is None for event in events] == [False, False]


def test_a_collective_that_a_rank_never_reached_has_no_end(tmp_path: Path) -> None:
    first = [begin(0, 0.0, 1000.0), collectives(14.0, REDUCE), end(15.0, 1)]
    second = [begin(1, 0.0, 1000.0), entry("trace", 9.0, call=0, **START)]
    waiting, compiling = joined(tmp_path, first, second)
    assert waiting.events[0].seconds is None
    assert (waiting.outcome, waiting.activity) == ("failed", "in all_reduce")
    assert compiling.outcome == "killed" and compiling.exit_code is None
    assert compiling.activity == "compiling forward (train.py:3)"


@pytest.mark.parametrize(
    ("ending", "outcome"), [("timeout", "hung"), ("interrupted", "killed")]
)
def test_a_rank_without_an_end_ended_with_the_launch(
    tmp_path: Path, ending: str, outcome: str
) -> None:
    [rank] = joined(tmp_path, [begin(0, 0.0, 1000.0)], ending=ending)
    assert rank.outcome == outcome


def test_a_compile_has_its_seconds_and_whether_a_cache_had_it(tmp_path: Path) -> None:
    hit = metrics(12.0, duration_us=2_000_000, inductor_fx_local_cache_hit_count=1)
    stream = [begin(0, 0.0, 1000.0), entry("trace", 10.0, call=0, **START), hit]
    [event] = joined(tmp_path, [*stream, end(20.0)])[0].events
    assert (event.start_s, event.seconds, event.cached) == (10.0, 2.0, True)
    assert (event.function, event.line, event.nth) == ("forward", 3, 1)


def test_steps_before_the_first_of_the_optimizer_are_one(tmp_path: Path) -> None:
    calls = [entry("step", 1.0 + number, number=number) for number in range(3)]
    later = [entry("one_step", 4.0), entry("step", 5.0, number=1)]
    stream = [begin(0, 0.0, 1000.0), *calls, *later, end(6.0)]
    [rank] = joined(tmp_path, stream)
    assert rank.steps == 2 and [e.start_s for e in rank.events] == [1.0, 5.0]


def test_a_stream_survives_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    RankStream(path).write("alive")
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "st')
    assert [each["kind"] for each in read_stream(path)] == ["alive"]
    assert read_stream(tmp_path / "missing") == []


def test_a_rank_that_was_never_observed_is_noted(tmp_path: Path) -> None:
    run = join(tmp_path, 2, TARGET)
    assert len(run.run.notes) == 2 and run.observation.error


def test_the_place_comes_from_the_variables_of_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert Place.current() == Place(3, 8, 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert Place.current() is None
    monkeypatch.delenv("RANK")
    assert Place.current() is None
