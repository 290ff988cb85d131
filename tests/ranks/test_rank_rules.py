"""Each rule about ranks, on made-up events: what it finds in a run, and what not."""

from __future__ import annotations

from typing import Any

import pytest
from rank_runs import (
    FILE,
    all_reduce,
    broken,
    compiled,
    ranks,
    recompiled,
    with_rank,
)

from torchproof.checking.ranks import check_ranks
from torchproof.checking.ranks.evidence import Evidence
from torchproof.checking.rules.rule import MESSAGE, PROSE
from torchproof.records import (
    BreakEvent,
    Finding,
    Frame,
    Observation,
    RankEvent,
    RankRun,
)


def findings(run: RankRun) -> list[Finding]:
    return [each.finding for each in check_ranks(run, {}).found]


def gc(start_s: float, seconds: float) -> RankEvent:
    return RankEvent("gc", start_s=start_s, seconds=seconds, reason="generation 2")


def on_both(*events: RankEvent) -> RankRun:
    return ranks(events, events)


ATTRIBUTE = "0/0: self.scale == 1"
BY_ATTRIBUTE = recompiled(17, reason=ATTRIBUTE)
GATHERS = compiled(collectives=("all_gather_tensor",))
EARLIER, ON_TIME = all_reduce(18, 17.2, 0.02), all_reduce(18, 17.7)
SHORTLY = [compiled(), all_reduce(18, 17.2, 0.5)]
LONG_WAIT = [compiled(), all_reduce(18, 17.2, 1.6)]
STRAGGLER = [compiled(), all_reduce(18, 18.7)]
EARLY_START = all_reduce(1, 0.1, 3.0, step=None)
FOUR_SECONDS = {"waited_s": pytest.approx(4.0)}
EVALUATE = compiled(function="evaluate", line=40, compile_id="1/0")
LOSS: dict[str, Any] = {"function": "Net.loss", "line": 40, "compile_id": "1/0"}
TWO = [compiled(), compiled(start_s=0.8, **LOSS)]
BLOCKS = [compiled(function=f"Block{s}.forward", compile_id=f"{s}/0") for s in (3, 5)]
AGAIN = [
    recompiled(s, function=f"Block{s}.forward", compile_id=f"{s}/1") for s in (3, 5)
]
BACKWARD: dict[str, Any] = {"function": "Net.forward (backward)", "backward": True}
FORWARD = [compiled(), compiled(**BACKWARD)]
BOTH_AGAIN = [recompiled(17), recompiled(17, **BACKWARD, reason=None)]
# The buckets of DDP, whose reductions are pending together.
BUCKETS = {18: 17.2, 19: 17.3, 20: 17.4}
EARLY = [all_reduce(nth, at, 21.2 - at, step=17) for nth, at in BUCKETS.items()]
LATE = [all_reduce(nth, 21.2, step=17) for nth in BUCKETS]
FAILED: dict[str, Any] = {"outcome": "failed", "exit_code": 1}
KILLED: dict[str, Any] = {"outcome": "killed", "exit_code": -15, "last_seen_s": 22.5}
TIMED_OUT = with_rank(
    with_rank(
        ranks(
            [compiled(), all_reduce(18, 17.2, 5.0)],
            [compiled(), recompiled(17, seconds=None)],
        ),
        0,
        last_seen_s=22.2,
        error="RuntimeError: Timed out waiting 5000ms for send operation",
        **FAILED,
    ),
    1,
    **KILLED,
)
WAITED = [compiled(), all_reduce(18, 17.2, 2.3)]
LONE = [compiled(), recompiled(17, seconds=2.2), all_reduce(18, 19.4)]
LONE_FIELDS = {"waited_s": pytest.approx(2.2), "severity": "medium", "line": 12}
ENDED = {"steps": 17, "outcome": "failed"}
STARTING = compiled(start_s=3.2)
# Code, ranks and step of each finding, a run, and what else a finding has.
CASES: list[tuple[str, RankRun, dict[str, Any]]] = [
    ("RK101 (1,) 17", ranks([compiled()], [compiled(), BY_ATTRIBUTE]), {}),
    ("", on_both(compiled(), BY_ATTRIBUTE), {}),
    ("RK102 (1,) 0", ranks([compiled()], [compiled(graph="other")]), {}),
    ("RK102 (0,) 0", ranks([compiled(), EVALUATE], [compiled()]), {"line": 40}),
    ("RK102 (0,) 0", ranks(TWO, [compiled()]), {}),
    # It still compiles the first function, and has not left out the second.
    ("", with_rank(ranks(TWO, [compiled(seconds=None)]), 1, outcome="hung"), {}),
    # Other sizes from the start on: the operations are the same.
    ("", ranks([compiled(sizes={"x": "8x4"})], [compiled(sizes={"x": "6x4"})]), {}),
    ("RK103 (0,) 0", ranks([compiled(), broken()], [compiled()]), {}),
    ("", on_both(compiled(), broken()), {}),
    ("RK104 (1,) 0", ranks([compiled(cached=True)], [compiled(cached=False)]), {}),
    ("", on_both(compiled(cached=False)), {}),
    ("RK105 (1,) 19", ranks([compiled()], [compiled(), recompiled(19)]), {}),
    (
        "",
        ranks([compiled(), recompiled(19)], [compiled(), recompiled(19, after=4)]),
        {},
    ),
    ("RK105 (1,) 3", ranks(BLOCKS, [*BLOCKS, *AGAIN]), {"count": 2, "steps": 2}),
    ("RK105 (1,) 17", ranks(FORWARD, [*FORWARD, *BOTH_AGAIN]), {"count": 1}),
    ("RK105 (1,) 17", ranks(WAITED, LONE), LONE_FIELDS),
    ("", with_rank(ranks([compiled()], [compiled(), recompiled(17)]), 0, **ENDED), {}),
    ("RK106 (1,) 0", ranks([GATHERS], [compiled()]), {}),
    ("", on_both(GATHERS), {}),
    ("RK108 (1,) None", with_rank(ranks([compiled()], []), 1, compiled_calls=0), {}),
    ("", on_both(compiled()), {}),
    ("RK109 (1,) 17", ranks(SHORTLY, [compiled(), gc(17.2, 0.4), ON_TIME]), {}),
    ("", ranks([compiled(), EARLIER], [compiled(), gc(3.2, 0.4), EARLIER]), {}),
    # A straggler, and buckets that wait at the same time, which count once.
    ("RK109 (1,) 17", ranks(LONG_WAIT, STRAGGLER), {"severity": "low"}),
    ("RK109 (1,) 17", ranks([compiled(), *EARLY], [compiled(), *LATE]), FOUR_SECONDS),
    ("", ranks([EARLY_START, STARTING], [all_reduce(1, 3.1, step=None), STARTING]), {}),
    ("RK105 (1,) 17, RK110 (1,) 17", TIMED_OUT, {}),  # the one explains the other
    # Both fail, and nobody waits in a collective.
    ("", ranks([compiled()], [compiled()], **FAILED), {}),
]


