"""Records what can delay a request in this process, with begin, end and thread.

`StallRecorder` takes compilations, recordings of CUDA graphs and collections of garbage
from the hooks of `observe.timeline`. It adds kernels that Triton compiles, retries of
the CUDA allocator, fallbacks of `torchproof.compile`, threads that hold the GIL, and
waiting for a CPU (`heartbeat.py`). A request costs two writes to a dictionary; the
hooks run only when something happens, and the heartbeat 200 times a second.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Self, get_args

from torchproof.measure.loadtest.heartbeat import Heartbeat, Hold, why_blind
from torchproof.measure.loadtest.load_job import ServingReply
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.serving import Answer, serve
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.observe import (
    FailedGuard,
    find_recompile_causes,
    guard_failures,
    timeline,
)
from torchproof.records import Event, Frame, Stall, StallKind, plain_name, shown, whose

_SHORTEST_S = 0.0005  # what is shorter does not matter to a request
_MOST = 100_000  # spans, so that the record itself takes little memory
# The categories of spans that are stalls; most have the name of the kind of stall.
_CATEGORIES: Mapping[str, StallKind] = {
    **{kind: kind for kind in get_args(StallKind)},
    "cache": "cache_miss",
}
# The phases of torch that are stalls themselves.
_PHASES: Mapping[str, tuple[StallKind, str]] = {
    "inductor_compile": ("inductor", "Inductor compiles a graph"),
    "CachingAutotuner.slow_precompile_config": ("triton", "a kernel is compiled"),
    "CachingAutotuner.benchmark_all_configs": ("triton", "a kernel is tuned"),
    "CachingAutotuner.coordinate_descent_tuning": ("triton", "a kernel is tuned"),
}
# What cannot be seen without a feature of torch.
_SHOWN_BY: Mapping[str, tuple[StallKind, ...]] = {
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

    category: str
    name: str
    begin: float
    thread: str
    request: int | None
    background: bool  # the thread serves no requests
    end: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    place: Frame | None = None

    def surrounds(self, other: Span) -> bool:
        """Whether the other one begins meanwhile."""
        return self.begin <= other.begin <= (self.end or float("inf"))


class SpanRecorder(timeline.SpanWriter):
    """Keeps the spans of all threads in memory, with the request of each."""

    def __init__(self) -> None:
        super().__init__()
        self.serving: dict[int, int] = {}  # the request of each thread, by its ident
        self.names: dict[int, str] = {}  # of threads that have served a request
        self.spans: list[Span] = []
        self.unseen: dict[str, str] = {}  # why, by the kind of stall
        self.dropped = 0
        self._open: dict[int, Span] = {}

    def begin_request(self, number: int) -> None:
        ident = threading.get_ident()
        self.serving[ident] = number
        self.names.setdefault(ident, threading.current_thread().name)

    def end_request(self, number: int) -> None:
        self.serving.pop(threading.get_ident(), None)

    def add(self, category: str, name: str, begin: float, **more: Any) -> Span:
        """Adds a span of this thread, unless `more` says which."""
        ident = threading.get_ident()
        values: dict[str, Any] = {
            "thread": threading.current_thread().name,
            "request": self.serving.get(ident),
            "background": ident not in self.names,
        }
        span = Span(category, name, begin, **(values | more))
        if len(self.spans) < _MOST:
            self.spans.append(span)
        else:
            self.dropped += 1
        return span

    def missing(self, message: str, feature: str) -> None:
        self.unseen |= dict.fromkeys(_SHOWN_BY.get(feature, ()), message)

    def write(self, do: str, **values: Any) -> None:
        now = time.perf_counter()
        match do:
            case "begin" | "moment":
                end = now if do == "moment" else None
                details = values["details"]
                span = self.add(
                    values["category"], values["name"], now, end=end, details=details
                )
                if do == "begin":
                    self._open[values["id"]] = span
            case "describe" if values["id"] in self._open:
                span = self._open[values["id"]]
                span.name = values["name"]
                span.details = span.details | values["details"]
            case "end" if values["id"] in self._open:
                self._open.pop(values["id"]).end = now
            case "span":
                begin, end = values["begin"] / 1e9, values["end"] / 1e9
                place = _place_of_frame(sys._getframe(1))
                more = {"end": end, "details": values["details"], "place": place}
                self.add(values["category"], values["name"], begin, **more)


class StallRecorder:
    """A context manager around the serving of requests.

    `missing` has, for each kind of stall that cannot be seen here, why.
    """

    def __init__(self) -> None:
        self._recorder = SpanRecorder()
        self._hooks = contextlib.ExitStack()
        self._retries: int | None = None
        self._polled = 0.0
        self._missing: dict[str, str] = {}
        self._had_compiler = "torch._dynamo" in sys.modules
        self.begin_request = self._recorder.begin_request
        self.end_request = self._recorder.end_request

    def __enter__(self) -> Self:
        poll = self._poll if self._start_polling() else None
        self._heartbeat = heartbeat = Heartbeat(self._held, self._waited, poll)
        compiler = timeline.CompilerHooks(self._recorder, breaks=False)
        with contextlib.ExitStack() as hooks:
            compiler.install()
            hooks.callback(compiler.remove)
            hooks.enter_context(_kernels(self._recorder, self._missing))
            warnings = logging.Handler(logging.WARNING)
            warnings.emit = self._fell_back  # type: ignore[method-assign]
            logging.getLogger("torchproof").addHandler(warnings)
            hooks.callback(logging.getLogger("torchproof").removeHandler, warnings)
            if self._had_compiler:
                from torchproof.torch_private import frames

                hooks.enter_context(frames.watch_conversions(self._wait))
            heartbeat.start()
            hooks.callback(heartbeat.stop)
            self._hooks = hooks.pop_all()
        if why := why_blind():
            self._missing |= {"gil": why, "cpu": why}
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()
        if (failure := self._heartbeat.failure) is not None:
            why = f"watching threads ended early: {type(failure).__name__}: {failure}"
            self._missing |= {"gil": why, "cpu": why}
        if not self._had_compiler and "torch._dynamo" in sys.modules:
            self._missing["compile"] = "torch.compile was first used under load"
        if self._recorder.dropped:
            count = self._recorder.dropped
            self._missing["gc"] = f"{count} stalls were too many to keep"

    @property
    def missing(self) -> Mapping[str, str]:
        return self._recorder.unseen | self._missing

    def stalls(self, origin: float) -> tuple[Stall, ...]:
        """The stalls since `origin`; their times count from then.

        Of one that began earlier, the rest counts; one that lasts ends now.
        """
        now = time.perf_counter()
        spans = [s for s in self._recorder.spans if (s.end or now) > origin]
        _join_waits(spans)
        _mark_repeated(spans)
        guards = _guards(spans)
        stalls = [_stall(span, origin, now, guards.get(id(span))) for span in spans]
        return tuple(sorted(filter(None, stalls), key=lambda s: (s.begin_s, -s.end_s)))

    # -- sources -----------------------------------------------------------------------

    def _wait(self, convert: Callable[[], Any], code: CodeType) -> Any:
        """`torchproof.compile` answers for a frame; this thread waits meanwhile."""
        from torchproof.torch_private import frames

        begin, is_compiled = time.perf_counter(), False
        try:
            answer = convert()
            is_compiled = frames.is_compiled_code(answer)
            return answer
        finally:
            end = time.perf_counter()
            if end - begin >= _SHORTEST_S:  # most frames are skipped at once
                is_torch = whose(code.co_filename) == "torch"
                name = _UNNAMED if is_torch else plain_name(code.co_qualname)
                place = Frame(code.co_filename, code.co_firstlineno, name)
                more = {"end": end, "place": None if is_torch else place}
                details = {"compiled": is_compiled}
                self._recorder.add(_WAIT, name, begin, details=details, **more)

    def _held(self, hold: Hold) -> None:
        """Another thread held the GIL; which one is known if only one ran."""
        more: dict[str, Any] = {"thread": "", "request": None, "end": hold.end}
        more["details"] = {"threads": [each.name for each in hold.holders]}
        text = "a thread held the GIL"
        if len(hold.holders) == 1:
            [holder] = hold.holders
            text = f"thread {holder.name} held the GIL"
            more["thread"] = holder.name
            more["request"] = self._recorder.serving.get(holder.ident)
            more["place"] = _place_of_frame(holder.frame)
        self._recorder.add("gil", text, hold.begin, **more)

    def _waited(self, ident: int, seconds: float) -> None:
        """A thread waited for a CPU until about now; only requests matter."""
        request = self._recorder.serving.get(ident)
        if request is not None:
            now = time.perf_counter()
            self._recorder.add(
                "cpu",
                "the serving thread waited for a CPU",
                now - seconds,
                end=now,
                thread=self._recorder.names.get(ident, ""),
                request=request,
            )

    def _start_polling(self) -> bool:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return False
        self._retries = _allocator_retries(torch)
        self._polled = time.perf_counter()
        return True

    def _poll(self) -> None:
        """Torch counts the allocator's retries, and has no hook for one."""
        retries = _allocator_retries(sys.modules["torch"])
        now = time.perf_counter()
        if self._retries is not None and retries > self._retries:
            requests = list(self._recorder.serving.values())
            self._recorder.add(
                "allocator",
                "the CUDA allocator freed its cache and tried again",
                self._polled,
                end=now,
                thread="",
                request=requests[0] if len(requests) == 1 else None,
                details={"retries": retries - self._retries},
            )
        self._retries, self._polled = retries, now

    def _fell_back(self, record: logging.LogRecord) -> None:
        """`torchproof.compile` logs why it fell back, after the wait for it."""
        now, line = time.perf_counter(), record.getMessage()
        self._recorder.add("fallback", line, now, end=now, details={"why": line})


