"""`bench` on two ranks: all are timed, the slowest counts, and none is left behind."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import torchproof as command
from forked_workers import backends, measured
from measured_models import Net

import torchproof
from torchproof.measure import worker_process
from torchproof.measure.replies import Facts, joined
from torchproof.measure.specs import EAGER, MeasureResult, StrategySpec
from torchproof.measure.worker_process import Worker, WorkerError, WorkerTimeout
from torchproof.records.run import Measurement, UserError
from torchproof.strategies import parse, with_arguments

MODELS = Path(__file__).with_name("measured_models.py")
SLEPT_MS = 30.0


def on_ranks(factory: str, specs: Any = None, **more: Any) -> MeasureResult:
    specs = backends("eager") if specs is None else specs
    more = {"ranks": 2, "timeout_s": 100.0, **more}
    return measured(f"{MODELS}:{factory}", specs, **more)


@pytest.fixture(scope="module")
def planted() -> dict[str, Measurement]:
    names = ("fine", "wrong", "dying")
    cores = [with_arguments(parse(f"core:{name}"), backend="eager") for name in names]
    specs = [StrategySpec(EAGER), *map(StrategySpec, cores)]
    found = on_ranks("planted", specs)
    assert not [p for p in psutil.Process().children() if _is_worker(p)]
    return {row.strategy.removeprefix("core:"): row for row in found.rows}


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "strategy_worker" in " ".join(process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eager", "fine"])
def test_the_slowest_rank_counts_and_is_named(
    planted: dict[str, Measurement], name: str
) -> None:
    row = planted[name]
    assert row.error is None and row.median_ms and row.median_ms >= SLEPT_MS
    assert all(time >= SLEPT_MS for times in row.rounds_ms for time in times)
    first, second = row.ranks
    assert (first.rank, second.rank) == (0, 1)
    assert second.median_ms >= SLEPT_MS and second.slowest > first.slowest


@pytest.mark.slow
def test_the_row_says_how_it_was_compared(planted: dict[str, Measurement]) -> None:
    row = planted["fine"]
    assert row.numerics and row.numerics["verdict"] == "same"
    assert any("no float64 reference on several ranks" in note for note in row.notes)
    assert row.mfu is None
    assert row.start and row.start["refused"] is None


@pytest.mark.slow
def test_a_wrong_answer_on_one_rank_is_wrong(planted: dict[str, Measurement]) -> None:
    row = planted["wrong"]
    assert row.verdict == "wrong" and row.numerics
    assert row.numerics["rank"] == 1
    assert row.numerics["why"].startswith("on rank 1: ")


@pytest.mark.slow
def test_a_rank_that_dies_ends_its_row_only(planted: dict[str, Measurement]) -> None:
    row = planted["dying"]
    assert row.verdict == "failed"
    assert row.error == "rank 1: its process was killed by SIGKILL"


class Rank:
    """Stands in for the process of a rank: replies at once, or never."""

    def __init__(self, answer: dict[str, Any] | None) -> None:
        self.answer, self.closed = answer, False

    def tell(self, command: Any) -> None:
        pass

    def poll(self, seconds: float, tick: Any) -> dict[str, Any] | None:
        return self.answer

    def close(self) -> None:
        self.closed = True


REFUSED = {"kind": "UserError", "details": ""}


@pytest.mark.parametrize(
    ("replies", "raised", "why"),
    [
        ([None, {"error": "no"}], WorkerError, "rank 1: no"),
        ([{**REFUSED, "error": "no"}, None], UserError, "rank 0: no"),
        ([{"reply": {}}, None], WorkerTimeout, r"0 s \(--timeout\) from rank 1"),
        ([None, None], WorkerTimeout, r"0 s \(--timeout\)$"),
    ],
)
def test_a_rank_that_fails_or_is_late_ends_the_others(
    replies: Any, raised: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that waits in a collective is not waited for."""
    monkeypatch.setattr(worker_process, "_GRACE_S", 0.0)
    worker = Worker(Facts(), {}, quiet=True, ranks=0)
    worker._processes = ranks = list(map(Rank, replies))
    begin, is_late = time.monotonic(), raised is WorkerTimeout
    with pytest.raises(raised, match=why):
        worker.ask(Facts, "warm_up", 0.01 if is_late else 10.0)
    assert time.monotonic() - begin < 5 and all(rank.closed for rank in ranks)
    worker.close()


