"""Each rule about ranks, on made-up events: a case and its clean twin."""

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
from torchproof.records import Event, Finding, Frame, Observation, RankEvent, RankRun


def findings(run: RankRun) -> list[Finding]:
    return [each.finding for each in check_ranks(run, {}).found]


def gc(start_s: float, seconds: float) -> RankEvent:
    return RankEvent("gc", start_s=start_s, seconds=seconds, reason="generation 2")


ATTRIBUTE = "0/0: self.scale == 1"
ON_TIME = all_reduce(18, 17.2, 0.02)
CASES: dict[str, tuple[RankRun, RankRun]] = {
    "RK101": (
        ranks([compiled()], [compiled(), recompiled(17, reason=ATTRIBUTE)]),
        ranks(
            [compiled(), recompiled(17, reason=ATTRIBUTE)],
            [compiled(), recompiled(17, reason=ATTRIBUTE)],
        ),
    ),
    "RK102": (
        ranks([compiled()], [compiled(graph="other")]),
        # Other sizes from the start on: the operations are the same.
        ranks([compiled(sizes={"x": "8x4"})], [compiled(sizes={"x": "6x4"})]),
    ),
    "RK103": (
        ranks([compiled(), broken()], [compiled()]),
        ranks([compiled(), broken()], [compiled(), broken()]),
    ),
    "RK104": (
        ranks([compiled(cached=True)], [compiled(cached=False, seconds=9.0)]),
        ranks([compiled(cached=False)], [compiled(cached=False)]),
    ),
    "RK105": (
        ranks([compiled()], [compiled(), recompiled(19)]),
        ranks([compiled(), recompiled(19)], [compiled(), recompiled(19, after=4)]),
    ),
    "RK106": (
        ranks([compiled(collectives=("all_gather_tensor",))], [compiled()]),
        ranks(
            [compiled(collectives=("all_gather_tensor",))],
            [compiled(collectives=("all_gather_tensor",))],
        ),
    ),
    "RK108": (
        with_rank(ranks([compiled()], []), 1, compiled_calls=0),
        ranks([compiled()], [compiled()]),
    ),
    "RK109": (
        ranks(
            [compiled(), all_reduce(18, 17.2, 0.5)],
            [compiled(), gc(17.2, 0.4), all_reduce(18, 17.7)],
        ),
        ranks([compiled(), ON_TIME], [compiled(), gc(3.2, 0.4), ON_TIME]),
    ),
    "RK110": (
        with_rank(
            with_rank(
                ranks(
                    [compiled(), all_reduce(18, 17.2, 5.0)],
                    [compiled(), recompiled(17, seconds=None)],
                ),
                0,
                outcome="failed",
                exit_code=1,
                last_seen_s=22.2,
                error="RuntimeError: Timed out waiting 5000ms for send operation",
            ),
            1,
            outcome="killed",
            exit_code=-15,
            last_seen_s=22.5,
        ),
        # Both fail, and nobody waits in a collective.
        ranks([compiled()], [compiled()], outcome="failed", exit_code=1),
    ),
}


# A break explains other graphs; a recompile explains a failed collective.
ALSO = {"RK110": {"RK105"}}


@pytest.mark.parametrize("code", CASES)
def test_rule_finds_its_case_alone_and_not_the_twin(code: str) -> None:
    bad, good = CASES[code]
    found = {each.code: each for each in findings(bad)}
    assert found.keys() == {code, *ALSO.get(code, ())}
    finding = found[code]
    assert finding.ranks and finding.cause and finding.fix
    assert finding.status == "open" and finding.origin == "dynamic"
    assert findings(good) == []


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
    observation = Observation((Event("graph_break", frames=(frame,)),), {})
    wrap = RankEvent(
        "wrap", start_s=0.0, function=wrapper, file=FILE, line=20, order=order
    )
    evidence = Evidence(ranks([wrap], [wrap]), {0: observation, 1: observation}, {})
    assert [(each.code, each.ranks) for each in evidence._wraps()] == expected


def test_a_lone_recompile_names_rank_step_line_and_wait() -> None:
    run = ranks(
        [compiled(), all_reduce(18, 17.2, 2.3)],
        [compiled(), recompiled(17, seconds=2.2), all_reduce(18, 19.4)],
    )
    [finding] = findings(run)
    assert (finding.code, finding.ranks, finding.step) == ("RK105", (1,), 17)
    assert (finding.file, finding.line, finding.function) == (FILE, 12, "Net.forward")
    assert finding.waited_s == pytest.approx(2.2)
    assert finding.severity == "medium"


