"""The tables and sentences of a load test, shared by all of its reports.

Takes the `LoadTest` of a run, returns `Table` records and plain text. Latency counts
from the intended arrival. `-` is not known: too few requests, or not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torchproof.records import (
    Generation,
    LatencyObjective,
    LoadResult,
    LoadTest,
    Percentile,
    Run,
    Tail,
    TailCause,
)
from torchproof.report import numbers
from torchproof.report.document import Table, columns

PERCENTS = (50.0, 90.0, 99.0, 99.9)
METRICS = {
    "latency": "",
    "first_token": "time to the first token, ",
    "token": "time per output token, ",
}
_NOTABLE = 0.01  # the smallest share of a cause that is not folded away
_LISTED = 3  # request numbers that a sentence names


def load_test_of(run: Run) -> LoadTest:
    """Without results if the run ended before it had any."""
    return run.load_test or LoadTest(rate=None, arrivals="-", seed=0, planned=0)


# -- the question ----------------------------------------------------------------------


def question(test: LoadTest) -> str:
    """`50 requests/s for 30 s (poisson, seed 0): 1500 requests, 1 worker`."""
    if test.rate is None:
        text = f"requests as in {test.arrivals}"
    else:
        text = f"{numbers.count(test.rate)} requests/s"
        if test.duration_s is not None:
            text += f" for {_length(test.duration_s)}"
        text += f" ({test.arrivals}, seed {test.seed})"
    text += f": {numbers.amount(test.planned, 'request')}"
    text += f", {numbers.amount(test.workers, 'slot' if test.text else 'worker')}"
    if test.batch_window_ms is not None:
        window = numbers.milliseconds(test.batch_window_ms)
        text += f", batches of up to {test.max_batch or '-'} within {window}"
    if test.text:
        text += f", {test.text.lengths}"
    elif len(test.calls) > 1:
        text += f", {len(test.calls)} calls"
    return text


def _length(seconds: float) -> str:
    """`30 s`; a short test is not rounded to whole seconds."""
    return numbers.duration(seconds) if seconds >= 10 else numbers.seconds(seconds)


def objective(wanted: LatencyObjective) -> str:
    """`p99 at most 50 ms`."""
    limit = f"{numbers.count(wanted.limit_ms)} ms"
    return f"{METRICS[wanted.metric]}{percent_name(wanted.percent)} at most {limit}"


def percent_name(percent: float) -> str:
    return f"p{percent:g}"


def answer(test: LoadTest) -> str:
    """The objective, and which strategies meet it."""
    if test.objective is None:
        return "No objective: add one for a verdict, for example --slo p99=50ms"
    return f"Objective {objective(test.objective)}: {verdicts(test)}"


def verdicts(test: LoadTest) -> str:
    """`met by full; missed by eager`."""
    words = {"met": "met by", "missed": "missed by", "undecided": "undecided for"}
    groups: dict[str, list[str]] = {}
    for verdict, words_before in words.items():
        for result in test.results:
            if result.verdict == verdict:
                groups.setdefault(words_before, []).append(result.strategy)
    parts = [f"{word} {', '.join(names)}" for word, names in groups.items()]
    return "; ".join(parts) or "no objective was judged"


# -- the numbers of each strategy ------------------------------------------------------


def at(percentiles: Sequence[Percentile], percent: float) -> Percentile | None:
    return next((p for p in percentiles if p.percent == percent), None)


def judged_percent(test: LoadTest) -> float:
    """The percentile that matters most: that of the objective, else p99."""
    wanted = test.objective
    return wanted.percent if wanted and wanted.metric == "latency" else 99.0


def percents(test: LoadTest) -> list[float]:
    """Those of the table, with that of the objective if it is another."""
    every = {p.percent for result in test.results for p in result.latency}
    objective_percents = {judged_percent(test)} & every
    return sorted({*PERCENTS, *objective_percents})


def latencies(test: LoadTest, *, intervals: bool = False) -> Table:
    """Percentiles after the cold phase, and the parts that queueing and service have.

    With `intervals`, for a document that has the room.
    """
    judged, cell = judged_percent(test), spread if intervals else value
    name = percent_name(judged)
    cells: dict[str, Callable[[LoadResult], str]] = {
        "strategy": lambda result: result.strategy + " *" * stayed_cold(result),
        **{percent_name(p): partial(_latency, cell, p) for p in percents(test)},
        f"queue {name}": lambda result: value(result.queueing, judged),
        f"serve {name}": lambda result: value(result.service, judged),
    }
    return columns("", test.results, cells, _explained(test))


def _latency(
    cell: Callable[[Sequence[Percentile], float], str],
    percent: float,
    result: LoadResult,
) -> str:
    return cell(latency_of(result), percent)


def stayed_cold(result: LoadResult) -> bool:
    """Whether the cold phase did not end before the test."""
    cold = result.cold
    if cold is None or not result.answered:
        return False
    return cold.requests in (None, len(result.requests.arrival_s))


def latency_of(result: LoadResult) -> tuple[Percentile, ...]:
    """After the cold phase; of all requests if it did not end."""
    return result.all_latency if stayed_cold(result) else result.latency


def value(percentiles: Sequence[Percentile], percent: float) -> str:
    row = at(percentiles, percent)
    return numbers.plain(row.value_ms if row else None)


def spread(percentiles: Sequence[Percentile], percent: float) -> str:
    """`5.44 (5.35-5.55)`; `1275 (from 780)` if the requests give no upper bound."""
    row, text = at(percentiles, percent), value(percentiles, percent)
    if row is None or row.value_ms is None or row.low_ms is None:
        return text
    if row.high_ms is None:
        return f"{text} (from {numbers.plain(row.low_ms)})"
    return f"{text} ({numbers.interval(row.low_ms, row.high_ms)})"


def _explained(test: LoadTest) -> Iterator[str]:
    """What signs in the table mean, and how many requests percentiles need."""
    if any(map(stayed_cold, test.results)):
        yield "`*`: the cold phase did not end, so that all requests count"
    needed = {
        p.percent: p.needed
        for result in test.results
        for p in latency_of(result)
        if p.needed is not None
    }
    if needed:
        each = [f"{percent_name(p)} needs {n}" for p, n in sorted(needed.items())]
        yield f"`-`: too few requests ({', '.join(each)})"
    unserved = [
        result.strategy
        for result in test.results
        if any(p.value_ms is None and p.needed is None for p in latency_of(result))
    ]
    if unserved:
        yield f"`-` of {', '.join(unserved)}: too many requests got no answer"


def outcomes(test: LoadTest) -> Table:
    """The verdict, the goodput and the cold phase of each strategy."""
    cells: dict[str, Callable[[LoadResult], str]] = {
        "strategy": lambda result: result.strategy,
        "objective": lambda result: result.verdict or numbers.UNKNOWN,
        "goodput": lambda result: numbers.per_second(result.goodput_rate),
        "first answer": lambda result: numbers.seconds(result.first_answer_after_s),
        "cold misses": _missed,
        "met from": _met_from,
        "max rate": lambda result: numbers.per_second(result.highest_rate),
    }
    return columns("", test.results, cells, optional=("max rate",))


def best(test: LoadTest) -> LoadResult | None:
    """The strategy with the shortest tail, among those that met the objective if any.

    A tail that is not known counts as infinite; the median then decides.
    """
    met = [result for result in test.results if result.verdict == "met"]

    def order(result: LoadResult) -> tuple[float, float]:
        rows = (at(latency_of(result), p) for p in (judged_percent(test), 50.0))
        tail, middle = (row.value_ms if row else None for row in rows)
        return (
            math.inf if tail is None else tail,
            math.inf if middle is None else middle,
        )

    return min(met or test.results, key=order, default=None)


def _missed(result: LoadResult) -> str:
    cold = result.cold
    if cold is None or cold.missed is None:
        return numbers.UNKNOWN
    return f"{cold.missed} of {numbers.count(cold.requests)}"


def _met_from(result: LoadResult) -> str:
    """When the objective began to hold, counted from the first arrival."""
    since = result.objective_met_after_s
    if since is None:
        return "never" if result.verdict == "missed" else numbers.UNKNOWN
    return numbers.seconds(since) if since else "the start"


def generation(test: LoadTest) -> Table:
    """Tokens, of text models."""
    rows = [(r.strategy, r.generation) for r in test.results if r.generation]
    cells: dict[str, Callable[[tuple[str, Generation]], str]] = {
        "strategy": lambda row: row[0],
        "first token": lambda row: _pair(row[1].first_token),
        "per token": lambda row: _pair(row[1].per_token),
        "tokens": lambda row: numbers.per_second(row[1].tokens_per_s),
        "capacity": lambda row: numbers.per_second(row[1].capacity_tokens_per_s),
        "cost/M": lambda row: numbers.plain(row[1].cost_per_million),
    }
    title = "Generation, tokens in ms (p50 / p99)"
    return columns(title, rows, cells, optional=[*cells][1:])


def _pair(percentiles: Sequence[Percentile]) -> str:
    return f"{value(percentiles, 50.0)} / {value(percentiles, 99.0)}"


def remarks(test: LoadTest) -> Iterator[str]:
    """What a reader must know of a strategy before trusting its numbers."""
    for result in test.results:
        if facts := list(_remarks(result)):
            yield f"{result.strategy} {'; '.join(facts)}"


def _remarks(result: LoadResult) -> Iterator[str]:
    total = len(result.requests.arrival_s)
    if result.error:
        yield f"failed: {result.error}"
    elif result.ending != "finished":
        yield f"ended early ({result.ending}) after {total} requests"
    if result.kept_up is False:
        yield "could not keep up: its queue grew until the end"
    if result.unserved:
        yield f"left {result.unserved} of {total} requests without an answer"
    if result.rejected:
        yield f"rejected {result.rejected} of {total} requests"
    if result.failed:
        texts = ", ".join(f"{text} ({count})" for text, count in result.errors.items())
        yield f"failed in {result.failed} of {total} requests: {texts or 'no text'}"
    if result.on_time is False:
        late = numbers.milliseconds(result.late_ms)
        yield f"took some due requests {late} late while a worker was idle"
    if result.verdict == "undecided" and result.needed is not None:
        yield f"needs {result.needed} requests to decide the objective"
    yield from result.notes


# -- causes of the tail ----------------------------------------------------------------


@dataclass(frozen=True)
class SlowRequests:
    """The slow requests of a strategy in one phase, with the largest cause first."""

    title: str
    causes: tuple[TailCause, ...]
    rest: str  # what the causes do not explain


def slow_requests(test: LoadTest) -> Iterator[SlowRequests]:
    """Of each strategy until it is warm, and from there on."""
    for result in test.results:
        cold = result.cold.tail if result.cold else None
        for tail, phase in ((cold, " until warm"), (result.tail, "")):
            if tail is not None and tail.slow:
                total = numbers.amount(len(tail.slow), "request")
                title = f"{result.strategy}: {total} {_slowness(tail)}{phase}"
                causes = sorted(tail.causes, key=lambda cause: -(cause.share or 0))
                yield SlowRequests(title, tuple(causes), _rest(tail))


def _slowness(tail: Tail) -> str:
    if tail.threshold_ms is None:
        return "slow for their length"
    return f"above {numbers.milliseconds(tail.threshold_ms)}"


def is_notable(cause: TailCause) -> bool:
    """Whether a reader should know it at once."""
    return (cause.share or 0) >= _NOTABLE


def caused(cause: TailCause) -> str:
    """`LT101 recompile of forward: ...; in request 700; 95 waited`."""
    return f"{cause.code} {cause.text}; {involved(cause)}"


def _rest(tail: Tail) -> str:
    unexplained = f"{share(tail.unexplained_share)} unexplained"
    if not tail.load_share:
        return unexplained
    return f"{share(tail.load_share)} usual load, {unexplained}"


def without_slow_requests(test: LoadTest) -> list[str]:
    return [r.strategy for r in test.results if r.tail and not r.tail.slow]


def share(part: float | None) -> str:
    """`61%`; what is left must not look like nothing beside a rounded 100%."""
    if part is None:
        return numbers.UNKNOWN
    if 0.995 <= part < 1:
        return ">99%"
    return "<1%" if 0 < part < 0.01 else f"{part:.0%}"


def involved(cause: TailCause) -> str:
    """Culprits and victims: `in request 700; 95 waited`."""
    waited = f"{len(cause.victims)} waited" if cause.victims else ""
    if cause.kind == "slots":
        return waited
    where = requests(cause.culprits) if cause.culprits else "another thread"
    return "; ".join(filter(None, (f"in {where}", waited)))


def requests(members: Sequence[int]) -> str:
    """`request 700`, `requests 3, 4, 5 and 12 more`."""
    listed = ", ".join(map(str, members[:_LISTED]))
    more = len(members) - _LISTED
    noun = "request" if len(members) == 1 else "requests"
    return f"{noun} {listed}" + (f" and {more} more" if more > 0 else "")


def remedies(run: Run) -> Iterator[str]:
    """One for each code: those of causes, the largest first, then of findings."""
    tails = [tail for r in load_test_of(run).results for tail in tails_of(r)]
    causes = [cause for tail in tails for cause in tail.causes]
    causes.sort(key=lambda cause: -(cause.excess_ms or 0))
    texts: dict[str, str] = {}
    for cause in causes:
        texts.setdefault(cause.code, cause.remedy)
    for finding in run.findings:
        if finding.status == "open":
            texts.setdefault(finding.code, finding.fix)
    yield from (f"{code}: {text}" for code, text in texts.items())


def more_to_ask(test: LoadTest) -> Iterator[str]:
    """Flags that would answer what this load test left open."""
    needed = [r.needed for r in test.results if r.verdict == "undecided" and r.needed]
    if needed:
        yield f"to decide the objective, use at least --requests {max(needed)}"
    searched = any(result.trials for result in test.results)
    if test.objective and not searched and test.rate is not None:
        yield "to find the highest rate that meets the objective, add --find-rate"


def tails_of(result: LoadResult) -> list[Tail]:
    """Of the cold phase, and from there on."""
    cold = result.cold.tail if result.cold else None
    return [tail for tail in (cold, result.tail) if tail is not None]


def missing(test: LoadTest) -> Iterator[str]:
    """Kinds of stalls that could not be observed, and why."""
    reasons: dict[str, list[str]] = {}
    tails = [tail for result in test.results for tail in tails_of(result)]
    for tail in tails:
        for kind, why in tail.missing.items():
            kinds = reasons.setdefault(why, [])
            kinds += [] if kind in kinds else [kind]
    for why, kinds in reasons.items():
        yield f"not observed: {', '.join(kinds)} ({why})"