@pytest.mark.slow
def test_gradients_of_ddp_are_compared_on_the_same_ranks() -> None:
    specs = (*backends("eager"), StrategySpec(parse("full+graph")))
    found = on_ranks("make", specs, wrap="ddp", train=True)
    eager, full, graph = found.rows
    assert found.environment["ranks"] == 2 and found.environment["wrap"] == "ddp"
    assert eager.verdict == "reference" and full.error is None
    assert full.numerics and full.numerics["verdict"] in ("same", "rounding")
    assert full.counts and full.counts["graphs"]
    assert graph.verdict == "skipped" and "several ranks" in graph.notes[0]


@pytest.mark.slow
def test_blocks_and_the_whole_model_are_compiled_when_sharded() -> None:
    regional = with_arguments(parse("regional"), backend="aot_eager")
    specs = (*backends("aot_eager"), StrategySpec(regional))
    specs = (*specs, StrategySpec(parse("nested")))
    _, full, blocks, nested = on_ranks("make", specs, wrap="fsdp2", train=True).rows
    for row in (full, blocks):
        assert row.error is None and row.counts and row.counts["graphs"]
        assert row.numerics and row.numerics["verdict"] in ("same", "rounding")
    assert nested.verdict == "skipped" and "fsdp2" in nested.notes[0]


# -- joined replies --------------------------------------------------------------------


def test_the_worst_verdict_of_all_ranks_wins() -> None:
    each = [
        Facts(numerics={"verdict": "same", "max_rel_error": 0.0}),
        Facts(numerics={"verdict": "rounding", "max_rel_error": 1e-7}),
        Facts(numerics={"verdict": None, "why": "nothing to compare"}),
    ]
    assert joined(each[:2]).numerics["verdict"] == "rounding"
    found = joined(each).numerics
    assert found["verdict"] is None and found["rank"] == 2
    assert found["why"] == "on rank 2: nothing to compare"


def test_the_largest_memory_and_the_longest_first_call_count() -> None:
    passes = [
        Facts(
            first_call_s=seconds,
            compile_s={"total": seconds / 2},
            counts={"graphs": graphs},
            rank_counts=({"graphs": graphs},),
            bytes={"host": 100, "cuda": graphs},
        )
        for seconds, graphs in ((1.0, 1), (3.0, 2))
    ]
    found = joined(passes)
    assert found.first_call_s == 3.0 and found.compile_s == {"total": 1.5}
    assert found.counts == {"graphs": 1}
    assert found.rank_counts == ({"graphs": 1}, {"graphs": 2})
    assert found.bytes == {"host": 200, "cuda": 2}
    examined = [Facts(memory={"host_rss": n, "cuda_allocated": None}) for n in (5, 7)]
    assert joined(examined).memory == {"host_rss": 7, "cuda_allocated": None}


@pytest.mark.parametrize(
    ("failures", "blamed"),
    [
        (
            {0: "Connection closed by peer", 1: "ValueError: no"},
            "rank 1: ValueError: no",
        ),
        ({0: "another rank has ended"}, "rank 0: another rank has ended"),
        ({0: "ValueError: no", 1: "ValueError: no"}, "ValueError: no"),
        ({1: "IndexError", 0: "ValueError"}, "rank 1: IndexError"),
    ],
)
def test_the_rank_that_others_follow_is_blamed(
    failures: dict[int, str], blamed: str
) -> None:
    answers = {rank: {"error": text} for rank, text in failures.items()}
    assert worker_process._blamed(answers, 2)["error"] == blamed


# -- the command line ------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_on_ranks_ends_with_a_recipe_that_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    words = ("tune", f"{MODELS}:make", "--ranks", "2", "--wrap", "ddp", "--train")
    flags = ("--strategies", "full", "--effort", "quick", "--budget", "8m", "-q")
    done = command(*words, *flags, "--recipe", str(file), cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr  # 1: eager is the fastest
    assert "2 ranks, ddp; the slowest rank of each pass counts" in done.stdout
    environment = tomllib.loads(file.read_text())["environment"]
    assert environment["ranks"] == 2 and environment["wrap"] == "ddp"
    [saved] = (tmp_path / ".torchproof" / "runs").iterdir()
    run = json.loads((saved / "run.json").read_text())
    assert [t["outcome"] for t in run["tuning"]["trials"]] == ["measured"] * 2
    model = torchproof.compile(Net(), recipe=file)
    followed = torchproof.status(model).recipe
    assert followed and followed["followed"] and not followed["why_not"]