def _allocator_retries(torch: Any) -> int:
    return int(torch.cuda.memory_stats_as_nested_dict().get("num_alloc_retries", 0))


@contextlib.contextmanager
def _kernels(recorder: SpanRecorder, missing: dict[str, str]) -> Iterator[None]:
    """Triton calls one hook before it compiles a kernel, and one afterwards."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    knobs = getattr(importlib.import_module("triton"), "knobs", None)
    runtime: Any = getattr(knobs, "runtime", None)
    if not hasattr(runtime, "jit_post_compile_hook"):
        missing["triton"] = "Triton has no knobs.runtime.jit_post_compile_hook"
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


def serve_observed(
    answer: Answer, timetable: Timetable, log: RequestLog, **options: Any
) -> ServingReply:
    """Serves requests, and says what only this process knows about them."""
    with StallRecorder() as recorder:
        served = serve(answer, timetable, log, observer=recorder, **options)
    return ServingReply(
        errors=served.errors,
        stalls=recorder.stalls(served.origin),
        missing=recorder.missing,
    )


# -- from spans to stalls --------------------------------------------------------------


def _join_waits(spans: Sequence[Span]) -> None:
    """Makes compilations or fallbacks of the waits for `torchproof.compile`.

    A compilation in another thread during a wait is what the thread waited for. A line
    of the log after its begin says why it ended without one.
    """
    for wait in [span for span in spans if span.category == _WAIT]:
        compiled = [
            span
            for span in spans
            if span.category == "compile" and span.background and wait.surrounds(span)
        ]
        if wait.details.pop("compiled", False):
            wait.category = "compile"
            details = compiled[0].details if compiled else {}
            wait.details = {"function": wait.name} | details
        elif compiled:
            wait.category, wait.name = "fallback", f"{wait.name} runs eager"
    fallbacks = [span for span in spans if span.category == "fallback"]
    for wait, line in itertools.pairwise(sorted(fallbacks, key=lambda s: s.begin)):
        same = (wait.thread, wait.request) == (line.thread, line.request)
        if same and "why" in line.details and "why" not in wait.details:
            wait.details, wait.name = line.details, line.name
            line.category = _WAIT  # it is the same stall


def _mark_repeated(spans: Sequence[Span]) -> None:
    """Steps of `torchproof.graph` do not know of each other's recordings."""
    recordings = [span for span in spans if span.category == "cudagraph"]
    has_step = False
    for details in (span.details for span in recordings):
        is_step = details["how"] == "step"
        details["again"] = details["again"] or (is_step and has_step)
        repeated = details["again"] and not details["reasons"]
        details["new_shapes"] = is_step or repeated
        has_step |= is_step


