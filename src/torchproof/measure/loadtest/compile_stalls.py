"""Stalls of the compiler: compilations with their reasons, phases, and recordings.

The hooks of Dynamo see each frame that is compiled, with the guard that failed. Frames
that `torchproof.compile` compiles in a helper thread belong to the request that waits
for them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

from torchproof.measure.loadtest.stall_log import CodePlace, OpenStall, StallLog
from torchproof.observe import (
    FailedGuard,
    Guard,
    find_recompile_causes,
    guard_failures,
)
from torchproof.records import Event, MissingHook, StallKind, plain_name, whose

# The phases that are stalls themselves, by torch's names.
_PHASES: Mapping[str, tuple[StallKind, str]] = {
    "inductor_compile": ("inductor", "Inductor compiles a graph"),
    "entire_backward_compile": ("compile", "compilation of a backward graph"),
    "CachingAutotuner.slow_precompile_config": ("triton", "a kernel is compiled"),
    "CachingAutotuner.benchmark_all_configs": ("triton", "a kernel is tuned"),
    "CachingAutotuner.coordinate_descent_tuning": ("triton", "a kernel is tuned"),
}
_WHOLE_COMPILE = "entire_frame_compile"
_COMPILE_ID = "compile_id"
_MISSES = {
    "fx_graph_cache_miss": "the graph is not in Inductor's cache",
    "autograd_cache_miss": "the graph is not in AOTAutograd's cache",
}
_STEP = "step"
_RECORDINGS = {
    "warm-up": "warm-up of a CUDA graph",
    "recording": "recording of a CUDA graph",
    _STEP: "recording of a step as a CUDA graph",
}
_UNNAMED = "the compiled callable"  # its code is torch's own


class CompileWatch:
    """Watches the compiler; `missing` says why for each kind that it cannot see."""

    def __init__(self, log: StallLog) -> None:
        self.missing: dict[str, str] = {}
        self._log = log
        self._local = threading.local()
        self._waiting: dict[CodeType, OpenStall] = {}  # callers that wait for a helper
        self._compiled: set[CodeType] = set()
        self._recorded_step = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Installs the hooks of everything that is imported already."""
        from torchproof.torch_private import recording_times

        with contextlib.ExitStack() as hooks:
            hooks.enter_context(recording_times.step_recordings(self._recording))
            hooks.enter_context(self._triton())
            if "torch._dynamo" in sys.modules:
                self._install_dynamo(hooks)
            yield

    def _install_dynamo(self, hooks: contextlib.ExitStack) -> None:
        import torch

        from torchproof.torch_private import (
            compile_events,
            frame_callbacks,
            frames,
            recompiles,
            recording_times,
        )

        if self._has("compiles under load", "compile"):
            hooks.enter_context(frame_callbacks(self._convert))
            hooks.enter_context(recompiles.reasons(self._failed))
            hooks.enter_context(frames.watch_conversions(self._wait))
        if self._has("compile events under load", "inductor", "triton", "cache_miss"):
            hooks.enter_context(compile_events.compile_events(self))
        if torch.cuda.is_available() and self._has(
            "recordings under load", "cudagraph"
        ):
            hooks.enter_context(recording_times.tree_recordings(self._recording))

    def _has(self, feature: str, *kinds: StallKind) -> bool:
        from torchproof.torch_private import contract

        try:
            contract.require(feature)
        except MissingHook as error:
            self.missing |= dict.fromkeys(kinds, str(error))
            return False
        return True

    # -- frames ------------------------------------------------------------------------

    def _convert(self, convert: Callable[[], Any], request: Any) -> Any:
        """Dynamo compiles a frame in this thread, or skips it before it has begun."""
        code: CodeType = request.frame.f_code
        with self._log.on_behalf_of(self._waiting.get(code)):
            stall = self._log.begin("compile")
            self._describe(stall, code)
            self._local.compiling = stall
            try:
                return convert()
            finally:
                self._local.compiling = None
                self._end(stall, code)

    def _wait(self, convert: Callable[[], Any], code: CodeType) -> Any:
        """`torchproof.compile` answers for a frame; this thread waits meanwhile."""
        from torchproof.torch_private import frames

        stall = self._log.begin("compile")
        self._describe(stall, code)
        first = self._waiting.setdefault(code, stall)
        is_compiled = False
        try:
            answer = convert()
            is_compiled = frames.is_compiled_code(answer)
            return answer
        finally:
            if first is stall:
                del self._waiting[code]
            if not is_compiled:
                stall.kind = "fallback"
                stall.text = f"{_name(code)} runs eager"
            self._end(stall, code)

    def _end(self, stall: OpenStall, code: CodeType) -> None:
        """Keeps the stall, unless nothing was compiled: most frames are skipped."""
        stall.has_ended = True  # a helper that begins later works in the background
        if _COMPILE_ID in stall.data or "inductor" in self.missing:
            self._compiled.add(code)
            self._log.end(stall)

    def _describe(self, stall: OpenStall, code: CodeType) -> None:
        name = _name(code)
        if name != _UNNAMED:
            stall.place = CodePlace(code.co_filename, code.co_firstlineno, name)
        is_first = stall.data["first"] = code not in self._compiled
        stall.text = f"{'first compilation' if is_first else 'recompile'} of {name}"

    def _failed(self, reasons: list[str]) -> None:
        for stall in self._compiling():
            stall.data["reasons"] = list(reasons)

    def _compiling(self) -> Iterator[OpenStall]:
        """The compilation of this thread, and the stall of a thread that waits."""
        stall: OpenStall | None = getattr(self._local, "compiling", None)
        if stall is not None:
            yield stall
            if stall.waiting is not None and not stall.waiting.has_ended:
                yield stall.waiting

    # -- phases ------------------------------------------------------------------------

    def phase_began(self, name: str, compile_id: str | None) -> None:
        if name == _WHOLE_COMPILE:
            for stall in self._compiling():
                stall.data[_COMPILE_ID] = compile_id
                self._log.may_outlast(stall)
        if name in _PHASES:
            kind, text = _PHASES[name]
            self._phases().append((name, self._log.begin(kind, text)))

    def phase_ended(self, name: str) -> None:
        phases = self._phases()
        while phases and name in _PHASES:  # torch may drop phases after an error
            began, stall = phases.pop()
            if began == name:
                self._log.end(stall)
                return

    def happened(self, name: str) -> None:
        if name in _MISSES:
            self._log.keep(self._log.begin("cache_miss", _MISSES[name]))

    def _phases(self) -> list[tuple[str, OpenStall]]:
        phases: list[tuple[str, OpenStall]] = self._local.__dict__.setdefault(
            "phases", []
        )
        return phases

    # -- CUDA graphs -------------------------------------------------------------------

    @contextlib.contextmanager
    def _recording(self, begin: Any) -> Iterator[None]:
        shapes = " and ".join(begin.shapes) or "no tensors"
        stall = self._log.begin("cudagraph", f"{_RECORDINGS[begin.how]} for {shapes}")
        # Steps of `torchproof.graph` do not know of each other.
        again = begin.again or (begin.how == _STEP and self._recorded_step)
        self._recorded_step |= begin.how == _STEP
        stall.data |= {
            "how": begin.how,
            "shapes": list(begin.shapes),
            "reasons": list(begin.reasons),
            "again": again,
            "new_shapes": begin.how == _STEP or (again and not begin.reasons),
            _COMPILE_ID: begin.compile_id,
        }
        try:
            yield
        finally:
            self._log.end(stall)

    # -- Triton ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _triton(self) -> Iterator[None]:
        """Triton calls one hook before it compiles a kernel, and one afterwards."""
        if importlib.util.find_spec("triton") is None:
            yield
            return
        knobs = getattr(importlib.import_module("triton"), "knobs", None)
        runtime: Any = getattr(knobs, "runtime", None)
        if not hasattr(runtime, "jit_post_compile_hook"):
            self.missing["triton"] = "Triton has no knobs.runtime.jit_post_compile_hook"
            yield
            return
        before, after = runtime.jit_cache_hook, runtime.jit_post_compile_hook
        runtime.jit_cache_hook = self._before_kernel(before)
        runtime.jit_post_compile_hook = self._after_kernel(after)
        try:
            yield
        finally:
            runtime.jit_cache_hook, runtime.jit_post_compile_hook = before, after

    def _before_kernel(self, other: Callable[..., Any] | None) -> Callable[..., Any]:
        def compiling(**details: Any) -> Any:
            name = getattr(details.get("fn"), "name", "a kernel")
            text = f"Triton compiles {name}"
            self._local.kernel = self._log.begin("triton", text)
            return other(**details) if other is not None else False

        return compiling

    def _after_kernel(self, other: Callable[..., Any] | None) -> Callable[..., Any]:
        def compiled(**details: Any) -> Any:
            stall: OpenStall | None = getattr(self._local, "kernel", None)
            if stall is not None:
                self._local.kernel = None
                self._log.end(stall)
            return other(**details) if other is not None else None

        return compiled