@pytest.mark.parametrize(("expected", "run", "fields"), CASES)
def test_findings_are_these_and_no_other(
    expected: str, run: RankRun, fields: dict[str, Any]
) -> None:
    found = findings(run)
    assert expected == ", ".join(sorted(f"{f.code} {f.ranks} {f.step}" for f in found))
    for finding in found:
        assert finding.cause and finding.fix
        assert len(finding.message) <= MESSAGE and len(finding.fix) <= PROSE
        assert finding.status == "open" and finding.origin == "dynamic"
        assert {name: getattr(finding, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("order", "wrapper", "broken_at", "expected"),
    [
        ("wrapped_first", "fully_shard", "fsdp/hooks.py", [("RK107", (0, 1))]),
        ("compiled_first", "fully_shard", "fsdp/hooks.py", []),
        ("wrapped_first", "DistributedDataParallel", "fsdp/hooks.py", []),
        ("wrapped_first", "fully_shard", "nn/parallel/distributed.py", []),
    ],
)
def test_order_matters_only_where_hooks_of_fsdp_break_the_graph(
    order: str, wrapper: str, broken_at: str, expected: list[Any]
) -> None:
    frame = Frame(f"/torch/distributed/{broken_at}", 3, "forward")
    observation = Observation((BreakEvent(frames=(frame,)),), {})
    wrap = RankEvent(
        "wrap", start_s=0.0, function=wrapper, file=FILE, line=20, order=order
    )
    evidence = Evidence(ranks([wrap], [wrap]), {0: observation, 1: observation}, {})
    assert [(each.code, each.ranks) for each in evidence._wraps()] == expected


TENSOR: dict[str, Any] = {"group": "tp", "members": (0, 1)}
OF_GROUP = [compiled(), all_reduce(1, 0.7, **TENSOR)]
LOST, BOTH = all_reduce(18, 17.2, None), all_reduce(19, 17.3, 0.0)


@pytest.mark.parametrize(
    "run",
    [
        ranks(OF_GROUP, OF_GROUP, [compiled()], [compiled()]),
        # A rank in a later collective was in the ones before.
        ranks([compiled(), LOST, BOTH], [compiled(), BOTH]),
    ],
    ids=["groups of some ranks", "a lost record"],
)
def test_nobody_waits(run: RankRun) -> None:
    compared = check_ranks(run, {}).ranks
    assert compared.waits == () and compared.timeout is None


def test_a_killed_rank_is_missing_in_the_last_collective() -> None:
    """Its last ones are not recorded, so that ended ones look as if they failed."""
    ended = [all_reduce(nth, 17.0 + nth / 100, None) for nth in (18, 19, 20)]
    run = ranks([compiled(), *ended], [compiled(), all_reduce(17, 16.9)])
    run = with_rank(with_rank(run, 0, **FAILED), 1, **{**KILLED, "last_seen_s": 17.0})
    timeout = check_ranks(run, {}).ranks.timeout
    assert timeout is not None and (timeout.nth, timeout.missing) == (20, (1,))
