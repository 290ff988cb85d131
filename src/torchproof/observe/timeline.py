"""Records what this process compiles and calls, for `--trace`.

`start` does nothing unless the parent asks for a timeline with an environment variable.
Then the hooks of torch are installed as its modules are imported, and each event is
written at once to the file of this process.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchproof.observe import guard_failures, trace_log
from torchproof.records import (
    Frame,
    JsonObject,
    MissingHook,
    definition,
    is_resumed,
    one_line,
    plain_name,
    timeline,
    user_frame,
    what_changed,
    whose,
)
from torchproof.targets import name_of, script

# Names of functions around others, which tell nobody what is being compiled.
WRAPPING = {"inner", "wrapper", "wrapped", "wrapped_fn", "wrapped_func"}
CALLS_KEPT = 200  # of one command of a worker: timed loops make thousands
_WHOLE_COMPILE = "entire_frame_compile"
_BACKWARD = "entire_backward_compile"
_ATTEMPT = "compile_attempt_"  # Dynamo begins again after a graph break
_BREAK = "dynamo_graph_break_reason"
_SHORTEST_GC_NS = 1_000_000  # most collections of the young generation are shorter
_DYNAMO = "dynamo"  # surrounds the compilation of a frame, and says nothing more
_TREES = "torch._inductor.cudagraph_trees"
_UNNAMED = "a callable"  # its code is torch's own
# What the phases are that torch names after its functions.
_PHASES = {
    "bytecode_tracing": "tracing",
    "backend_compile": "backend",
    "insert_deferred_runtime_asserts": "runtime assertions",
    "create_aot_dispatcher_function": "AOTAutograd",
    "aot_collect_metadata": "AOTAutograd: metadata",
    "aot_trace_joint_graph": "AOTAutograd: joint graph",
    "min_cut_rematerialization_partition": "AOTAutograd: partitioning",
    "compile_fx.<locals>.fw_compiler_base": "forward graph",
    "compile_fx.<locals>.bw_compiler": "backward graph",
    "inductor_compile": "Inductor",
    "fx_codegen_and_compile": "Inductor: one graph",
    "_recursive_pre_grad_passes": "Inductor: passes before autograd",
    "_recursive_joint_graph_passes": "Inductor: joint graph passes",
    "_recursive_post_grad_passes": "Inductor: passes after autograd",
    "GraphLowering.run": "Inductor: lowering",
    "GraphLowering.compile_to_fn": "Inductor: from graph to function",
    "GraphLowering.codegen": "Inductor: wrapper and kernels",
    "PyCodeCache.load_by_key_path": "loading the generated code",
    "inductor_codecache_torch_key": "hash of torch's source",
    "Scheduler.__init__": "Inductor: scheduling",
    "Scheduler.codegen": "Inductor: kernels",
    "code_gen": "Inductor: code generation",
    "async_compile.wait": "waiting for kernels",
    "compile_file": "C++ compiler",
    "build_guards": "guards",
    "gc": "garbage collection after compiling",
    "CachingAutotuner.slow_precompile_config": "Triton compiler",
    "CachingAutotuner.benchmark_all_configs": "autotuning",
    "CachingAutotuner.coordinate_descent_tuning": "autotuning",
}
_MISSES = {
    "fx_graph_cache_miss": "not in Inductor's cache",
    "autograd_cache_miss": "not in AOTAutograd's cache",
}

_current: Recorder | None = None


def current() -> Recorder | None:
    """The recorder of this process; None if nobody asked for a timeline."""
    return _current


def start(name: str) -> Recorder | None:
    """Begins the timeline of this process; `name` says what the process does."""
    global _current
    folder = os.environ.get(timeline.VARIABLE)
    if not folder:
        return None
    if _current is None or _current.pid != os.getpid():
        _current = Recorder(Path(folder))
        CompilerHooks(_current).install()
        _current.describe_process(name)
    else:
        _current.describe_process(name)
    return _current


class SpanWriter:
    """Spans and moments of this process; any thread may call it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._local = threading.local()

    def write(self, do: str, **values: Any) -> None:
        """Takes one entry: a `begin`, `describe`, `end`, `span` or `moment`."""
        raise NotImplementedError

    def missing(self, message: str, feature: str) -> None:
        """Torch does not have the hooks of a feature."""
        raise NotImplementedError

    def begin(self, name: str, category: str, **details: Any) -> int:
        number = next(self._numbers)
        self._open_numbers().append(number)
        words = {"track": _track(), "name": name, "category": category}
        self.write("begin", id=number, **words, details=details)
        return number

    def describe(self, number: int, name: str, **details: Any) -> None:
        """Renames a span that has begun, and adds details."""
        self.write("describe", id=number, name=name, details=details)

    def end(self, number: int) -> None:
        """Ends a span, and those within it that have not ended."""
        numbers = self._open_numbers()
        while number in numbers:
            self.write("end", id=numbers.pop())

    @contextlib.contextmanager
    def span(self, name: str, category: str, **details: Any) -> Iterator[None]:
        number = self.begin(name, category, **details)
        try:
            yield
        finally:
            self.end(number)

    def happened(self, name: str, category: str, **details: Any) -> None:
        words = {"track": _track(), "name": name, "category": category}
        self.write("moment", **words, details=details)

    def lasted(
        self,
        name: str,
        category: str,
        times: tuple[int, int],
        *,
        track: str | None = None,
        **details: Any,
    ) -> None:
        """Writes a span after it has ended; `times` are its begin and end."""
        words = {"track": track or _track(), "name": name, "category": category}
        self.write("span", **words, begin=times[0], end=times[1], details=details)

    def _open_numbers(self) -> list[int]:
        numbers: list[int] = self._local.__dict__.setdefault("open", [])
        return numbers


