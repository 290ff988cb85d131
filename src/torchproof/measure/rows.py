"""Turns the state of each strategy of a session into measurements with verdicts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torchproof.measure.device_peaks import utilisation
from torchproof.measure.replies import Facts, Kernels, Lookups, Reference, SampledRound
from torchproof.measure.specs import Plan, StrategySpec
from torchproof.measure.starts import setup_s, start_record
from torchproof.measure.strategy_state import StrategyState
from torchproof.process import aslr
from torchproof.records import Measurement, RankTime, Verdict, one_line, shapes, stats
from torchproof.strategies import source_lines

References = Mapping[tuple[str | None, int], Reference]
_APART = (
    "too little memory for all strategies at once: they were timed one after the other,"
    " so a machine that slows down can look like a slower strategy"
)


def rows(
    states: Sequence[StrategyState],
    plan: Plan,
    references: References,
    *,
    apart: bool = False,
) -> tuple[Measurement, ...]:
    """Returns one measurement per strategy and shape, compared with eager.

    `apart` says that the strategies were not all sampled side by side.
    """
    measurements: list[Measurement] = []
    for number, shape in enumerate(plan.shapes):
        _cut_to_common_rounds(states, number)
        plain = [
            _row(state, number, references.get((state.spec.dtype, number), Reference()))
            for state in states
        ]
        variation = _process_variation(states, plain, references)
        for state, row in zip(states, plain, strict=True):
            base = _eager_of(state.spec, states, plain)
            row = replace(row, variant={**state.spec.variant, **shape})
            if not plan.first_calls:  # they compiled at once, each slower than alone
                row = replace(
                    row, first_call_s=None, start=None, warm_start=None, compile_s=None
                )
            if row.rounds_ms:
                row = replace(row, luck=variation)
            if apart and row.rounds_ms:
                row = replace(row, notes=(*row.notes, _APART))
            measurements.append(_with_verdict(row, base, state))
    return tuple(measurements)


def _cut_to_common_rounds(states: Sequence[StrategyState], number: int) -> None:
    """Drops extra rounds: an interruption leaves some strategies a round ahead."""
    running = [s for s in states if s.runs and number < len(s.facts)]
    by_repeat = zip(*(s.facts[number].rounds for s in running), strict=False)
    counts = [min(map(len, parts)) for parts in by_repeat]
    for state in running:
        facts = state.facts[number]
        pairs = zip(facts.rounds, counts, strict=False)
        rounds = tuple(part[:count] for part, count in pairs)
        state.facts[number] = replace(facts, rounds=rounds)


def _process_variation(
    states: Sequence[StrategyState],
    plain: Sequence[Measurement],
    references: References,
) -> float:
    """How much processes with the same code differ, as far as the run is too short.

    It is known of CPUs. Of other devices, the repeats of this run tell it; a single
    one does not. Enough repeats need no assumption.
    """
    timed = [(s, row) for s, row in zip(states, plain, strict=True) if row.rounds_ms]
    if not timed or stats.interval_over(timed[0][1].repeats) == "processes":
        return 0.0
    device = next(iter(references.values()), Reference()).environment.get("device")
    if device != "cuda":
        same_layout = aslr.is_possible()
        return (
            stats.SAME_LAYOUT_VARIATION
            if same_layout
            else stats.RANDOM_LAYOUT_VARIATION
        )
    eager = next((row for state, row in timed if state.spec.is_eager), timed[0][1])
    others = [
        row.rounds_ms
        for _, row in timed
        if row is not eager and row.repeats == eager.repeats
    ]
    return stats.process_variation(eager.rounds_ms, others, eager.repeats)


def _eager_of(
    spec: StrategySpec, states: Sequence[StrategyState], plain: Sequence[Measurement]
) -> Measurement | None:
    """Returns the row of eager with the same dtype, if it ran."""
    for state, row in zip(states, plain, strict=True):
        if state.runs and state.spec.is_eager and state.spec.dtype == spec.dtype:
            return row
    return None


def _row(state: StrategyState, number: int, reference: Reference) -> Measurement:
    source = ""
    if not state.spec.as_written:
        source = source_lines.lines(state.spec.strategy)
    row = Measurement(state.spec.strategy.name, source=source)
    if state.skipped:
        return replace(row, verdict=Verdict.SKIPPED, notes=(state.skipped,))
    if state.error:
        row = replace(row, verdict=Verdict.FAILED, error=one_line(state.error))
    if number >= len(state.facts):
        return row
    facts = state.facts[number]
    start, warm = start_record("cold", facts), state.warm if number == 0 else None
    row = replace(
        row,
        first_call_s=start["first_call_s"],
        start={**start, "later_compile_s": facts.later_compile_s},
        warm_start=start_record("warm", warm) if warm else None,
        compile_s=facts.compile_s,
        numerics=facts.numerics,
        memory=facts.memory,
        peak_bytes=_peak(facts.memory),
        counts=_counts(facts),
        source=facts.source or row.source,
        fell_back=facts.fell_back,
        notes=tuple(_notes(state, facts, reference)),
        advice=() if facts.steady else (_unsteady(facts),),
    )
    return _with_times(row, facts, reference)


def _with_times(row: Measurement, facts: Facts, reference: Reference) -> Measurement:
    sampled = [each for part in facts.rounds for each in part]
    if not sampled:
        return row
    interrupted = [flag for each in sampled for flag in each.interrupted]
    share = sum(interrupted) / len(interrupted)
    rounds = tuple(each.clean_ms for each in sampled)
    tails = tuple(tuple(stats.tail_of(each.times_ms)) for each in sampled)
    repeats = tuple(len(part) for part in facts.rounds if part)
    spread = stats.summarise(
        rounds, repeats=repeats, tail=tails, interrupted=share, longer=facts.longer
    )
    row = replace(
        row,
        rounds_ms=rounds,
        tail_rounds_ms=tails,
        tail={
            "samples": len(interrupted),
            "interrupted": sum(interrupted),
            "collector": facts.collector,
        },
        repeats=repeats,
        interval_over=stats.interval_over(repeats),
        median_ms=spread.median,
        low_ms=spread.low,
        high_ms=spread.high,
        samples=spread.count,
        outliers=spread.outliers,
        p95_ms=spread.p95,
        ranks=_rank_times(sampled),
        notes=(*row.notes, *spread.advice),
        advice=(*row.advice, *spread.advice),
    )
    if reference.work:
        amount, unit = reference.work
        row = replace(row, throughput=amount / spread.median * 1e3, unit=f"{unit}/s")
    if counted := reference.operations:
        gpu = reference.environment.get("gpu")
        mfu, flops = utilisation(counted, gpu, spread.median)
        row = replace(row, mfu=mfu, flops=flops)
    if lookups := facts.lookups:
        row = replace(row, guards=_guards(facts, lookups, spread.median))
    if kernels := facts.kernels:
        row = replace(row, kernels=_kernels(kernels, spread.median))
    return row


def _rank_times(rounds: Sequence[SampledRound]) -> tuple[RankTime, ...]:
    """The median of each of several ranks, and how often it was the slowest."""
    by_round = zip(*(each.by_rank for each in rounds), strict=True)
    by_rank = [[ms for times in of_rank for ms in times] for of_rank in by_round]
    passes = list(zip(*by_rank, strict=True))
    slowest = Counter(times.index(max(times)) for times in passes)
    return tuple(
        RankTime(rank, statistics.median(times), slowest[rank] / len(passes))
        for rank, times in enumerate(by_rank)
    )


def _rank_difference(facts: Facts) -> str | None:
    """How the counts of the compiler differ between ranks, in words."""
    for name in ("graphs", "graph_breaks", "recompiles"):
        counts = [counts.get(name) for counts in facts.rank_counts]
        if len(set(counts)) > 1:
            each = ", ".join(f"{n} on rank {rank}" for rank, n in enumerate(counts))
            return (
                f"the ranks compiled differently: {name.replace('_', ' ')} {each};"
                f" torchproof check --ranks {len(counts)} says why"
            )
    return None


def _notes(state: StrategyState, facts: Facts, reference: Reference) -> Iterator[str]:
    yield from facts.notes
    for why in facts.fell_back:
        yield f"{Verdict.FELL_BACK}, no CUDA graph was replayed: {why}"
    if not facts.steady:
        yield _unsteady(facts)
    if facts.compilations:
        yield (
            f"compiled {facts.compilations} times while it was timed: torchproof"
            " check says why"
        )
    if differs := _rank_difference(facts):
        yield differs
    yield from facts.sharing
    counts = facts.counts or shapes.Counts()
    for name, count in (counts.get("artifacts_of") or {}).items():
        if count == 1:
            yield f"all {name} share one artifact, by compile counts"
    # Code that was compiled for one shape may serve the next.
    if facts.counts and not any((f.counts or {})["graphs"] for f in state.facts):
        yield "nothing was compiled: torchproof check says why"
    if facts.counts and facts.switches:
        pairs = facts.switches.items()
        settings = ", ".join(f"{name}={value!r}" for name, value in pairs)
        yield f"the target changes options of the compiler: {settings}"
    if reference.deterministic is False:
        yield (
            "a second pass over the calls gives other outputs than the first, in eager"
            " too: the first pass was compared; timed passes have other values"
        )
    for note in (reference.host_copies, reference.not_exact):
        if note:
            yield note


def _unsteady(facts: Facts) -> str:
    return f"the times were not steady when sampling began: {facts.longer}"


def _counts(facts: Facts) -> shapes.Counts | None:
    if facts.counts is None:
        return None
    return {**facts.counts, "while_timed": facts.compilations}


def _peak(memory: Mapping[str, int | None] | None) -> int | None:
    """Returns the peak of device memory on CUDA, else of process memory."""
    if memory is None:
        return None
    allocated = memory["cuda_allocated"]
    if allocated is None:
        return memory["host_rss"]
    return allocated + (memory.get("cuda_graph_pools") or 0)


def _guards(facts: Facts, lookups: Lookups, step_ms: float) -> shapes.Guards:
    guards: shapes.Guards = {
        "lookup_us": lookups.us,
        "lookup_range_us": lookups.range_us,
        "share": lookups.us / (step_ms * 1e3),
    }
    if facts.counts:
        guards["guards"] = facts.counts["guards"]
    return {**guards, "not_checked": facts.dropped or None}


def _kernels(kernels: Kernels, step_ms: float) -> shapes.Kernels:
    # Kernels run slower under the profiler, so the share can exceed 1; it is void then.
    share = kernels.kernel_ms / step_ms
    return {
        "per_step": kernels.per_step,
        "kernel_ms": kernels.kernel_ms,
        "generated_ms": kernels.generated_ms,
        "busy_share": share if share <= 1 else None,
    }


# -- verdicts --------------------------------------------------------------------------


def _with_verdict(
    row: Measurement, base: Measurement | None, state: StrategyState
) -> Measurement:
    """Adds the verdict; without right outputs a strategy is not ranked."""
    verdict = _verdict(row, base, is_eager=state.spec.is_eager)
    if verdict is Verdict.REFERENCE:
        row = replace(row, vs_eager=1.0 if row.rounds_ms else None)
    if verdict is not None:
        return replace(row, verdict=verdict)
    assert base is not None and row.luck is not None
    ratio = stats.compare(
        base.rounds_ms, row.rounds_ms, repeats=row.repeats, variation=row.luck
    )
    row = replace(
        row,
        vs_eager=ratio.value,
        vs_eager_low=ratio.low,
        vs_eager_high=ratio.high,
        median_ratio=ratio.of_medians,
        verdict=_verdict_text(ratio),
        notes=(*row.notes, *ratio.advice),
        advice=(*row.advice, *ratio.advice),
    )
    return _with_break_even(row, base, ratio)


def _verdict(
    row: Measurement, base: Measurement | None, *, is_eager: bool
) -> str | None:
    """The verdict of a row that has no ratio to eager; None if it has one."""
    if row.verdict:  # failed or skipped
        return row.verdict
    if row.verification == "wrong":
        return Verdict.WRONG
    if is_eager:
        return Verdict.REFERENCE
    if not row.rounds_ms:
        return Verdict.NOT_MEASURED
    if row.fell_back:
        return Verdict.FELL_BACK
    if row.verification == "unverified":
        return Verdict.UNVERIFIED
    if base is None or not base.rounds_ms or base.verification == "wrong":
        return Verdict.NO_EAGER
    return None


def _verdict_text(ratio: stats.Ratio) -> str:
    """Returns a text such as `1.80x faster` or `not significant`."""
    if ratio.verdict == "faster":
        return f"{ratio.value:.2f}x faster"
    if ratio.verdict == "slower":
        return f"{1 / ratio.value:.2f}x slower"
    return Verdict.NOT_SIGNIFICANT


def _with_break_even(
    row: Measurement, base: Measurement, ratio: stats.Ratio
) -> Measurement:
    """Adds the step after which compilation, with its imports, has paid off."""
    first = row.first_call_s
    if first is not None:
        first += setup_s(row.start)
    point = stats.break_even(first, base.first_call_s, base.median_ms, ratio)
    if point is None:
        return row
    return replace(row, break_even=point.text, break_even_steps=point.steps)
