"""LT1xx: what makes requests slow when a target is served under load.

The events are the causes that a load test measured, with the text and the remedy that
belong to the stalls themselves. The rules group them over strategies and phases.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import EventGroup, Facts, Rule, grouped, plural
from torchproof.records import (
    Event,
    Frame,
    LoadResult,
    LoadTest,
    Observation,
    Place,
    Severity,
    Tail,
    TailCause,
    whose,
)

_NOTICEABLE = 0.05  # of the excess of a phase; what is less makes no finding
_LARGE = 0.25
_SHOWN = 6  # numbers of requests


@dataclass(frozen=True, kw_only=True)
class SlowRequestsEvent(Event):
    """A cause of slow requests in one phase of one strategy."""

    strategy: str
    cold: bool
    cause: TailCause
    missed: bool  # the objective, in this strategy

    @property
    def share(self) -> float:
        return self.cause.share or 0.0

    @property
    def phase(self) -> str:
        return "in the cold phase" if self.cold else "after the cold phase"

    @property
    def requests(self) -> str:
        where = f"in {_numbers(self.cause.culprits)}; " if self.cause.culprits else ""
        others = "other request" if self.cause.culprits else "request"
        return f"{where}{plural(len(self.cause.victims), others)} waited"


@dataclass(frozen=True, kw_only=True)
class PlainLoadEvent(Event):
    """A strategy misses its objective because of the load alone."""

    result: LoadResult
    test: LoadTest
    tail: Tail


def _numbers(requests: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, requests[:_SHOWN]))
    more = f" and {len(requests) - _SHOWN} more" if len(requests) > _SHOWN else ""
    noun = "request" if len(requests) == 1 else "requests"
    return f"{noun} {shown}{more}"


def observation_of(test: LoadTest) -> Observation:
    """The causes of slow requests as events, for the rules."""
    events = [event for result in test.results for event in _events(result, test)]
    return Observation(tuple(events), {})


def _events(result: LoadResult, test: LoadTest) -> Iterator[Event]:
    missed = result.verdict == "missed"
    cold_tail = result.cold.tail if result.cold else None
    for tail, cold in ((cold_tail, True), (result.tail, False)):
        for cause in tail.causes if tail else ():
            event = SlowRequestsEvent(
                function=_place(cause, result),
                strategy=result.strategy,
                cold=cold,
                cause=cause,
                missed=missed,
            )
            if event.share >= _NOTICEABLE and (cause.culprits or cause.victims):
                yield event
    if missed and (tail := result.tail or cold_tail) and _is_load(tail):
        yield PlainLoadEvent(result=result, test=test, tail=tail)


def _is_load(tail: Tail) -> bool:
    causes = sum(cause.share or 0.0 for cause in tail.causes)
    return (tail.load_share or 0.0) > max(causes, tail.unexplained_share or 0.0)


def _place(cause: TailCause, result: LoadResult) -> Frame | None:
    """The line of the longest stall that has one."""
    stalls = [result.stalls[index] for index in cause.stalls]
    placed = [stall for stall in stalls if stall.file and stall.line]
    if not placed:
        return None
    longest = max(placed, key=lambda stall: stall.end_s - stall.begin_s)
    return Frame(longest.file or "", longest.line or 0, longest.function or "")


def _key(event: SlowRequestsEvent) -> tuple[object, ...]:
    function = event.function
    where = (function.file, function.function) if function else None
    return event.cause.code, where


SlowGroup = EventGroup[SlowRequestsEvent]
PlainLoadGroup = EventGroup[PlainLoadEvent]


class SlowRequests(Rule[SlowGroup]):
    """Base class of the rules for stalls that delayed requests."""

    kind = "latency"
    parts = ("load",)
    reference = torch_pages.COMPILE_TIME
    cause_text = "{part.cause.text}"
    advice_text = "{part.cause.remedy}"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[SlowGroup]:
        """One group for each cause and place, the largest share first."""
        for events in grouped(facts.of(SlowRequestsEvent), _key):
            ordered = sorted(events, key=_importance)
            function = ordered[0].function
            owner = "library" if function and whose(function.file) != "user" else "user"
            place = Place(function, owner if function else None, None)  # type: ignore[arg-type]
            # Stalls have numbers of their own in each strategy.
            stalls = {(e.strategy, n) for e in events for n in e.cause.stalls}
            waiting = {(e.strategy, n) for e in events for n in e.cause.victims}
            count = len(stalls or waiting)
            yield SlowGroup(tuple(ordered), place, facts, count=count)

    def matches(self, group: SlowGroup) -> bool:
        return group.first.cause.code == self.code

    def words(self, group: SlowGroup) -> dict[str, object]:
        return {"part": group.first}

    def message(self, group: SlowGroup) -> str:
        part = group.first
        return (
            f"{part.cause.text}: {part.share:.0%} of the delay of slow requests of"
            f" {part.strategy} {part.phase} ({part.requests})"
        )

    def severity(self, group: SlowGroup) -> Severity:
        """A cause that ends with the cold phase is low: it happens once."""
        warm = [event for event in group.events if not event.cold]
        if not warm:
            return "low"
        worst = max(warm, key=lambda part: part.share)
        if worst.share < _LARGE:
            return "low"
        return "high" if worst.missed else "medium"

    def evidence(self, group: SlowGroup) -> Iterable[str]:
        for part in group.events:
            yield (
                f"{part.strategy} {part.phase}: {part.cause.excess_ms or 0:.0f} ms,"
                f" {part.share:.0%}; {part.requests}"
            )


def _importance(event: SlowRequestsEvent) -> tuple[bool, float]:
    return event.cold, -event.share


class _Row(NamedTuple):
    """What is particular to a cause of slow requests: its page."""

    code: str
    name: str
    reference: str
    summary: str
    why: str
    bad: str
    good: str
    safety: str

    @property
    def page(self) -> str:
        bad, good = (textwrap.indent(text, "    ") for text in (self.bad, self.good))
        why, safety = (textwrap.fill(text, 84) for text in (self.why, self.safety))
        return (
            f"{self.summary}\n\n## Why\n{why}\n\n## Bad\n{bad}\n\n## Good\n{good}"
            f"\n\n## Fix safety\n{safety}\n"
        )

    def rule(self) -> type[SlowRequests]:
        own = {"code": self.code, "reference": self.reference, "__doc__": self.page}
        return type(self.name, (SlowRequests,), own)


_CAUSES = (
    _Row(
        "LT101",
        "RecompileUnderLoad",
        torch_pages.RECOMPILES,
        summary="A request recompiles, and the requests behind it wait.",
        why=(
            "A request whose inputs fail a guard is compiled for before it is"
            " answered. This takes seconds with Inductor, and every request that"
            " arrives meanwhile waits."
        ),
        bad="server.answer(batch_of_any_length)",
        good="torch._dynamo.maybe_mark_dynamic(x, 1)         # before the first call\n"
        "server.answer(pad(batch, to=bucket(batch)))  # or a few sizes, all warmed up",
        safety=(
            "Marks keep the values. Padding must not change the answer: mask the"
            " added values, and cut them off."
        ),
    ),
    _Row(
        "LT102",
        "FirstCompileUnderLoad",
        torch_pages.COMPILE_TIME,
        summary="The first requests wait for the first compilation.",
        why=(
            "torch.compile compiles in the first call. If that call is a request,"
            " it and those behind it wait, after every deployment."
        ),
        bad="model = torch.compile(model)\n"
        "server.start()                           # the first user waits for Inductor",
        good="for call in calls: model(*call)  # before the server takes requests\n"
        'model = torchproof.load("model.pack")    # or: compiled code from a pack\n'
        "model = torchproof.compile(model, wait=False)     # or: eager meanwhile",
        safety=(
            "The values are the same within rounding. With wait=False the first"
            " answers are eager's."
        ),
    ),
    _Row(
        "LT103",
        "CollectionUnderLoad",
        torch_pages.TUNING,
        summary="Python's garbage collector stops all threads while requests wait.",
        why=(
            "A collection of the oldest generation visits every object of the"
            " process, and a process with torch and a model has a million of them."
            " No thread runs Python code meanwhile."
        ),
        bad="warm_up(model)\n"
        "server.start()             # each full collection visits all of torch",
        good="warm_up(model)\n"
        "gc.collect()\n"
        "gc.freeze()                # collections skip what exists by now\n"
        "server.start()",
        safety=(
            "What is frozen is never collected: cycles among those objects stay"
            " in memory."
        ),
    ),
    _Row(
        "LT104",
        "RecordingUnderLoad",
        torch_pages.CUDAGRAPHS,
        summary="A CUDA graph is recorded while requests wait.",
        why=(
            "A recording is valid for one input size and for fixed addresses of"
            " parameters. A request that fits none warms up and records another"
            " graph, which takes hundreds of milliseconds."
        ),
        bad='step = torch.compile(model, mode="reduce-overhead")\n'
        "server.answer(batch_of_any_size)",
        good="for size in sizes: step(example(size))  # record all before serving\n"
        "server.answer(pad(batch, to=size))",
        safety=(
            "Padding must not change the answer: mask the added values, and cut"
            " them off."
        ),
    ),
    _Row(
        "LT106",
        "FallbackUnderLoad",
        torch_pages.COMPILE_TIME,
        summary="Requests wait for a compilation that fails or misses its deadline.",
        why=(
            "torchproof.compile waits for compiled code until the deadline, and"
            " answers eagerly afterwards. The request waits for both."
        ),
        bad="model = torchproof.compile(model, deadline_s=20)  # a request waits",
        good="model = torchproof.compile(model, wait=False)  # no request waits\n"
        'model = torchproof.load("model.pack")',
        safety="The values are the same within rounding.",
    ),
    _Row(
        "LT107",
        "AllocatorRetryUnderLoad",
        torch_pages.MEMORY,
        summary=(
            "The CUDA allocator runs out of memory, frees its cache and tries again."
        ),
        why=(
            "Freeing the cache waits for all kernels and gives every cached block"
            " back to the device. Later requests allocate them anew."
        ),
        bad="server = Server(model, max_batch=64)      # the largest batch just fits",
        good="server = Server(model, max_batch=48)\n"
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
        safety="The answers do not change.",
    ),
    _Row(
        "LT109",
        "KernelCompileUnderLoad",
        torch_pages.COMPILE_TIME,
        summary="A kernel is compiled or tuned in a request.",
        why=(
            "Triton compiles a kernel in its first call, and Inductor tunes some"
            " kernels in the first call for a size. The request waits, and those"
            " behind it."
        ),
        bad="server.start()\n"
        "server.answer(request)        # launches a Triton kernel for the first time",
        good="for call in calls: model(*call)\nserver.start()",
        safety="The values are the same.",
    ),
    _Row(
        "LT110",
        "BackgroundCompileUnderLoad",
        torch_pages.COMPILE_TIME,
        summary="Requests are slower while another thread compiles.",
        why=(
            "A compilation in the background takes turns with the requests on the"
            " GIL, and uses CPUs that they need. No request waits for it, but each"
            " takes longer."
        ),
        bad="model = torchproof.compile(model, wait=False)      # on two CPUs",
        good='model = torchproof.load("model.pack")              # nothing is compiled',
        safety="The values are the same within rounding.",
    ),
    _Row(
        "LT111",
        "CpuWaitUnderLoad",
        torch_pages.TUNING,
        summary="The thread that serves a request waits for a CPU.",
        why=(
            "If more threads are ready to run than there are CPUs, the kernel"
            " makes them take turns. Other processes, other workers, and the"
            " threads of torch's own operations compete."
        ),
        bad="torchproof loadtest TARGET --rate 100 --workers 8     # on two CPUs",
        good="OMP_NUM_THREADS=1 torchproof loadtest TARGET --rate 100 --workers 2",
        safety=(
            "The answers do not change, except for rounding with another number"
            " of threads."
        ),
    ),
)


class PlainLoad(Rule[PlainLoadGroup]):
    """The objective is missed because requests arrive faster than they are served.

    ## Why
    If the time of service times the rate comes near the number of workers, requests
    wait behind each other, without a stall. At 90% use the mean wait is several times
    the service.

    ## Bad
        torchproof loadtest TARGET --rate 100 --slo p99=50ms      # 9 ms per request

    ## Good
        torchproof loadtest TARGET --rate 100 --slo p99=50ms --find-rate

    ## Fix safety
    Nothing changes: it is a question of capacity. A faster strategy, batches, or more
    processes raise it.
    """

    code = "LT108"
    kind = "latency"
    parts = ("load",)
    reference = torch_pages.TUNING
    run_severity = "high"
    advice_text = (
        "serve at a lower rate per process (--find-rate finds the highest that meets"
        " the objective), use a faster strategy (torchproof bench), or answer requests"
        " in batches (--batch-window, --max-batch)"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[PlainLoadGroup]:
        for event in facts.of(PlainLoadEvent):
            yield PlainLoadGroup((event,), Place(None, None, None), facts)

    def message(self, group: PlainLoadGroup) -> str:
        result = group.first.result
        offered = result.offered_rate
        rate = f" at {offered:.3g} requests/s" if offered else ""
        return f"{result.strategy} misses the objective under plain load{rate}"

    def cause(self, group: PlainLoadGroup) -> str:
        result = group.first.result
        share = group.first.tail.load_share or 0.0
        used = utilisation(result, group.first.test.workers)
        busy = f"; the workers are busy {used:.0%} of the time" if used else ""
        return (
            f"{share:.0%} of the delay of slow requests of {result.strategy} comes from"
            f" usual times of service and from waiting behind them{busy}"
        )


def utilisation(result: LoadResult, workers: int) -> float | None:
    """The share of time in which a worker served requests."""
    requests = result.requests
    served = {
        (begin, end, worker)
        for begin, end, worker in zip(
            requests.begin_s, requests.end_s, requests.worker, strict=True
        )
        if begin is not None and end is not None
    }
    if not served or requests.output_tokens:  # a worker generates many texts at once
        return None
    whole = max(end for _, end, _ in served) - min(requests.arrival_s)
    return sum(end - begin for begin, end, _ in served) / (whole * workers)


RULES = (*(row.rule() for row in _CAUSES), PlainLoad)