class Recorder(SpanWriter):
    """Writes to the file of this process, at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.pid = os.getpid()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(timeline.file_of(folder, self.pid), flags, 0o600)
        self._identity = self._file_identity()

    def describe_process(self, name: str) -> None:
        self.write("process", name=name)

    def missing(self, message: str, feature: str) -> None:
        self.write("missing", message=message)

    def write(self, do: str, **values: Any) -> None:
        if os.getpid() != self.pid:  # a fork of the target
            return
        line = {"do": do, "ns": time.monotonic_ns(), **values}
        text = json.dumps(line, separators=(",", ":"), default=str)
        with contextlib.suppress(OSError):  # a full disk must not fail the target
            # A target that closes all files may open its own under the same number.
            if self._file_identity() == self._identity:
                os.write(self._file, text.encode("utf-8", "backslashreplace") + b"\n")

    def _file_identity(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_dev, status.st_ino


class CallTimes:
    """The calls of a timed loop, kept in memory while it runs."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, int, int]] = []
        self._count = 0

    def add(self, index: int, begin_ns: int) -> None:
        self._count += 1
        if len(self._calls) < CALLS_KEPT:
            self._calls.append((index, begin_ns, time.monotonic_ns()))

    def write(self, recorder: Recorder) -> dict[str, int]:
        """Writes the calls; returns how many there were and how many are shown."""
        calls, count = self._calls, self._count
        self._calls, self._count = [], 0
        for index, begin, end in calls:
            recorder.lasted(f"call {index + 1}", "call", (begin, end))
        return {"calls": count, "calls_shown": len(calls)} if count else {}


