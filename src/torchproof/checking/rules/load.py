"""LT1xx: what makes requests slow when a target is served under load.

The events are the causes that a load test measured, with the text and the remedy that
belong to the stalls themselves. The rules group them over strategies and phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
    message_text = (
        "{part.share:.0%} of the delay under {part.strategy}: {part.cause.text}"
    )
    cause_text = "{part.phase}, {part.requests}"
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


class RecompileUnderLoad(SlowRequests):
    """A request recompiles, and the requests behind it wait.

    ## Why
    A request whose inputs fail a guard is compiled for before it is answered. This
    takes seconds with Inductor, and every request that arrives meanwhile waits.

    ## Bad
        server.answer(batch_of_any_length)

    ## Good
        torch._dynamo.maybe_mark_dynamic(x, 1)         # before the first call
        server.answer(pad(batch, to=bucket(batch)))  # or a few sizes, all warmed up

    ## Fix safety
    Marks keep the values. Padding must not change the answer: mask the added values,
    and cut them off.
    """

    code = "LT101"
    reference = torch_pages.RECOMPILES


class FirstCompileUnderLoad(SlowRequests):
    """The first requests wait for the first compilation.

    ## Why
    torch.compile compiles in the first call. If that call is a request, it and those
    behind it wait, after every deployment.

    ## Bad
        model = torch.compile(model)
        server.start()                           # the first user waits for Inductor

    ## Good
        for call in calls: model(*call)  # before the server takes requests
        model = torchproof.load("model.pack")    # or: compiled code from a pack
        model = torchproof.compile(model, wait=False)     # or: eager meanwhile

    ## Fix safety
    The values are the same within rounding. With wait=False the first answers are
    eager's.
    """

    code = "LT102"


class CollectionUnderLoad(SlowRequests):
    """Python's garbage collector stops all threads while requests wait.

    ## Why
    A collection of the oldest generation visits every object of the process, and a
    process with torch and a model has a million of them. No thread runs Python code
    meanwhile.

    ## Bad
        warm_up(model)
        server.start()             # each full collection visits all of torch

    ## Good
        warm_up(model)
        gc.collect()
        gc.freeze()                # collections skip what exists by now
        server.start()

    ## Fix safety
    What is frozen is never collected: cycles among those objects stay in memory.
    """

    code = "LT103"
    reference = torch_pages.TUNING


class RecordingUnderLoad(SlowRequests):
    """A CUDA graph is recorded while requests wait.

    ## Why
    A recording is valid for one input size and for fixed addresses of parameters. A
    request that fits none warms up and records another graph, which takes hundreds of
    milliseconds.

    ## Bad
        step = torch.compile(model, mode="reduce-overhead")
        server.answer(batch_of_any_size)

    ## Good
        for size in sizes: step(example(size))  # record all before serving
        server.answer(pad(batch, to=size))

    ## Fix safety
    Padding must not change the answer: mask the added values, and cut them off.
    """

    code = "LT104"
    reference = torch_pages.CUDAGRAPHS


class FallbackUnderLoad(SlowRequests):
    """Requests wait for a compilation that fails or misses its deadline.

    ## Why
    torchproof.compile waits for compiled code until the deadline, and answers eagerly
    afterwards. The request waits for both.

    ## Bad
        model = torchproof.compile(model, deadline_s=20)  # a request waits

    ## Good
        model = torchproof.compile(model, wait=False)  # no request waits
        model = torchproof.load("model.pack")

    ## Fix safety
    The values are the same within rounding.
    """

    code = "LT106"


class AllocatorRetryUnderLoad(SlowRequests):
    """The CUDA allocator runs out of memory, frees its cache and tries again.

    ## Why
    Freeing the cache waits for all kernels and gives every cached block back to the
    device. Later requests allocate them anew.

    ## Bad
        server = Server(model, max_batch=64)      # the largest batch just fits

    ## Good
        server = Server(model, max_batch=48)
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

    ## Fix safety
    The answers do not change.
    """

    code = "LT107"
    reference = torch_pages.MEMORY


class KernelCompileUnderLoad(SlowRequests):
    """A kernel is compiled or tuned in a request.

    ## Why
    Triton compiles a kernel in its first call, and Inductor tunes some kernels in the
    first call for a size. The request waits, and those behind it.

    ## Bad
        server.start()
        server.answer(request)        # launches a Triton kernel for the first time

    ## Good
        for call in calls: model(*call)
        server.start()

    ## Fix safety
    The values are the same.
    """

    code = "LT109"


class BackgroundCompileUnderLoad(SlowRequests):
    """Requests are slower while another thread compiles.

    ## Why
    A compilation in the background takes turns with the requests on the GIL, and uses
    CPUs that they need. No request waits for it, but each takes longer.

    ## Bad
        model = torchproof.compile(model, wait=False)      # on two CPUs

    ## Good
        model = torchproof.load("model.pack")              # nothing is compiled

    ## Fix safety
    The values are the same within rounding.
    """

    code = "LT110"


class CpuWaitUnderLoad(SlowRequests):
    """The thread that serves a request waits for a CPU.

    ## Why
    If more threads are ready to run than there are CPUs, the kernel makes them take
    turns. Other processes, other workers, and the threads of torch's own operations
    compete.

    ## Bad
        torchproof loadtest TARGET --rate 100 --workers 8     # on two CPUs

    ## Good
        OMP_NUM_THREADS=1 torchproof loadtest TARGET --rate 100 --workers 2

    ## Fix safety
    The answers do not change, except for rounding with another number of threads.
    """

    code = "LT111"
    reference = torch_pages.TUNING


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
    message_text = "{result.strategy} misses the objective under plain load{rate}"
    cause_text = (
        "{load:.0%} of the delay of slow requests comes from usual times of service and"
        " from waiting behind them{busy}"
    )
    advice_text = (
        "serve at a lower rate: --find-rate finds the highest that meets the objective"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[PlainLoadGroup]:
        for event in facts.of(PlainLoadEvent):
            yield PlainLoadGroup((event,), Place(None, None, None), facts)

    def words(self, group: PlainLoadGroup) -> dict[str, object]:
        event = group.first
        rate = event.result.offered_rate
        used = utilisation(event.result, event.test.workers)
        return {
            "result": event.result,
            "rate": f" at {rate:.3g} requests/s" if rate else "",
            "load": event.tail.load_share or 0.0,
            "busy": f"; the workers are busy {used:.0%} of the time" if used else "",
        }


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
