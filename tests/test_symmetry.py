"""Comparing B with A mirrors comparing A with B, and bad samples never pass."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_runs import bench, row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchproof.cli import main
from torchproof.measure.comparison import Comparison, Metric, compare
from torchproof.records import schema, stats
from torchproof.records.run import Measurement, Run

MIRRORED = {"faster": "slower", "more": "less", "less": "more", "slower": "faster"}
Drawn = st.DrawFn


@st.composite
def rows(draw: Drawn, strategy: str, eager_ms: float) -> Measurement:
    """Near a threshold more often than not, with or without rounds and repeats."""
    apart = draw(st.sampled_from([0.9, 0.95, 1.0, 1.05, 1.06, 1.1, 1.2]))
    ms = eager_ms * apart * draw(st.floats(0.98, 1.02))
    shape = {"seed": draw(st.integers(0, 99)), "count": draw(st.sampled_from([4, 12]))}
    more: dict[str, Any] = {"noise": draw(st.sampled_from([0.01, 0.1, 0.5])), **shape}
    if draw(st.booleans()):
        more["repeats"] = (shape["count"] // 2,) * 2
    more["luck"] = draw(st.sampled_from([None, 0.0, 0.01, 0.1]))
    more["first_call_s"] = draw(st.sampled_from([1.0, 10.0, 12.0]))
    more["peak_bytes"] = draw(st.sampled_from([100, 105, 106, 200]))
    return row(strategy, ms, eager_ms=eager_ms, **more)


@st.composite
def runs(draw: Drawn) -> Run:
    eager_ms = draw(st.sampled_from([1.0, 1.02, 1.07, 2.0]))
    full = draw(rows("full", eager_ms))
    if draw(st.booleans()):
        return bench([full])
    return bench([draw(rows("eager", eager_ms)), full])


def assert_mirrored(one: Comparison, other: Comparison) -> None:
    for mine, theirs in zip(one.rows, other.rows, strict=True):
        for m, t in zip(mine.metrics, theirs.metrics, strict=True):
            assert (m.a, m.b) == (t.b, t.a)
            assert m.significant == t.significant, (m, t)
            assert m.improvement == t.regression or mine.control or m.name == "vs eager"
            if m.ratio and t.ratio:
                assert math.isclose(m.ratio * t.ratio, 1, rel_tol=1e-9)
            if m.significant and m.verdict != "same" and m.unit != "count":
                words = m.verdict.split()
                assert t.verdict == f"{words[0]} {MIRRORED[words[1]]}", (m, t)
            if m.low and m.high and t.low and t.high:
                assert math.isclose(m.low * t.high, 1, rel_tol=1e-9)
                assert math.isclose(m.high * t.low, 1, rel_tol=1e-9)


@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(runs(), runs())
def test_the_other_way_round_is_the_mirror_image(a: Run, b: Run) -> None:
    assert_mirrored(compare(a, b), compare(b, a))


@settings(deadline=None, max_examples=30)
@given(st.data(), st.sampled_from([3, 8, 20]))
def test_strategies_of_one_run_mirror_each_other(
    data: st.DataObject, count: int
) -> None:
    chance = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    noise = data.draw(st.sampled_from([0.01, 0.05, 0.2]))
    apart = data.draw(st.sampled_from([1.0, 1.03, 1.06, 1.1]))
    base = np.exp(noise * chance.standard_normal((count, 5))).tolist()
    other = (apart * np.exp(noise * chance.standard_normal((count, 5)))).tolist()
    one, two = stats.compare(base, other), stats.compare(other, base)
    assert {one.verdict, two.verdict} in ({"not significant"}, {"faster", "slower"})
    assert math.isclose(one.value * two.value, 1, rel_tol=1e-9)
    if one.low and two.high:
        assert math.isclose(one.low * two.high, 1, rel_tol=1e-9)


A = bench([row("eager", 1.0), row("full", 0.5)])
SLOW = row("full", 5.0)
# What the schema of a saved run allows.
BAD: list[dict[str, Any]] = [
    *({"median_ms": ms} for ms in (0.0, 1e-300, 1e30)),
    {"low_ms": 0.0, "rounds_ms": ()},
    {"rounds_ms": (), "low_ms": None, "high_ms": None},
]


def speed_of_full(found: Comparison) -> Metric:
    [full] = (each for each in found.rows if each.name == "full")
    [speed] = (each for each in full.metrics if each.name == "speed")
    return speed


@pytest.mark.parametrize("change", BAD, ids=str)
def test_samples_that_cannot_be_used_are_unknown(change: dict[str, Any]) -> None:
    bad = replace(A, measurements=(A.measurements[0], replace(SLOW, **change)))
    for found in (compare(bad, A), compare(A, bad)):
        speed = speed_of_full(found)
        assert not speed.significant and not speed.regression
        assert found.uncompared and found.uncompared[0].startswith("full: ")


@pytest.mark.parametrize("samples", [[], [0.0], [-1.0], [math.nan], [math.inf]])
def test_a_saved_run_with_samples_that_are_no_times_is_refused(samples: Any) -> None:
    with pytest.raises(schema.Mismatch, match=r"rounds_ms\[0\]"):
        Measurement.from_json(SLOW.to_json() | {"rounds_ms": [samples] * 12})


def test_a_bad_time_of_eager_spoils_no_other_verdict_in_silence() -> None:
    bad = replace(A.measurements[0], median_ms=0.0)
    speed = speed_of_full(compare(A, bench([bad, SLOW])))
    assert speed.regression and speed.verdict == "10.00x slower"


def saved(run: Run, path: Path) -> str:
    path.write_text(json.dumps(run.to_json()), encoding="utf-8")
    return str(path)


def test_an_uncompared_row_is_exit_code_2_and_a_regression_stays_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved(A, tmp_path / "a.json")
    # The schema refuses what is no time; a run without samples it allows.
    nothing = replace(SLOW, rounds_ms=(), low_ms=None, high_ms=None)
    bare = bench([A.measurements[0], nothing])
    assert main(["compare", before, saved(bare, tmp_path / "b.json")]) == 2
    out, err = capsys.readouterr()
    [uncompared] = compare(A, bare).uncompared
    assert uncompared.startswith("full: ")
    assert uncompared.split(": ")[1] in " ".join(out.split())
    assert err.count("\n") == 1 and "full" in err
    lost = replace(bare, counts={"graph_breaks": 3})
    was = replace(A, counts={"graph_breaks": 0})
    files = [saved(was, tmp_path / "c.json"), saved(lost, tmp_path / "d.json")]
    assert main(["compare", *files]) == 1
    assert main(["compare", before, before]) == 0
