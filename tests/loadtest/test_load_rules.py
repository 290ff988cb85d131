"""Causes of slow requests become findings, one for each cause and place."""

from __future__ import annotations

from typing import Any

import pytest

from torchproof.checking import rules
from torchproof.checking.rules.load import SlowRequests
from torchproof.measure.loadtest.tail_causes import Cause
from torchproof.records import (
    ColdPhase,
    Finding,
    LatencyObjective,
    LoadResult,
    LoadTest,
    Requests,
    Stall,
    Tail,
    TailCause,
)

STALL = Stall(
    kind="compile",
    begin_s=1.0,
    end_s=1.5,
    text="recompile",
    request=40,
    file="/home/me/model.py",
    line=7,
    function="Net.forward",
)
REQUESTS = Requests(
    arrival_s=(0.0, 1.0),
    begin_s=(0.0, 1.0),
    end_s=(0.5, 1.5),
    call=(0, 0),
    worker=(0, 0),
    batch=(1, 1),
)


def cause(code: str = "LT101", **fields: Any) -> TailCause:
    fields = {"share": 0.8, "culprits": (40,), "victims": (41, 42)} | fields
    return TailCause(
        code=code,
        kind="compile",
        text="recompile of Net.forward",
        remedy="pad size 1 of x to 576",
        stalls=(0,),
        excess_ms=500.0,
        **fields,
    )


def findings(
    *causes: TailCause, cold: tuple[TailCause, ...] = (), **fields: Any
) -> list[Finding]:
    result = LoadResult(
        "full",
        requests=REQUESTS,
        stalls=(STALL,),
        tail=fields.pop("tail", Tail(causes=causes)),
        cold=ColdPhase(tail=Tail(causes=cold)),
        **fields,
    )
    return rules.check_load(_test(result))


def _test(*results: LoadResult) -> LoadTest:
    return LoadTest(
        rate=50,
        arrivals="poisson",
        seed=0,
        planned=2,
        objective=LatencyObjective(99, 50),
        results=results,
    )


def test_a_cause_is_a_finding_at_the_place_of_its_stall() -> None:
    [found] = findings(cause(), verdict="missed")
    assert (found.code, found.kind, found.category) == (
        "LT101",
        "latency",
        "Performance",
    )
    assert (found.line, found.function, found.owner) == (7, "Net.forward", "user")
    assert found.fix == "pad size 1 of x to 576"
    assert found.severity == "high" and found.count == 1
    assert "80%" in found.message and "40" in found.message


@pytest.mark.parametrize(
    "share, verdict, severity",
    [(0.8, "missed", "high"), (0.8, "met", "medium"), (0.1, "missed", "low")],
)
def test_severity_follows_the_share_and_the_objective(
    share: float, verdict: Any, severity: str
) -> None:
    [found] = findings(cause(share=share), verdict=verdict)
    assert found.severity == severity
    [cold] = findings(cold=(cause("LT102", share=share),), verdict=verdict)
    assert (cold.code, cold.severity) == ("LT102", "low")


@pytest.mark.parametrize("harmless", [{"share": 0.01}, {"culprits": (), "victims": ()}])
def test_what_delays_nobody_is_no_finding(harmless: dict[str, Any]) -> None:
    assert findings(cause(**harmless), verdict="missed") == []


def test_strategies_and_phases_share_one_finding() -> None:
    result = LoadResult(
        "full",
        requests=REQUESTS,
        stalls=(STALL,),
        tail=Tail(causes=(cause(share=0.3),)),
        cold=ColdPhase(tail=Tail(causes=(cause(share=0.9),))),
    )
    other = LoadResult(
        "regional",
        requests=REQUESTS,
        stalls=(STALL,),
        tail=Tail(causes=(cause(share=0.6),)),
    )
    [found] = rules.check_load(_test(result, other))
    assert len(found.evidence) == 3
    assert found.count == 2  # the first stall of each strategy
    assert "regional" in found.message  # the largest share after the cold phase


def test_plain_load_is_a_finding_if_it_misses_the_objective() -> None:
    loaded = Tail(load_share=0.9, unexplained_share=0.1)
    [found] = findings(tail=loaded, verdict="missed", offered_rate=50.0)
    assert (found.code, found.severity, found.file) == ("LT108", "high", None)
    assert "--find-rate" in found.fix and "67%" in found.cause
    assert findings(tail=loaded, verdict="met") == []
    stalled = Tail(causes=(cause(share=0.7),), load_share=0.3)
    assert [f.code for f in findings(tail=stalled, verdict="missed")] == ["LT101"]
    unknown = Tail(load_share=0.3, unexplained_share=0.7)
    assert findings(tail=unknown, verdict="missed") == []


def test_every_cause_of_a_tail_has_a_rule() -> None:
    codes = {cause.code for cause in Cause}
    listed = {rule.code for rule in rules.RULES if rule.code.startswith("LT")}
    assert codes | {"LT108"} == listed  # plain load is no stall
    with_remedy = {rule.code for rule in rules.RULES if isinstance(rule, SlowRequests)}
    assert with_remedy == codes