class CompilerHooks:
    """Installs the hooks as the modules of torch are imported.

    They stay until the process ends, or until `remove`. Without `breaks`, graph breaks
    are not recorded, and modules that are imported later are not watched.
    """

    def __init__(self, recorder: SpanWriter, *, breaks: bool = True) -> None:
        self._recorder = recorder
        self._breaks = breaks
        self._hooks = contextlib.ExitStack()
        self._local = threading.local()
        self._frames: dict[str | None, JsonObject] = {}  # words by compile id

    def install(self) -> None:
        gc.callbacks.append(self._collect)
        for module, act in (
            ("torch", self._install_steps),
            ("torch._dynamo", self._install_dynamo),
            (_TREES, self._install_trees),
        ):
            if module in sys.modules:
                act()
            elif self._breaks:
                script.when_imported(module, act)
            elif module == _TREES and _may_record():
                act()  # it imports the module

    def remove(self) -> None:
        gc.callbacks.remove(self._collect)
        self._hooks.close()

    def _install_dynamo(self) -> None:
        from torchproof.torch_private import (
            compile_events,
            frame_callbacks,
            recompiles,
            trace_records,
        )

        enter = self._hooks.enter_context
        if self._breaks and self._has("trace"):
            enter(trace_records(self._receive))
        if self._has("compiles under load"):
            enter(frame_callbacks(self._convert))
            enter(recompiles.reasons(self._failed))
        if self._has("compile events under load"):
            enter(compile_events.compile_events(self))

    def _install_steps(self) -> None:
        from torchproof.torch_private import recording_times

        self._hooks.enter_context(recording_times.step_recordings(self._recording))

    def _install_trees(self) -> None:
        from torchproof.torch_private import recording_times

        if self._has("recordings under load"):
            self._hooks.enter_context(recording_times.tree_recordings(self._recording))

    def _has(self, feature: str) -> bool:
        from torchproof.torch_private import contract

        try:
            contract.require(feature)
        except MissingHook as error:
            self._recorder.missing(str(error), feature)
            return False
        return True

    # -- compilations ------------------------------------------------------------------

    def _convert(self, convert: Callable[[], Any], request: Any) -> Any:
        """Notes which function Dynamo is asked for; most are not compiled at all."""
        local = self._local.__dict__
        before = {name: local.get(name) for name in ("code", "callable", "reasons")}
        called = _callable_of(request.frame)
        local.update(code=request.frame.f_code, callable=called, reasons=None)
        try:
            return convert()
        finally:
            local.update(before)

    def _failed(self, reasons: list[str]) -> None:
        """A recompile: torch looks for its reasons before or after the phase begins."""
        self._local.reasons = list(reasons)
        if compiling := self._compiling():
            self._recorder.describe(compiling[-1], **self._words(None))

    def phase_began(self, name: str, compile_id: str | None) -> None:
        words: JsonObject = {"name": _phase(name), "torch_name": name}
        category = "phase"
        if name == _DYNAMO:
            return
        if name == _WHOLE_COMPILE:
            words, category = self._words(compile_id), "compile"
            self._frames[compile_id] = words
        elif name == _BACKWARD:
            words, category = self._backward_words(compile_id), "compile"
        if compile_id is not None:
            words["compile_id"] = compile_id
        number = self._recorder.begin(category=category, **words)
        self._phases().append((name, number))
        if name == _WHOLE_COMPILE:
            self._compiling().append(number)

    def phase_ended(self, name: str) -> None:
        phases = self._phases()
        while name in [began for began, _ in phases]:  # torch drops some after an error
            began, number = phases.pop()
            self._recorder.end(number)
            if began == _WHOLE_COMPILE:
                self._compiling().pop()
            if began == name:
                return

    def happened(self, name: str) -> None:
        if name in _MISSES:
            self._recorder.happened(_MISSES[name], "cache", torch_name=name)

    def _words(self, compile_id: str | None) -> JsonObject:
        """The name of a compilation, and its function, place and reasons."""
        code: Any = self._local.__dict__.get("code")
        reasons: Sequence[str] = self._local.__dict__.get("reasons") or ()
        if compile_id is not None:
            self._local.compile_id = compile_id
        compile_id = self._local.__dict__.get("compile_id")
        own = code is not None and whose(code.co_filename) != "torch"
        called = self._local.__dict__.get("callable")
        function = called or (plain_name(code.co_qualname) if own else _UNNAMED)
        words: JsonObject = {"function": function}
        if own:
            place = Frame(code.co_filename, code.co_firstlineno, code.co_name)
            words["place"] = f"{place.file}:{definition(place).line}"
            if is_resumed(code.co_name):
                words["after_break"] = True
        what = "compile"
        why = ""
        if reasons:
            what = "recompile"
            changed = what_changed(guard_failures.parse(reasons[0]))
            why, words["reason"] = f": {changed}", changed
            words["failed_guards"] = [one_line(each) for each in reasons]
        return {"name": f"{what} {function} [{compile_id}]{why}", **words}

    def _backward_words(self, compile_id: str | None) -> JsonObject:
        """Its forward graph was compiled under the same id, unless it was cached."""
        words: JsonObject = {"backward": True}
        what = "a backward graph"
        if forward := self._frames.get(compile_id):
            words |= {k: v for k, v in forward.items() if k in ("function", "place")}
            what = f"the backward graph of {words['function']}"
        return {"name": f"compile {what} [{compile_id}]", **words}

    def _phases(self) -> list[tuple[str, int]]:
        phases: list[tuple[str, int]] = self._local.__dict__.setdefault("phases", [])
        return phases

    def _compiling(self) -> list[int]:
        numbers: list[int] = self._local.__dict__.setdefault("compiling", [])
        return numbers

    # -- breaks ------------------------------------------------------------------------

    def _receive(self, metadata: JsonObject, payload: str) -> None:
        artifact = metadata.get("artifact")
        if not isinstance(artifact, Mapping) or artifact.get("name") != _BREAK:
            return
        reason, frames = trace_log.read_break(payload)
        frame = user_frame(frames)
        details = {
            "explanation": reason.explanation,
            "place": f"{frame.file}:{frame.line}" if frame else None,
            "line": frame.code if frame else None,
            "gb_id": reason.gb_id,
        }
        known = {name: value for name, value in details.items() if value}
        self._recorder.happened(f"graph break: {reason.type}", "break", **known)

    # -- CUDA graphs, garbage ----------------------------------------------------------

    def _recording(self, begin: Any) -> Any:
        shapes = " and ".join(begin.shapes) or "no tensors"
        how = {"step": "recording of a step", "recording": "recording"}
        text = f"CUDA graph: {how.get(begin.how, begin.how)} for {shapes}"
        return self._recorder.span(
            text,
            "cudagraph",
            how=begin.how,
            shapes=list(begin.shapes),
            again=begin.again,
            reasons=list(begin.reasons),
            compile_id=begin.compile_id,
        )

    def _collect(self, phase: str, facts: Mapping[str, int]) -> None:
        """Called by the collector before and after each collection, in its thread."""
        now = time.monotonic_ns()
        began = self._local.__dict__
        if phase == "start":
            began["gc"] = now
        elif now - began.get("gc", now) >= _SHORTEST_GC_NS:
            name = f"garbage collection, generation {facts['generation']}"
            details: JsonObject = dict(facts)
            self._recorder.lasted(name, "gc", (began["gc"], now), **details)


