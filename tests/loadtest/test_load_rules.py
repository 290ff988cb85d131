"""Causes of slow requests become findings, one for each cause and place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchproof.checking import rules
from torchproof.checking.rules.load import SlowRequests
from torchproof.measure.loadtest.tail_causes import Cause
from torchproof.records import (
    ColdPhase,
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
REQUESTS = Requests((0.0, 1.0), (0.0, 1.0), (0.5, 1.5), (0, 0), (0, 0), (1, 1))


def cause(share: float = 0.8, code: str = "LT101", **fields: Any) -> TailCause:
    return TailCause(
        code=code,
        kind="compile",
        text="recompile of Net.forward",
        remedy="pad size 1 of x to 576",
        stalls=(0,),
        excess_ms=500.0,
        share=share,
        **{"culprits": (40,), "victims": (41, 42), **fields},
    )


def result(
    *causes: TailCause,
    verdict: Any = "missed",
    cold: tuple[TailCause, ...] = (),
    strategy: str = "full",
    **tail: Any,
) -> LoadResult:
    return LoadResult(
        strategy,
        requests=REQUESTS,
        stalls=(STALL,),
        tail=Tail(causes=causes, **tail),
        cold=ColdPhase(tail=Tail(causes=cold)),
        verdict=verdict,
        offered_rate=50.0,
    )


CASES = {
    "a cause, objective missed": [result(cause())],
    "a cause, objective met": [result(cause(), verdict="met")],
    "a small share": [result(cause(0.1))],
    "a tiny share": [result(cause(0.01))],
    "nobody is delayed": [result(cause(culprits=(), victims=()))],
    "in the cold phase": [result(cold=(cause(code="LT102"),))],
    "two strategies and phases": [
        result(cause(0.3), cold=(cause(0.9),)),
        result(cause(0.6), strategy="regional"),
    ],
    "load, objective missed": [result(load_share=0.9, unexplained_share=0.1)],
    "load, objective met": [
        result(load_share=0.9, unexplained_share=0.1, verdict="met")
    ],
    "mostly a stall": [result(cause(0.7), load_share=0.3)],
    "mostly unexplained": [result(load_share=0.3, unexplained_share=0.7)],
}


def test_findings_of_load_tests_are_as_they_were(
    snapshot: Callable[[str, str], None],
) -> None:
    lines = []
    for name, results in CASES.items():
        test = LoadTest(
            rate=50,
            arrivals="poisson",
            seed=0,
            planned=2,
            objective=LatencyObjective(99, 50),
            results=tuple(results),
        )
        lines.append(f"{name}:")
        for found in rules.check_load(test):
            lines += [
                f"    {found.code}, {found.severity}, {found.kind}, {found.category},"
                f" {found.owner}, {found.file}:{found.line} {found.function},"
                f" {found.count} stalls, {len(found.evidence)} lines of evidence",
                f"        {found.message}",
                f"        {found.cause}",
                f"        {found.fix}",
            ]
    snapshot("load-findings.txt", "\n".join(lines) + "\n")


def test_every_cause_of_a_tail_has_a_rule() -> None:
    codes = {cause.code for cause in Cause}
    listed = {rule.code for rule in rules.RULES if rule.code.startswith("LT")}
    assert codes | {"LT108"} == listed  # plain load is no stall
    with_remedy = {rule.code for rule in rules.RULES if isinstance(rule, SlowRequests)}
    assert with_remedy == codes
