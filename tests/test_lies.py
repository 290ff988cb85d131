"""Each way a benchmark can lie, written into a target, and caught by a real session."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from facts import missing, numbers
from forked_workers import backends, by_backend, measured

from torchproof.measure import bench_plan, profiling
from torchproof.measure.comparison.decisions import decision
from torchproof.measure.compile_stats import CacheLookups
from torchproof.measure.replies import CacheUse, Facts, Lookup
from torchproof.measure.specs import AS_WRITTEN, MeasureResult, StrategySpec
from torchproof.measure.starts import start_record
from torchproof.records import stats
from torchproof.records.run import Measurement, Run
from torchproof.strategies.strategy import parse
from torchproof.targets import calls
from torchproof.targets.target import Loaded

LYING = Path(__file__).parent / "models" / "lying.py"


def session(factory: str, specs: Sequence[StrategySpec], **more: Any) -> MeasureResult:
    return measured(f"{LYING}:{factory}", specs, **more)


def compiled(found: MeasureResult) -> Measurement:
    """The row of the only strategy beside eager."""
    _, row = found.rows
    return row


def recommended(*rows: Measurement) -> str:
    return decision(Run("id", "target", "", {}, {}, measurements=rows)).word


# -- a warm cache called cold, a cold one called warm ----------------------------------


@pytest.mark.slow
def test_cold_and_warm_times_need_the_caches_they_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LYING_CACHE", str(tmp_path))
    full = [StrategySpec(parse("full"))]
    # A cache that is empty at first, the same again, and one that is never found.
    empty = session("twice_from_folder", full, repeats=2).rows[0]
    filled = session("twice_from_folder", full).rows[0]
    lost = session("twice_from_nowhere", full, repeats=2).rows[0].warm_start
    assert filled.error is None and filled.rounds_ms
    assert filled.start is not None and filled.start["label"] == "cold"
    assert filled.start["hits"] > 0 and filled.start["misses"] == 0
    assert filled.first_call_s is None
    assert filled.start["hits"] in numbers(filled.start["refused"])
    # A process may find again what it compiled itself.
    assert empty.start is not None
    assert empty.start["hits"] > 0, "the second graph is the first one again"
    assert empty.start["refused"] is None and empty.first_call_s is not None
    # A warm time needs hits alone.
    warm = empty.warm_start
    assert warm is not None and lost is not None
    assert warm["refused"] is None and warm["misses"] == 0 and warm["hits"] > 0
    assert warm["first_call_s"] is not None and lost["first_call_s"] is None
    assert "Inductor" in lost["refused"]


@pytest.mark.slow
def test_a_graph_compiled_while_the_target_was_made_is_no_cold_start() -> None:
    before = compiled(session("compiled_before", AS_WRITTEN))
    after = compiled(session("compiled_already", AS_WRITTEN))
    assert before.start is not None and after.start is not None
    assert before.first_call_s is None
    assert "1 graph" in before.start["refused"]
    assert after.start["refused"] is None and after.first_call_s is not None


def test_kernels_of_an_older_cache_are_seen_though_torch_counts_no_lookup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    old = tmp_path / "ab" / "kernel.so"
    old.parent.mkdir()
    caches = CacheLookups()
    assert caches.filled_before() is None
    old.touch()
    assert caches.filled_before() is None, "its own"
    time.sleep(0.1)
    later = CacheLookups()
    assert later.filled_before() == str(tmp_path)
    cache = CacheUse(filled_before=later.filled_before())
    start = start_record("cold", Facts(cache=cache))
    assert str(tmp_path) in start["refused"]


WITHOUT_BACKWARD = CacheUse(
    hits=1,
    misses=1,
    lookups=(Lookup("aot_autograd", False, False), Lookup("inductor", True, False)),
)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (Facts(cache=WITHOUT_BACKWARD), ("1 of 1 graphs", "torch.no_grad()")),
        # Caches that are switched off are not looked into, so they miss nothing.
        (Facts(cache=CacheUse(), compile_s={"inductor": 1.5}), ("cache",)),
        (Facts(cache=CacheUse(), compile_s={"inductor": 0.0}), None),
    ],
)
def test_which_start_is_warm(facts: Facts, words: tuple[str, ...] | None) -> None:
    refused = start_record("warm", facts)["refused"]
    assert refused is None if words is None else missing(refused, *words) == []


# -- the first call in the mean --------------------------------------------------------


@pytest.mark.slow
def test_a_slow_first_call_is_in_no_median() -> None:
    rows = session("slow_first_call", backends("eager")).rows
    assert len(rows) == 2
    for row in rows:
        assert row.first_call_s is not None and row.first_call_s >= 1.0
        assert max(map(max, row.rounds_ms)) < 1e3 * row.first_call_s


# -- work that is only queued ----------------------------------------------------------


@pytest.mark.parametrize(("left_ms", "counted"), [(30, True), (0.05, False)])
def test_what_other_streams_still_do_belongs_to_the_step(
    left_ms: float, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock for CUDA, on a machine whose current stream needs 2 ms."""
    torch = pytest.importorskip("torch")
    event = SimpleNamespace(record=list, synchronize=list, elapsed_time=lambda end: 2.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    now_ns = [0]
    clock = SimpleNamespace(perf_counter_ns=lambda: now_ns[-1])
    monkeypatch.setattr(profiling, "time", clock)
    synchronize = partial(now_ns.append, int(left_ms * 1e6))
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert profiling.Clock("cuda").milliseconds(list) == 2.0 + left_ms * counted


# -- a host copy inside the step -------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs", "noted"),
    [("meta", "cpu", True), ("meta", "meta", False), ("cpu", "cpu", False)],
)
def test_inputs_on_the_host_are_noted(model: str, inputs: str, noted: bool) -> None:
    """Any device but the CPU stands for a GPU."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(4, 4, device=model)
    call = {"x": [torch.ones(2, 4, device=inputs)], "scale": torch.tensor(2.0)}
    note = calls.host_copies(Loaded(module, [call], None, place=None))  # type: ignore[arg-type]
    assert (note is not None) == noted
    if note:
        assert missing(note, "CPU", "meta") == [] and numbers(note)[0] == 1


# -- settings that leak ----------------------------------------------------------------


@pytest.mark.slow
def test_settings_of_one_strategy_reach_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("LYING_LOG", str(log))
    options = bench_plan.BenchOptions(ablate=(("max_autotune", True),))
    found = session("leaving_traces", bench_plan.strategy_specs(options, {}))
    assert [row.error for row in found.rows] == [None] * 3
    assert [row.variant.get("config") for row in found.rows] == [
        None,
        "control",
        "max_autotune=True",
    ]
    assert log.read_text().splitlines() == ["{} False", "{'max_autotune': True} False"]
    assert "LYING_LEAK" not in os.environ
    assert not any("config." in note for row in found.rows for note in row.notes)


def test_switches_that_the_target_sets_are_told() -> None:
    eager, row = session("setting_a_switch", backends("eager")).rows
    [note] = [note for note in row.notes if "config." in note]
    assert note.endswith(" torch._inductor.config.max_autotune=True")
    assert not any("config." in note for note in eager.notes)


# -- wrong outputs ---------------------------------------------------------------------


def test_a_quick_backend_is_ranked_only_if_it_is_right() -> None:
    names = ("right", "one_wrong", "turns_wrong", "raises", "killed")
    quick = by_backend(session("adding", backends(*names)))
    eager, right = quick["eager"], quick["right"]
    assert "faster" in right.verdict and recommended(eager, right) == "keep compiled"
    assert not any("second pass" in note for note in right.notes)
    for name in ("one_wrong", "turns_wrong"):  # the second after the timing
        row = quick[name]
        assert row.median_ms is not None and row.numerics is not None
        assert row.verdict == row.numerics["verdict"] == "wrong"
        assert row.vs_eager is None and row.break_even is None
        assert recommended(eager, row) != "keep compiled"
    for name, why in (("raises", "ValueError: no such kernel"), ("killed", "SIGKILL")):
        row = quick[name]
        assert row.verdict == "failed" and row.median_ms is None
        assert row.error is not None and why in row.error and "\n" not in row.error


def test_wrong_gradients_are_caught_where_gradients_are_used() -> None:
    _, row = session("linear", backends("wrong_gradients"), train=True).rows
    assert row.verdict == "wrong" and row.numerics is not None
    assert "gradient" in row.numerics["where"]
    assert row.numerics["max_rel_error"] == pytest.approx(1.0)  # twice as large


# -- a machine that gets slower --------------------------------------------------------


@pytest.mark.slow
def test_a_machine_that_slows_down_makes_no_strategy_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    begun.touch()
    monkeypatch.setenv("LYING_BEGUN", str(begun))
    monkeypatch.setattr(stats, "PRECISION", 0.0)  # all rounds are taken
    eager, row = session("throttled", backends("eager"), rounds=20).rows
    assert row.verdict == "not significant", row.error
    # Had one side been timed after the other, the same samples would say otherwise.
    half = len(eager.rounds_ms) // 2
    late = stats.compare(row.rounds_ms[:half], eager.rounds_ms[-half:])
    assert late.verdict == "slower", eager.rounds_ms
