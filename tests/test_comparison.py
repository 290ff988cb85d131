"""Two runs compared, and what to do: runs made by hand, where the answer is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from bench_runs import ENVIRONMENT, WRONG, bench, row

from torchproof.measure.comparison import Comparison, compare
from torchproof.measure.comparison.metrics import Metric, Thresholds
from torchproof.records.run import Finding, Measurement, Part, Run, UserError

BREAK = Finding(
    code="GB101",
    kind="graph_break",
    severity="high",
    message="`loss.item()` splits the graph",
    cause="`loss.item()` needs the value 12 in Python",
    fix="keep it a tensor",
    file="/a/model.py",
    line=42,
    function="Net.forward",
)


def pair_of_runs(full_ms: float = 0.5, *, eager_ms: float = 1.0, **more: Any) -> Run:
    """Eager and full; `more` changes full."""
    full = row("full", full_ms, eager_ms=eager_ms, **more)
    return bench([row("eager", eager_ms), full])


def with_rows(change: Callable[[Measurement], Measurement], run: Run) -> Run:
    return replace(run, measurements=tuple(map(change, run.measurements)))


def with_tail(factor: float) -> Callable[[Measurement], Measurement]:
    """The slowest sample of each round takes so many times as long."""

    def change(one: Measurement) -> Measurement:
        long = tuple((*times[:-1], times[-1] * factor) for times in one.rounds_ms)
        return replace(one, rounds_ms=long, p95_ms=(one.p95_ms or 0) * factor)

    return change


def without_rounds(one: Measurement) -> Measurement:
    return replace(one, rounds_ms=())


def elsewhere(run: Run, **environment: Any) -> Run:
    return replace(run, environment={**ENVIRONMENT, **environment})


def compiles(**more: Any) -> Run:
    return pair_of_runs(**{"start": {"label": "cold"}, **more})


def counts(**values: int | None) -> Run:
    return pair_of_runs(counts={"graph_breaks": 0, "recompiles": 0, **values})


def check(*found: Finding, **more: Any) -> Run:
    run = bench([], verb="check", findings=found, parts={"breaks": Part("found")})
    return replace(run, **more)


def alone(strategy: str, ms: float, **more: Any) -> Run:
    return bench([row(strategy, ms, **more)])


A = pair_of_runs()
SLOWER = pair_of_runs(0.6)
LONG_TAIL = bench([A.measurements[0], with_tail(2)(A.measurements[1])])
FAILED = bench([A.measurements[0], Measurement("full", error="boom")])
UNVERIFIED = pair_of_runs(0.4, numerics=None)
SKIPPED = Measurement("full", verdict="skipped", notes=("no blocks",))
TWIN, HINT = replace(BREAK, line=50), replace(BREAK, kind="config", severity="low")
MOVED = replace(BREAK, line=50, file="/b/model.py", cause="`loss.item()` needs 345")
OLDER = {n: v for n, v in BREAK.to_json().items() if n != "key"}
BEFORE_KEYS = Finding.from_json({**OLDER, "identity": "0123456789abcdef"})
KEYED = replace(BREAK, key="_.item()")
VARIABLES = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_CACHE_DIR": "/x"}
CALLED = check(BREAK, calls={"float32[4]": 3})

CASES: dict[str, tuple[Any, ...]] = {
    "the same run": (A, A),
    "slower": (A, SLOWER),
    "faster": (SLOWER, A),
    "slower within the threshold": (A, SLOWER, Thresholds(speed=25, tail=25)),
    "a slower machine": (A, pair_of_runs(0.6, eager_ms=1.2)),
    "slower by more than the machine": (A, pair_of_runs(0.75, eager_ms=1.2)),
    "only eager is faster": (A, pair_of_runs(0.5, eager_ms=0.7)),
    "eager is faster by more": (A, pair_of_runs(0.45, eager_ms=0.7)),
    "slower, without rounds": (
        with_rows(without_rounds, A),
        with_rows(without_rounds, SLOWER),
    ),
    "slower, without rounds and interval": (
        with_rows(without_rounds, A),
        with_rows(lambda r: replace(r, rounds_ms=(), low_ms=None), SLOWER),
    ),
    "a longer tail": (A, LONG_TAIL),
    "a longer tail, in eager too": (A, with_rows(with_tail(1.5), A)),
    **{
        f"memory {after} instead of 1000": (
            pair_of_runs(peak_bytes=1000),
            pair_of_runs(peak_bytes=after),
        )
        for after in (1000, 1040, 1100, 500, None)
    },
    **{
        f"a {label} start of {seconds} s instead of a cold one of 12 s": (
            A,
            compiles(first_call_s=seconds, start={"label": label}),
        )
        for label, seconds in (
            ("cold", 15.0),
            ("cold", 13.0),
            ("cold", 6.0),
            ("warm", 15.0),
            ("cold", None),
        )
    },
    "one break more": (A, counts(graph_breaks=1)),
    "one break fewer": (counts(graph_breaks=1), A),
    "one recompile more": (A, counts(recompiles=1)),
    "recompiles not counted": (A, counts(recompiles=None)),
    "breaks of a check": (
        check(counts={"graph_breaks": 1, "recompiles": None}),
        check(counts={"graph_breaks": 3, "recompiles": None}),
    ),
    "another torch": (A, elsewhere(pair_of_runs(1.5), torch="2.11.0")),
    "other threads": (A, elsewhere(pair_of_runs(1.5), threads=1)),
    "a GPU, and more breaks": (A, elsewhere(counts(graph_breaks=2), gpu="H200")),
    "a patch of Python": (A, elsewhere(A, python="3.11.9", threads=None)),
    "other settings, and a row fewer": (
        A,
        elsewhere(bench([A.measurements[1]]), variables=VARIABLES),
    ),
    "wrong in B": (A, pair_of_runs(0.1, **WRONG)),
    "unverified in B": (A, UNVERIFIED),
    "unverified in A": (UNVERIFIED, A),
    "unverified in both": (UNVERIFIED, pair_of_runs(0.1, numerics=None)),
    "failed in B": (A, FAILED),
    "failed in A": (FAILED, A),
    "skipped in B": (A, bench([A.measurements[0], SKIPPED])),
    "eager, then full": (alone("eager", 1.0), alone("full", 0.5)),
    "full, then eager": (alone("full", 0.5), alone("eager", 1.0)),
    "eager, then a slower full": (alone("eager", 1.0), alone("full", 1.3)),
    "eager, then full with more memory": (
        alone("eager", 1.0),
        alone("full", 0.5, peak_bytes=2**30),
    ),
    "eager, then a wrong full": (alone("eager", 1.0), alone("full", 0.5, **WRONG)),
    "a finding that moved": (check(BREAK), check(MOVED)),
    "a new finding": (check(BREAK), check(BREAK, TWIN)),
    "a resolved finding": (check(BREAK), check()),
    "a new hint": (check(), check(replace(HINT, code="CF901"))),
    "a new break on purpose": (check(), check(replace(BREAK, status="intentional"))),
    "resolved by fewer calls": (CALLED, check(calls={"float32[4]": 1})),
    "resolved by other calls": (CALLED, check(calls={"float32[5]": 3})),
    "resolved by the same calls": (CALLED, check(calls=CALLED.calls)),
    "a finding of an older record": (check(BEFORE_KEYS), check(KEYED)),
    "a finding of a newer record": (check(KEYED), check(BEFORE_KEYS)),
    "resolved by a timeout": (check(BREAK), check(ending="timeout")),
    "resolved by an error": (check(BREAK), check(error="exit code 3")),
    "resolved by a skipped part": (
        check(BREAK),
        check(parts={"breaks": Part("skipped")}),
    ),
}


def line_of(metric: Metric) -> str:
    worse = ", a regression" if metric.regression else ""
    ends = ("-" if end is None else f"{end:.2f}" for end in (metric.low, metric.high))
    known = "" if metric.low is None else f" ({' to '.join(ends)})"
    return f"{metric.name}: {metric.verdict}{known}{worse}{' *' * bool(metric.why)}"


def described(found: Comparison) -> list[str]:
    """The fields of a comparison; a star stands for the reason of a verdict."""
    lines = [f"unlike: {each}" for each in found.unlike]
    lines += [f"note: {each}" for each in found.notes]
    lines += [f"eager: {line_of(found.eager)}"] if found.eager else []
    for each in found.rows:
        lines += [f"{each.name}, {line_of(metric)}" for metric in each.metrics]
        lines += [f"{each.name}, broken: {each.broken}"] if each.broken else []
        lines += [f"{each.name}, note: {each.note}"] if each.note else []
    lines += [f"total {line_of(metric)}" for metric in found.counts]
    for word, findings in (("new", found.appeared), ("gone", found.gone)):
        lines += [f"{word}: {f.code} {f.file}:{f.line}" for f in findings]
    lines += [f"decision: {found.decision.word}"] if found.decision else []
    return [*lines, f"regressions: {len(found.regressions)}"]


def test_comparisons_are_as_they_were(snapshot: Callable[[str, str], None]) -> None:
    """What a run compared with itself shows as well is left out of the others."""
    texts, usual = [], ()
    for name, (a, b, *limits) in CASES.items():
        found = compare(a, b, *limits)
        lines = [line for line in described(found) if line not in usual]
        usual = usual or lines
        texts.append("\n    ".join([f"{name}: {found.verdict}", *lines]) + "\n")
    snapshot("comparisons.txt", "".join(texts))


def varying(full_ms: float, chance: random.Random) -> Run:
    """A run as a machine gives it: every process has a speed of its own."""

    def measured(strategy: str, ms: float) -> Measurement:
        made = [
            row(strategy, ms * chance.gauss(1, 0.02), seed=chance.randrange(10**6))
            for _ in range(2)
        ]
        samples = made[0].rounds_ms + made[1].rounds_ms
        median = (made[0].median_ms or 0) / 2 + (made[1].median_ms or 0) / 2
        return replace(made[0], rounds_ms=samples, median_ms=median, repeats=(12, 12))

    eager, full = measured("eager", 1.0), measured("full", full_ms)
    assert eager.median_ms and full.median_ms
    full = replace(full, vs_eager=eager.median_ms / full.median_ms)
    return bench([eager, full])


@pytest.mark.slow
def test_variation_of_processes_is_no_regression_and_15_percent_are_found() -> None:
    chance = random.Random(0)
    runs = [(varying(0.5, chance), varying(0.5, chance)) for _ in range(20)]
    assert sum(bool(compare(a, b).regressions) for a, b in runs) <= 1
    runs = [(varying(0.5, chance), varying(0.575, chance)) for _ in range(10)]
    assert sum(bool(compare(a, b).regressions) for a, b in runs) >= 9


def test_runs_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(UserError, match=r"A .*eager, full.* B .*regional"):
        compare(A, bench([row("regional", 1.0)]))
    with pytest.raises(UserError, match=r"\bB\b.*measurements"):
        compare(A, check(BREAK))
