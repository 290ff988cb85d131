"""The records of a run with ranks survive JSON."""

from __future__ import annotations

import json

from torchproof.records import (
    CollectiveTimeout,
    CompiledFunctionRow,
    FunctionOnRank,
    Rank,
    RankDifference,
    RankEvent,
    RankRun,
    RankWait,
    Run,
)

COMPILE = RankEvent(
    "compile",
    start_s=1.5,
    seconds=None,
    step=17,
    function="Model.forward",
    file="train.py",
    line=12,
    nth=2,
    compile_id="0/1",
    sizes={"x": "3x8"},
    dynamic=("x.size(0)",),
    cached=False,
    collectives=("all_reduce",),
)


def test_all_records_survive_json() -> None:
    killed = Rank(1, outcome="killed", exit_code=-9, events=(COMPILE,))
    ranks = RankRun(
        world_size=2,
        ranks=(Rank(0), killed),
        functions=(
            CompiledFunctionRow(
                "Model.forward",
                ranks=(FunctionOnRank(0, compiles=1, graphs=("a", None)),),
                differs=("recompiles",),
            ),
        ),
        differences=(
            RankDifference("recompile", (1,), others=(0,), compile_ids=("0/1", None)),
        ),
        waits=(RankWait("all_reduce", 1, (0,), start_s=1.6, seconds=5.0, ended=False),),
        timeout=CollectiveTimeout("all_reduce", ranks=(0,), missing=(1,)),
    )
    run = Run("id", "train.py", "as-written", {}, {}, ranks=ranks)
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


def test_a_run_without_ranks_has_none() -> None:
    run = Run("id", "train.py", "as-written", {}, {})
    assert run.to_json()["ranks"] is None and Run.from_json(run.to_json()) == run