def _name(code: CodeType) -> str:
    is_torch = whose(code.co_filename) == "torch"
    return _UNNAMED if is_torch else plain_name(code.co_qualname)


def add_guards(stalls: list[OpenStall]) -> None:
    """Adds to each recompile the guard that caused it, and what changed."""
    recompiles = [
        each for each in stalls if each.data.get("reasons") and _is_compile(each)
    ]
    events = find_recompile_causes(map(_event, recompiles))
    for stall, event in zip(recompiles, events, strict=True):
        if "guard" in stall.data:  # from an earlier call
            continue
        guard: Guard = event.data["guard"]
        stall.text = f"{stall.text}: {guard_failures.what_changed(guard)}"
        stall.data["guard"] = {
            "cause": guard.cause,
            "source": guard.source,
            "dim": guard.dim,
            "expected": guard.expected,
            "actual": guard.actual,
        }


def _is_compile(stall: OpenStall) -> bool:
    return stall.kind in {"compile", "fallback"}


def _event(stall: OpenStall) -> Event:
    failed = [
        FailedGuard(guard_failures.parse(reason)) for reason in stall.data["reasons"]
    ]
    compile_id = stall.data.get(_COMPILE_ID)
    return Event("recompile", compile_id=compile_id, data={"failed_guards": failed})
