"""Records what can delay a request in this process, with begin, end and thread.

`StallRecorder` takes compilations, recordings of CUDA graphs and collections of garbage
from the hooks of `observe.timeline`. It adds kernels that Triton compiles, retries of
the CUDA allocator, fallbacks of `torchproof.compile`, and waiting for a CPU, which the
kernel counts. The request in which something happened follows from its thread and
time, in the log of requests.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Self, cast

import numpy as np

from torchproof.measure.loadtest.load_job import ServingReply
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.serving import Answer, serve, thread_of
from torchproof.observe import causes_of, guard_failures, timeline
from torchproof.records import (
    FailedGuard,
    Frame,
    JsonObject,
    RecompileEvent,
    Stall,
    StallKind,
    plain_name,
    shown,
    what_changed,
    whose,
)

_SHORTEST_S = 0.0005  # what is shorter does not matter to a request
_SHORTEST_CPU_WAIT_S = 0.001
_POLL_S = 0.02  # of the counters of the CUDA allocator
_MOST = 100_000  # spans, so that the record itself takes little memory
# Categories of the timeline that are no kinds of stalls; some phases of torch are.
_CACHE, _PHASE = "cache", "phase"
_PHASES: Mapping[str, tuple[str, str]] = {
    "inductor_compile": ("inductor", "Inductor compiles a graph"),
    "CachingAutotuner.slow_precompile_config": ("triton", "a kernel is compiled"),
    "CachingAutotuner.benchmark_all_configs": ("triton", "a kernel is tuned"),
    "CachingAutotuner.coordinate_descent_tuning": ("triton", "a kernel is tuned"),
}
# What cannot be seen without a feature of torch.
_SHOWN_BY: Mapping[str, tuple[str, ...]] = {
    "compiles under load": ("compile",),
    "compile events under load": ("compile", "inductor", "triton", "cache_miss"),
    "recordings under load": ("cudagraph",),
}
_UNNAMED = "the compiled callable"  # its code is torch's own
_WAIT = "wait"  # for `torchproof.compile`, which compiles in another thread


def _place_of_frame(frame: FrameType | None) -> Frame | None:
    """The innermost line outside of torch, torchproof and the standard library."""
    while frame is not None:
        code = frame.f_code
        if whose(code.co_filename) in {"user", "library"}:
            name = plain_name(code.co_qualname)
            return Frame(code.co_filename, frame.f_lineno or 0, name)
        frame = frame.f_back
    return None


@dataclass
class Span:
    """Something that happened in a thread; `end` is None until it has ended."""

    kind: str  # of a stall, or `_WAIT`
    text: str
    begin: float
    thread: str
    end: float | None = None
    data: JsonObject = field(default_factory=dict)
    place: Frame | None = None
    # Known when the requests are.
    request: int | None = None
    background: bool = False  # the thread serves no requests


class _Services:
    """The services of each worker's thread, in order of time."""

    def __init__(self, log: RequestLog) -> None:
        begin, end, worker = map(np.array, (log.begin, log.end, log.worker))
        served = np.flatnonzero(~np.isnan(end))
        served = served[np.argsort(begin[served], kind="stable")]
        self._of = {}
        for each in np.unique(worker[served]).tolist():
            numbers = served[worker[served] == each]
            times = begin[numbers] + log.origin, end[numbers] + log.origin
            self._of[thread_of(each)] = numbers, *times

    def join(self, span: Span, now: float) -> None:
        """Notes during which request a span ended; of a batch, the first."""
        # Nobody knows in which thread the allocator tried again.
        threads = [*self._of] if span.kind == "allocator" else [span.thread]
        moment = now if span.end is None else span.end
        found = {self._at(thread, moment) for thread in threads} - {None}
        span.request = found.pop() if len(found) == 1 else None
        span.background = span.thread not in self._of

    def _at(self, thread: str, moment: float) -> int | None:
        if thread not in self._of:
            return None
        numbers, begin, end = self._of[thread]
        after = np.searchsorted(begin, moment, side="right")
        if not after or end[after - 1] < moment:
            return None
        return int(numbers[np.searchsorted(begin, begin[after - 1])])