def test_the_same_cause_in_many_functions_and_steps_is_one_finding() -> None:
    names: dict[int, dict[str, Any]] = {
        step: {"function": f"Block{step}.forward"} for step in (3, 5)
    }
    first = [compiled(**name, compile_id=f"{s}/0") for s, name in names.items()]
    again = [recompiled(s, **name, compile_id=f"{s}/1") for s, name in names.items()]
    [finding] = findings(ranks(first, [*first, *again]))
    assert (finding.count, finding.steps, finding.step) == (2, 2, 3)


def test_the_backward_of_a_lone_recompile_is_part_of_it() -> None:
    backward: dict[str, Any] = {"function": "Net.forward (backward)", "backward": True}
    first = [compiled(), compiled(**backward)]
    again = [recompiled(17), recompiled(17, **backward, reason=None)]
    [finding] = findings(ranks(first, [*first, *again]))
    assert (finding.code, finding.count) == ("RK105", 1)


def test_a_rank_that_ended_before_is_not_compared() -> None:
    run = ranks([compiled()], [compiled(), recompiled(17)])
    assert findings(with_rank(run, 0, steps=17, outcome="failed")) == []


def test_a_function_that_one_rank_never_compiles() -> None:
    other = compiled(function="evaluate", line=40, compile_id="1/0")
    [finding] = findings(ranks([compiled(), other], [compiled()]))
    assert (finding.code, finding.ranks, finding.line) == ("RK102", (0,), 40)


def test_a_straggler_is_told_apart_from_compiling() -> None:
    run = ranks(
        [compiled(), all_reduce(18, 17.2, 1.6)], [compiled(), all_reduce(18, 18.7)]
    )
    [finding] = findings(run)
    assert (finding.code, finding.ranks, finding.severity) == ("RK109", (1,), "low")


def test_ranks_that_start_at_other_times_do_not_count() -> None:
    first: dict[str, Any] = {"step": None}
    run = ranks(
        [all_reduce(1, 0.1, 3.0, **first), compiled(start_s=3.2)],
        [all_reduce(1, 3.1, **first), compiled(start_s=3.2)],
    )
    assert findings(run) == []


def test_groups_of_some_ranks_do_not_wait_for_others() -> None:
    tensor: dict[str, Any] = {"group": "tp", "members": (0, 1)}
    each = [compiled(), all_reduce(1, 0.7, **tensor)]
    run = ranks(each, each, [compiled()], [compiled()])
    assert check_ranks(run, {}).ranks.waits == ()


def test_buckets_that_wait_at_the_same_time_count_once() -> None:
    """As those of DDP, whose reductions are pending together."""
    begins = {18: 17.2, 19: 17.3, 20: 17.4}
    early = [all_reduce(nth, at, 21.2 - at, step=17) for nth, at in begins.items()]
    late = [all_reduce(nth, 21.2, step=17) for nth in begins]
    [finding] = findings(ranks([compiled(), *early], [compiled(), *late]))
    assert finding.code == "RK109" and finding.waited_s == pytest.approx(4.0)


def test_a_rank_in_a_later_collective_was_in_the_ones_before() -> None:
    lost = all_reduce(18, 17.2, None)
    both = all_reduce(19, 17.3, 0.0)
    run = check_ranks(ranks([compiled(), lost, both], [compiled(), both]), {}).ranks
    assert run.waits == () and run.timeout is None


def test_a_killed_rank_is_missing_in_the_last_collective() -> None:
    """Its last ones are not recorded, so that ended ones look as if they failed."""
    ended = [all_reduce(nth, 17.0 + nth / 100, None) for nth in (18, 19, 20)]
    run = ranks([compiled(), *ended], [compiled(), all_reduce(17, 16.9)])
    run = with_rank(run, 0, outcome="failed", exit_code=1)
    run = with_rank(run, 1, outcome="killed", exit_code=-9, last_seen_s=17.0)
    timeout = check_ranks(run, {}).ranks.timeout
    assert timeout is not None and (timeout.nth, timeout.missing) == (20, (1,))


def test_a_rank_that_still_compiles_another_function_has_not_left_one_out() -> None:
    other: dict[str, Any] = {"function": "Net.loss", "line": 40, "compile_id": "1/0"}
    first = [compiled(), compiled(start_s=0.8, **other)]
    run = with_rank(ranks(first, [compiled(seconds=None)]), 1, outcome="hung")
    assert "RK102" not in {each.code for each in findings(run)}
    # Its twin has ended the first function and went on without the second.
    assert "RK102" in {each.code for each in findings(ranks(first, [compiled()]))}