def _callable_of(frame: Any) -> str | None:
    """What torch's own function or a wrapper of a library calls: `Sequential`."""
    code = frame.f_code
    owner = whose(code.co_filename)
    if owner != "torch" and (owner != "library" or code.co_name not in WRAPPING):
        return None
    called = frame.f_locals.get("fn", frame.f_locals.get("self"))
    return None if called is None else name_of(called)


def _may_record() -> bool:
    """Whether compiled code of this process may record CUDA graphs."""
    torch = sys.modules.get("torch")
    has_compiler = torch is not None and "torch._dynamo" in sys.modules
    return has_compiler and torch.cuda.is_available()  # type: ignore[union-attr]


def _phase(torch_name: str) -> str:
    """The name of a phase; torch's own if there is no better one."""
    if torch_name.startswith(_ATTEMPT):
        return f"attempt {int(torch_name.removeprefix(_ATTEMPT)) + 1}"
    return _PHASES.get(torch_name, torch_name)


def _track() -> str:
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return "main thread"
    return f"{thread.name} ({threading.get_native_id()})"


@contextlib.contextmanager
def record_timeline(folder: Path) -> Iterator[Recorder]:
    """Asks all processes that are started meanwhile for a timeline in this folder."""
    before = os.environ.get(timeline.VARIABLE)
    os.environ[timeline.VARIABLE] = str(folder)
    recorder = Recorder(folder)
    recorder.describe_process("torchproof")
    try:
        yield recorder
    finally:
        if before is None:
            del os.environ[timeline.VARIABLE]
        else:
            os.environ[timeline.VARIABLE] = before


def process_ended(pid: int | None) -> None:
    """Notes when a process of a timeline ended, which it cannot do if it is killed."""
    folder = os.environ.get(timeline.VARIABLE)
    if not folder or pid is None or not timeline.file_of(Path(folder), pid).exists():
        return
    line = json.dumps({"do": "ended", "ns": time.monotonic_ns()})
    with timeline.file_of(Path(folder), pid).open("ab") as file:
        file.write(f"\n{line}\n".encode())  # its last line may be cut off


def add_kernels(recorder: Recorder, trace: Path, clocks: Iterable[int]) -> None:
    """Adds the kernels of a profile; `clocks` are wall and monotonic time, at once."""
    document = json.loads(trace.read_text(encoding="utf-8"))
    wall_ns, monotonic_ns = clocks
    shift = monotonic_ns - wall_ns + int(document.get("baseTimeNanoseconds", 0))
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in _DEVICE_EVENTS:
            begin = round(event["ts"] * 1e3) + shift
            times = begin, begin + round(event["dur"] * 1e3)
            track = f"GPU {event['pid']}, stream {event['tid']}"
            recorder.lasted(event["name"], event["cat"], times, track=track)


_DEVICE_EVENTS = {"kernel", "gpu_memcpy", "gpu_memset"}
