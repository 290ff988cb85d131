"""The records of a load test: requests, percentiles, stalls, and what caused them.

Times in seconds count from the start of the timetable, on one clock. Requests have the
number of their arrival, from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchproof.records.mappings import JsonObject
from torchproof.records.schema import Record

LatencyMetric = Literal["latency", "first_token", "token"]
# "undecided": the requests are too few to tell whether the objective is met.
ObjectiveVerdict = Literal["met", "missed", "undecided"]
StallKind = Literal[
    "compile",  # Dynamo traced a frame, and what it called
    "inductor",
    "triton",
    "cudagraph",
    "cache_miss",
    "gc",
    "allocator",
    "fallback",
    "cpu",  # the thread waited for one
    # Of older runs, which watched the GIL and generated several texts at once.
    "gil",
    "prefill",
]
CauseKind = StallKind | Literal["slots"]  # the second of older runs


@dataclass(frozen=True)
class LatencyObjective(Record):
    """`p99=50ms`: at most 1 of 100 requests may take longer than 50 ms."""

    percent: float
    limit_ms: float
    metric: LatencyMetric = "latency"


@dataclass(frozen=True)
class Percentile(Record):
    """A percentile with its interval; None, and how many requests it needs."""

    percent: float
    value_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    needed: int | None = None  # requests, if these were too few


@dataclass(frozen=True)
class Requests(Record):
    """The requests of one strategy, one list per field, in the order of arrival.

    A request that was rejected or never served has None as `begin_s` and `end_s`.
    `batch` counts the requests that were served together.
    """

    arrival_s: tuple[float, ...] = ()  # when it was due
    begin_s: tuple[float | None, ...] = ()
    end_s: tuple[float | None, ...] = ()
    call: tuple[int, ...] = ()  # index of the target's call
    worker: tuple[int | None, ...] = ()
    batch: tuple[int | None, ...] = ()
    failed: tuple[int, ...] = ()  # numbers of requests that raised an error
    rejected: tuple[int, ...] = ()  # numbers of requests that the queue had no room for
    # Of text models only.
    first_token_s: tuple[float | None, ...] = ()
    prompt_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int | None, ...] = ()
    other: JsonObject = field(default_factory=dict, hash=False)

    def inconsistency(self) -> tuple[str, str, str] | None:
        count = len(self.arrival_s)
        always = ("begin_s", "end_s")
        others = ("call", "worker", "batch", "first_token_s", "prompt_tokens")
        for name in (*always, *others, "output_tokens"):
            length = len(getattr(self, name))
            if length != count and (length or name in always):
                return name, f"{count} entries, one per request", str(length)
        for name in ("failed", "rejected"):
            largest = max(getattr(self, name), default=-1)
            if largest >= count:
                return name, f"numbers of {count} requests", str(largest)
        return None


@dataclass(frozen=True)
class Stall(Record):
    """Something in the process that can delay a request, with its time.

    `request` is the request that the thread was serving, None for other threads.
    """

    kind: StallKind
    begin_s: float
    end_s: float
    text: str  # `recompile of forward: size mismatch at index 1 of x`
    request: int | None = None
    thread: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    data: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class TailCause(Record):
    """What delayed slow requests, and how much of their excess over the median.

    Culprits are the requests in which it happened, victims those that waited.
    """

    code: str  # of the finding: LT101
    kind: CauseKind
    text: str
    remedy: str
    stalls: tuple[int, ...] = ()  # indices into the stalls of the result
    culprits: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    excess_ms: float | None = None
    share: float | None = None  # of the excess of all slow requests
    other: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Tail(Record):
    """The slow requests of a phase, explained as far as events explain them.

    The median is that of latencies without the stalls: a long one may delay most
    requests. Of text, it is the median in relation to what a request of its length
    usually takes. The parts of `excess_ms` are the causes, `load_ms` and
    `unexplained_ms`. `load_ms` is what usual service times explain: a call that always
    takes longer than the median, and waiting behind requests without a stall.
    """

    # Requests above it are slow. None for text: what is slow depends on the length.
    threshold_ms: float | None = None
    slow: tuple[int, ...] = ()
    excess_ms: float | None = None  # of all slow requests over the median
    causes: tuple[TailCause, ...] = ()
    load_ms: float | None = None
    load_share: float | None = None
    unexplained_ms: float | None = None
    unexplained_share: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict, hash=False)  # kind: why
    other: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ColdPhase(Record):
    """From the first arrival until the process serves at its usual speed.

    It ends when every call that arrives in the first half of the timetable has been
    answered once, and then no request waits. None: it did not end.
    """

    end_s: float | None = None
    requests: int | None = None  # that arrived until then
    missed: int | None = None  # of them, over the limit of the objective
    objective_met_s: float | None = None  # from then on the objective holds
    first_answer_s: float | None = None
    start_s: float | None = None  # imports and building the model, before the timetable
    tail: Tail | None = None  # the slow requests until then


@dataclass(frozen=True)
class RateTrial(Record):
    """One rate of a search for the highest that meets the objective."""

    rate: float
    requests: int
    verdict: ObjectiveVerdict
    percentile: Percentile
    kept_up: bool | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None  # of text models


@dataclass(frozen=True)
class Generation(Record):
    """The results of a text model that is served as prefill and decode."""

    first_token: tuple[Percentile, ...] = ()
    per_token: tuple[Percentile, ...] = ()
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    tokens_per_s: float | None = None
    capacity_tokens_per_s: float | None = None  # the highest under the objective
    watts: float | None = None  # of older runs
    cost_per_million: float | None = None
    currency_per_hour: float | None = None
    other: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class LoadResult(Record):
    """A strategy under load. Percentiles are of the requests after the cold phase."""

    strategy: str
    requests: Requests = field(default_factory=Requests)
    latency: tuple[Percentile, ...] = ()
    queueing: tuple[Percentile, ...] = ()
    service: tuple[Percentile, ...] = ()
    all_latency: tuple[Percentile, ...] = ()  # with the cold phase
    answered: int | None = None
    failed: int | None = None
    rejected: int | None = None
    unserved: int | None = None  # still waiting when the test ended
    offered_rate: float | None = None
    answered_rate: float | None = None
    goodput_rate: float | None = None  # answers within the objective's limit
    verdict: ObjectiveVerdict | None = None
    needed: int | None = None  # requests to decide the objective, if undecided
    kept_up: bool | None = None  # False: the queue grew until the end
    late_ms: float | None = None  # how late an idle worker took due requests (p99)
    on_time: bool | None = None  # False: too late, the machine did not keep the times
    cold: ColdPhase | None = None
    stalls: tuple[Stall, ...] = ()
    tail: Tail | None = None  # the slow requests after the cold phase
    trials: tuple[RateTrial, ...] = ()
    highest_rate: float | None = None
    generation: Generation | None = None
    peak_bytes: int | None = None
    source: str = ""  # the Python lines that make what was served
    ending: str = "finished"  # or skipped, interrupted, timeout
    error: str | None = None
    errors: Mapping[str, int] = field(default_factory=dict, hash=False)  # text: count
    notes: tuple[str, ...] = ()
    other: JsonObject = field(default_factory=dict, hash=False)

    @property
    def first_answer_after_s(self) -> float | None:
        """From the first arrival to the first answer; None if there is none."""
        moment_s = self.cold.first_answer_s if self.cold else None
        return self._since_first_arrival(moment_s)

    @property
    def objective_met_after_s(self) -> float | None:
        """From the first arrival until the objective holds; None if it never does."""
        moment_s = self.cold.objective_met_s if self.cold else None
        return self._since_first_arrival(moment_s)

    def _since_first_arrival(self, moment_s: float | None) -> float | None:
        arrivals = self.requests.arrival_s
        return None if moment_s is None or not arrivals else moment_s - arrivals[0]


@dataclass(frozen=True)
class TextLoad(Record):
    """What is asked of a text model. Lengths are drawn from ranges: from, to."""

    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    temperature: float = 0.0  # 0: always the most likely token
    queue_limit: int | None = None  # a request that finds so many waiting is rejected

    @property
    def lengths(self) -> str:
        """`prompts of 16-128 and outputs of 64 tokens`."""
        prompt, output = (
            "-".join(map(str, sorted({*limits})))
            for limits in (self.prompt_tokens, self.output_tokens)
        )
        return f"prompts of {prompt} and outputs of {output} tokens"


@dataclass(frozen=True)
class LoadTest(Record):
    """The question of a load test, and the result of each strategy."""

    rate: float | None  # requests per second; None: times come from a file
    arrivals: str  # poisson, constant, gamma:K, or the name of a file
    seed: int
    planned: int  # requests in the timetable
    workers: int = 1  # threads; of older runs of a text model, its slots
    duration_s: float | None = None
    objective: LatencyObjective | None = None
    batch_window_ms: float | None = None
    max_batch: int | None = None
    calls: tuple[str, ...] = ()  # what each call of the target is: `x: 8x128`
    weights: tuple[float, ...] = ()
    text: TextLoad | None = None
    results: tuple[LoadResult, ...] = ()
    other: JsonObject = field(default_factory=dict, hash=False)