class StallRecorder(timeline.SpanWriter):
    """A context manager around the serving of requests, which keeps spans in memory.

    `unseen` has, for each kind of stall that cannot be seen here, why.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unseen: dict[str, str] = {}
        self._spans: list[Span] = []
        self._open: dict[int, Span] = {}
        self._dropped = 0
        self._has_step = False
        self._hooks = contextlib.ExitStack()
        self._had_compiler = "torch._dynamo" in sys.modules

    def __enter__(self) -> Self:
        compiler = timeline.CompilerHooks(self, breaks=False)
        with contextlib.ExitStack() as hooks:
            compiler.install()
            hooks.callback(compiler.remove)
            hooks.enter_context(_kernels(self))
            hooks.enter_context(_allocator_polls(self))
            warnings = logging.Handler(logging.WARNING)
            warnings.emit = self._fell_back  # type: ignore[method-assign]
            logging.getLogger("torchproof").addHandler(warnings)
            hooks.callback(logging.getLogger("torchproof").removeHandler, warnings)
            if self._had_compiler:
                from torchproof.torch_private import frames

                hooks.enter_context(frames.watch_conversions(self._wait))
            self._hooks = hooks.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()
        if not self._had_compiler and "torch._dynamo" in sys.modules:
            self.unseen["compile"] = "torch.compile was first used under load"
        if self._dropped:
            self.unseen["gc"] = f"{self._dropped} stalls were too many to keep"

    def watching(self, answer: Answer) -> Answer:
        """Answers, and notes how long the thread waited for a CPU meanwhile."""
        if _cpu_wait_s() is None:
            self.unseen["cpu"] = "the kernel does not count how threads are scheduled"
            return answer

        def watched(numbers: Sequence[int]) -> None:
            before = _cpu_wait_s() or 0.0
            try:
                answer(numbers)
            finally:
                waited, now = (_cpu_wait_s() or 0.0) - before, time.perf_counter()
                if waited >= _SHORTEST_CPU_WAIT_S:
                    text = "the serving thread waited for a CPU"
                    self.add("cpu", text, now - waited, end=now)

        return watched

    def stalls(self, log: RequestLog) -> tuple[Stall, ...]:
        """The stalls during a test; their times count from its start.

        Of one that began earlier, the rest counts; one that lasts ends now.
        """
        now, services = time.perf_counter(), _Services(log)
        spans = [s for s in self._spans if (s.end or now) > log.origin]
        for span in spans:
            services.join(span, now)
        _join_waits(spans)
        _name_compilations(spans)
        stalls = (_stall(span, log.origin, now) for span in spans)
        return tuple(sorted(filter(None, stalls), key=lambda s: (s.begin_s, -s.end_s)))

    # -- sources -----------------------------------------------------------------------

    def missing(self, message: str, feature: str) -> None:
        self.unseen |= dict.fromkeys(_SHOWN_BY.get(feature, ()), message)

    def write(self, do: str, **values: Any) -> None:
        """What the hooks of the timeline report."""
        now, span = time.perf_counter(), self._open.get(values.get("id", -1))
        match do:
            case "begin":
                if added := self._add_reported(values, now):
                    self._open[values["id"]] = added
            case "moment":
                self._add_reported(values, now, end=now)
            case "span":
                place = _place_of_frame(sys._getframe(1))
                begin, end = values["begin"] / 1e9, values["end"] / 1e9
                self._add_reported(values, begin, end=end, place=place)
            case "describe" if span is not None:
                span.data = span.data | values["details"]
            case "end" if span is not None:
                self._open.pop(values["id"]).end = now

    def _add_reported(
        self, values: JsonObject, begin: float, **more: Any
    ) -> Span | None:
        kind, text, data = values["category"], values["name"], values["details"]
        if kind == _PHASE:
            if data["torch_name"] not in _PHASES:
                return None
            kind, text = _PHASES[data["torch_name"]]
        if kind == "cudagraph":
            # Steps of `torchproof.graph` do not know of each other's recordings.
            is_step = data["how"] == "step"
            again = data["again"] or (is_step and self._has_step)
            new_shapes = is_step or (again and not data["reasons"])
            data = data | {"again": again, "new_shapes": new_shapes}
            self._has_step |= is_step
        kind = "cache_miss" if kind == _CACHE else kind
        return self.add(kind, text, begin, data=data, **more)

    def add(
        self, kind: str, text: str, begin: float, thread: str | None = None, **more: Any
    ) -> Span:
        """Adds a span of this thread, or of another one."""
        thread = threading.current_thread().name if thread is None else thread
        span = Span(kind, text, begin, thread, **more)
        if len(self._spans) < _MOST:
            self._spans.append(span)
        else:
            self._dropped += 1
        return span

    def _wait(self, convert: Callable[[], Any], code: CodeType) -> Any:
        """`torchproof.compile` answers for a frame; this thread waits meanwhile."""
        begin = time.perf_counter()
        try:
            return convert()
        finally:
            end = time.perf_counter()
            if end - begin >= _SHORTEST_S:  # most frames are skipped at once
                self.add(_WAIT, plain_name(code.co_qualname), begin, end=end)

    def _fell_back(self, record: logging.LogRecord) -> None:
        """`torchproof.compile` logs why it fell back, after the wait for it."""
        now, line = time.perf_counter(), record.getMessage()
        self.add("fallback", line, now, end=now, data={"why": line})


def _cpu_wait_s() -> float | None:
    """How long this thread has waited for a CPU so far; None if nobody counts."""
    try:
        with open("/proc/thread-self/schedstat", "rb", 0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


@contextlib.contextmanager
def _allocator_polls(recorder: StallRecorder) -> Iterator[None]:
    """Torch counts the retries of the CUDA allocator, and has no hook for one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        yield
        return

    def count() -> int:
        stats = torch.cuda.memory_stats_as_nested_dict()
        return int(stats.get("num_alloc_retries", 0))

    def poll() -> None:
        before, begin = count(), time.perf_counter()
        while not stopping.wait(_POLL_S):
            retries, now = count(), time.perf_counter()
            if retries > before:
                text = "the CUDA allocator freed its cache and tried again"
                data = {"retries": retries - before}
                recorder.add("allocator", text, begin, "", end=now, data=data)
            before, begin = retries, now

    stopping = threading.Event()
    thread = threading.Thread(target=poll, name="torchproof-allocator", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@contextlib.contextmanager
def _kernels(recorder: StallRecorder) -> Iterator[None]:
    """Triton calls one hook before it compiles a kernel, and one afterwards."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    knobs = getattr(importlib.import_module("triton"), "knobs", None)
    runtime: Any = getattr(knobs, "runtime", None)
    if not hasattr(runtime, "jit_post_compile_hook"):
        recorder.unseen["triton"] = "Triton has no knobs.runtime.jit_post_compile_hook"
        yield
        return
    local = threading.local()
    before, after = runtime.jit_cache_hook, runtime.jit_post_compile_hook

    def begin(**details: Any) -> Any:
        name = getattr(details.get("fn"), "name", "a kernel")
        local.number = recorder.begin(f"Triton compiles {name}", "triton")
        return before(**details) if before is not None else False

    def end(**details: Any) -> Any:
        if (number := local.__dict__.pop("number", None)) is not None:
            recorder.end(number)
        return after(**details) if after is not None else None

    runtime.jit_cache_hook, runtime.jit_post_compile_hook = begin, end
    try:
        yield
    finally:
        runtime.jit_cache_hook, runtime.jit_post_compile_hook = before, after


def serve_observed(answer: Answer, log: RequestLog, **options: Any) -> ServingReply:
    """Serves requests, and says what only this process knows about them."""
    with StallRecorder() as recorder:
        errors = serve(recorder.watching(answer), log, **options)
    return ServingReply(errors, recorder.stalls(log), recorder.unseen)


# -- from spans to stalls --------------------------------------------------------------


def _join_waits(spans: Sequence[Span]) -> None:
    """Makes compilations or fallbacks of the waits for `torchproof.compile`.

    A compilation that began in another thread during a wait is what was waited for. If
    the log then says that the model runs eager, the wait was in vain.
    """
    behind = [span for span in spans if span.kind == "compile" and span.background]
    waits = []
    for wait in [span for span in spans if span.kind == _WAIT]:
        until = wait.end or math.inf
        for span in behind:
            if wait.begin <= span.begin <= until:
                wait.kind, wait.data = "compile", span.data
                waits.append(wait)
                break
    for line in [span for span in spans if span.kind == "fallback"]:
        same = [
            w for w in waits if (w.thread, w.request) == (line.thread, line.request)
        ]
        before = [w for w in same if w.kind == "compile" and w.begin <= line.begin]
        if before:
            before[-1].kind, before[-1].text = line.kind, line.text
            before[-1].data, line.kind = line.data, _WAIT  # they are the same stall


def _name_compilations(spans: Sequence[Span]) -> None:
    """Adds the guard that caused a recompile."""
    compiles = [span for span in spans if span.kind == "compile"]
    for span in compiles:
        what = "compilation of the backward graph of"
        what = what if span.data.get("backward") else "first compilation of"
        span.text = f"{what} {span.data.get('function', _UNNAMED)}"
    recompiles = [span for span in compiles if span.data.get("failed_guards")]
    causes = causes_of(
        RecompileEvent(
            compile_id=span.data.get("compile_id"),
            failed_guards=tuple(
                FailedGuard(guard_failures.parse(reason))
                for reason in span.data["failed_guards"]
            ),
        )
        for span in recompiles
    )
    for span, cause in zip(recompiles, causes, strict=True):
        guard, function = cause.guard, span.data.get("function", _UNNAMED)
        changed = what_changed(guard)
        span.text = f"recompile of {function}: {changed}"
        fields = ("cause", "source", "dim", "expected", "actual")
        known = {each: getattr(guard, each) for each in fields}
        span.data["guard"] = {**known, "changed": changed, "compiled": function}


def _stall(span: Span, origin: float, now: float) -> Stall | None:
    """The record of a span; None if it is too short to matter, or no stall."""
    end, data, place = span.end or now, dict(span.data), span.place
    lasts = span.kind not in ("cache_miss", "fallback")
    if span.kind == _WAIT or (lasts and end - span.begin < _SHORTEST_S):
        return None
    if place is None and data.get("place"):
        file, _, line = data["place"].rpartition(":")
        place = Frame(file, int(line), data["function"])
    if span.background:
        data["background"] = True
    return Stall(
        kind=cast("StallKind", span.kind),
        begin_s=max(0.0, span.begin - origin),
        end_s=end - origin,
        text=span.text,
        request=span.request,
        thread=span.thread or None,
        file=shown(place.file) if place else None,
        line=place.line if place else None,
        function=place.function if place else None,
        data=data,
    )