def _guards(spans: Sequence[Span]) -> dict[int, guard_failures.Guard]:
    """The guard that caused each recompile, by the id of its span."""
    recompiles = [span for span in spans if span.details.get("failed_guards")]
    events = find_recompile_causes(
        Event(
            "recompile",
            compile_id=span.details.get("compile_id"),
            data={
                "failed_guards": [
                    FailedGuard(guard_failures.parse(reason))
                    for reason in span.details["failed_guards"]
                ]
            },
        )
        for span in recompiles
    )
    pairs = zip(recompiles, events, strict=True)
    return {id(span): event.data["guard"] for span, event in pairs}


def _stall(
    span: Span, origin: float, now: float, guard: guard_failures.Guard | None
) -> Stall | None:
    """The record of a span; None if it is too short to matter, or no stall."""
    end, name, details = span.end or now, span.name, dict(span.details)
    kind: StallKind | None = _CATEGORIES.get(span.category)
    if span.category == "phase":
        kind, name = _PHASES.get(details.get("torch_name", ""), (None, name))
    if kind is None:
        return None
    lasts = kind not in ("cache_miss", "fallback")
    if lasts and end - span.begin < _SHORTEST_S:
        return None
    place = span.place
    if place is None and details.get("place"):
        file, _, line = details["place"].rpartition(":")
        place = Frame(file, int(line), details["function"])
    if kind == "compile":
        name = _compilation(details, guard)
        if guard is not None:
            fields = ("cause", "source", "dim", "expected", "actual")
            details["guard"] = {each: getattr(guard, each) for each in fields}
    if span.background and kind != "gil":
        details["background"] = True
    return Stall(
        kind=kind,
        begin_s=max(0.0, span.begin - origin),
        end_s=end - origin,
        text=name,
        request=span.request,
        thread=span.thread or None,
        file=shown(place.file) if place else None,
        line=place.line if place else None,
        function=place.function if place else None,
        data=details,
    )


def _compilation(details: Mapping[str, Any], guard: guard_failures.Guard | None) -> str:
    function = details.get("function", _UNNAMED)
    if details.get("backward"):
        return f"compilation of the backward graph of {function}"
    if guard is None:
        return f"first compilation of {function}"
    return f"recompile of {function}: {guard_failures.what_changed(guard)}"
