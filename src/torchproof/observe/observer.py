"""Hooks into torch.compile in this process and streams what it does.

The hooks do not change what Dynamo does, with one exception: a frame that fails to
compile runs in eager mode instead of raising, so that the program continues.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchproof.observe import timeline
from torchproof.observe.bypasses import Bypasses
from torchproof.observe.entry_calls import entry_arguments, entry_call, form_of
from torchproof.observe.trace_log import ARTIFACTS, NAMES, PAYLOAD_NOT_NEEDED
from torchproof.process import Stream
from torchproof.records import Frame, JsonObject, Keywords, Namespace, WrapperEvent
from torchproof.targets import (
    called_by_torch,
    code_of,
    codes_around,
    compiler_stack,
    forwards,
    frame_of,
    name_of,
    plain,
    stack,
    what,
)

_FLUSH_S = 0.25
_MOST_OUTPUTS = 8  # of a graph, whose backwards are counted
_MOST_FORMS = 200  # forms of arguments that are told apart


class Wrapper:
    """One compiled function or module, and the counts of its calls."""

    def __init__(self, number: int, model: Any) -> None:
        self.number = number
        self.code = code_of(model)
        self.calls = self.compiled_calls = self.eager_stance = 0


class Runs:
    """How often a graph or frame ran, and in how many calls."""

    def __init__(self) -> None:
        self.count = self.steps = 0
        self._last: int | None = None

    def add(self, call: int | None) -> None:
        self.count += 1
        if call is None or call != self._last:
            self.steps += 1
            self._last = call


class Backwards:
    """The backwards of each graph, and those that other graphs ran before."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        # Backwards that ran after another graph had begun since their forward.
        self.late: dict[str, int] = {}
        self._runs = 0

    def begin(self) -> None:
        """A graph begins to run."""
        self._runs += 1

    def watch(self, compile_id: str, outputs: Any) -> None:
        """Counts the backward of these outputs, once."""
        run = self._runs
        done: list[bool] = []

        def note(*gradients: Any) -> None:
            if not done:
                done.append(True)
                self.counts[compile_id] = self.counts.get(compile_id, 0) + 1
                if self._runs > run:
                    self.late[compile_id] = self.late.get(compile_id, 0) + 1

        several = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
        nodes = (getattr(output, "grad_fn", None) for output in several)
        for node in [node for node in nodes if node is not None][:_MOST_OUTPUTS]:
            node.register_prehook(note)


class Observer:
    """Installs the hooks, counts, and writes the stream."""

    generates_code = False

    def __init__(self, stream: Stream, *, calls_are_wrapper_calls: bool) -> None:
        self.stream = stream
        self.calls_are_wrapper_calls = calls_are_wrapper_calls
        self.call: int | None = None
        self.calls = self.compiled_calls = self.graph_runs = 0
        self.graphs: dict[str, Runs] = {}
        self.backwards = Backwards()
        self.skipped: dict[int, tuple[types.CodeType, str | None, Runs]] = {}
        self.wrappers: list[Wrapper] = []
        self.inlined: set[types.CodeType] = set()
        self.bypasses = Bypasses(stream)
        self.marks: set[tuple[str, int]] = set()
        self.settings: Namespace = {}  # those changed when something compiled
        self.forms: dict[str, int] = {}  # calls by the form of their arguments
        self.traced: dict[str, dict[str, set[int]]] = {}  # since the last flush
        self.paused = False  # while torchproof runs the target for another purpose
        self.site: tuple[Frame, ...] | None = None  # where torchproof itself compiles
        # The arguments that torchproof was asked to compile with; None: those it uses.
        self.arguments: Keywords | None = None
        self.hooks = contextlib.ExitStack()
        recorder = timeline.current()
        self._timeline = recorder
        self._local = threading.local()
        self._dynamo = False
        self._flushed = 0.0

    # -- hooks ---------------------------------------------------------------------

    def attach(self) -> None:
        """Installs the first hooks; those of Dynamo wait for torch.compile."""
        import torch

        from torchproof import torch_private
        from torchproof.torch_private import traced_lines as lines

        self.private = torch_private
        if not self._has_hooks("trace"):
            return
        self._traced_lines = lines.traced_lines
        self._compile = torch.compile
        self.hooks.enter_context(torch_private.trace_records(self._receive))
        if not self.generates_code:
            self.hooks.enter_context(torch_private.no_code_generation())

        @functools.wraps(torch.compile)
        def compile(model: Any = None, **kwargs: Any) -> Any:
            return self._register(model, **kwargs)

        torch.compile = compile
        self.hooks.callback(setattr, torch, "compile", self._compile)

    def _attach_dynamo(self) -> None:
        if self._dynamo:
            return
        self._dynamo = True
        private = self.private
        enter = self.hooks.enter_context
        if not self._has_hooks("breaks"):
            return
        if self._has_hooks("compile errors"):
            enter(private.marked_compile_errors())
        enter(private.compiled_contexts(self._context))
        enter(private.frame_callbacks(self._convert))
        enter(private.graph_callables(self._graph))
        self._notes_settings = self._has_hooks("settings")
        if self._has_hooks("stacks of breaks"):
            enter(private.whole_break_stacks())
        if self._has_hooks("advisories"):
            enter(private.captured_graphs(self._captured))
        if self._has_hooks("traced lines"):
            enter(private.inlined_code(self.inlined.add))
            enter(self._traced_lines(self._line))
        if self._has_hooks("bypassed code"):
            enter(private.module_methods(self._method))
            private.never_compile(_spied_call.__code__)

    def _has_hooks(self, feature: str) -> bool:
        """Whether torch has the hooks of a feature; if not, the stream says why."""
        if messages := self.private.contract.missing(feature):
            self.stream.write("missing_hook", feature=feature, message=messages[0])
        return not messages

    def _receive(self, metadata: JsonObject, payload: str) -> None:
        if self.paused:
            return
        artifact = metadata.get("artifact")
        if isinstance(artifact, dict):
            needed = artifact.get("name") in ARTIFACTS
        else:
            needed = not NAMES.isdisjoint(metadata)
        if not needed:
            return
        if not PAYLOAD_NOT_NEEDED.isdisjoint(metadata):
            metadata = {k: v for k, v in metadata.items() if k != "stack"}
            payload = ""
        if start := metadata.get("dynamo_start"):
            stack = [*compiler_stack(), start["stack"][-1]]
            complete = {"stack": stack, "complete": True}
            metadata = {**metadata, "dynamo_start": complete}
            metadata["entry_call"] = getattr(self._local, "entry_call", {})
        if metadata.get("compilation_metrics", {}).get("fail_type"):
            self._local.failure = (
                f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
            )
        self.stream.write("trace", metadata=metadata, payload=payload, call=self.call)

    # -- what the program compiles -------------------------------------------------

    def _register(self, model: Any = None, **kwargs: Any) -> Any:
        """Replaces torch.compile: compiles, and writes what was compiled and where."""
        self._attach_dynamo()
        # Without a model it returns a decorator, which calls torch.compile again.
        if model is None or self.paused or called_by_torch():
            return self._compile(model, **kwargs)
        wrapper = Wrapper(len(self.wrappers), model)
        self.wrappers.append(wrapper)
        self._local.wrapper = wrapper
        try:
            compiled = self._compile(model, **kwargs)
        finally:
            self._local.wrapper = None
        self._spy_on_original(wrapper, model)
        by_torchproof = self.site is not None
        arguments = (
            self.arguments if by_torchproof and self.arguments is not None else kwargs
        )
        event = WrapperEvent(
            frames=self.site or stack(),
            function=frame_of(wrapper.code) if wrapper.code else None,
            name=name_of(model),
            what=what(model),
            module=self._number_of(model),
            arguments={k: str(v) for k, v in arguments.items() if v is not None},
            off=compiled is model or self.private.is_dynamo_disabled(),
            by_torchproof=by_torchproof,
            in_place=getattr(model, "__name__", "") == "_call_impl",
            around=tuple(frame_of(code) for code in codes_around(model)),
        )
        reaches = [] if wrapper.code is None else forwards(model, wrapper.code)
        number = wrapper.number
        self.stream.write("wrapper", number=number, reaches=reaches, **event.to_json())
        return compiled

    def _number_of(self, model: Any) -> int | None:
        import torch

        is_module = isinstance(model, torch.nn.Module)
        return self.bypasses.number_of(model) if is_module else None

    def _context(self, context: Any) -> Callable[[], Callable[[], None]] | None:
        wrapper: Wrapper | None = getattr(self._local, "wrapper", None)
        return None if wrapper is None else functools.partial(self._enter, wrapper)

    def _enter(self, wrapper: Wrapper) -> Callable[[], None]:
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        counts = self.calls_are_wrapper_calls and depth == 0
        if counts:
            self.begin_call(self.calls)
            self.note_form(*entry_arguments())
        wrapper.calls += 1
        wrapper.eager_stance += self.private.stance() == "force_eager"
        before = self.graph_runs
        handled = sys.exception()  # the call may be in an `except` block

        def leave() -> None:
            self._local.depth = depth
            wrapper.compiled_calls += self.graph_runs > before
            self._note_eager_error(sys.exception(), handled)
            if counts:
                self.end_call()

        return leave

    def _failed_frames(self) -> dict[types.CodeType, str | None]:
        """The frames that failed to compile in this call, and now run eagerly."""
        if not hasattr(self._local, "failed_frames"):
            self._local.failed_frames = {}
        found: dict[types.CodeType, str | None] = self._local.failed_frames
        return found

    def _note_eager_error(
        self, error: BaseException | None, handled: BaseException | None
    ) -> None:
        """Notes frames that fail to compile because they raise in eager mode too.

        Then the error is the program's own, and not one of the compiler.
        """
        failed = self._failed_frames()
        if error is not None and error is not handled:
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if compile_id := failed.get(frame.f_code):
                    self.stream.write("raised_in_eager", compile_id=compile_id)
        if not getattr(self._local, "depth", 0):
            failed.clear()

    def begin_call(self, index: int) -> None:
        self.call = index
        self.calls = self.calls + 1
        self._runs_before = self.graph_runs
        if self._timeline is not None:
            self._local.span = self._timeline.begin(f"call {index + 1}", "call")

    def note_form(self, args: Sequence[Any], kwargs: Keywords) -> None:
        """Counts the call by the form of its arguments."""
        form = form_of(args, kwargs)
        if form not in self.forms and len(self.forms) >= _MOST_FORMS:
            form = "..."
        self.forms[form] = self.forms.get(form, 0) + 1

    def end_call(self) -> None:
        if self._timeline is not None:
            self._timeline.end(self._local.span)
        self.compiled_calls += self.graph_runs > self._runs_before
        if time.monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    @contextlib.contextmanager
    def observed_call(self, index: int) -> Iterator[None]:
        self.begin_call(index)
        try:
            yield
        finally:
            self.end_call()

    # -- what Dynamo does ----------------------------------------------------------

    def _convert(self, convert: Callable[[], Any], request: Any) -> Any:
        """Converts a frame; one that is skipped or fails is only skipped this time.

        Dynamo then calls this hook at each run of the frame, so that runs are counted.
        After an error of compiling the program continues in eager mode, unless
        fullgraph=True. An error outside of any compilation is the program's, as without
        torchproof: DDP's optimizer refuses buckets below 1 MB, for example.
        """
        frame = request.frame
        skip = self.skipped.get(id(frame.f_code))
        if skip is not None:
            skip[2].add(self.call)
            return self.private.skip_once()
        self._local.failure = None
        self._note_marks(frame.f_locals)
        if self._notes_settings:
            for module, values in self.private.configs.changed().items():
                self.settings |= {f"{module}.{name}": v for name, v in values.items()}
        self._local.entry_call = entry_call(frame.f_locals, frame.f_code)
        self._local.zeros = _zeros(frame.f_locals)
        try:
            answer = convert()
        except Exception:
            self.stream.write("raised", compile_id=self._local.failure, call=self.call)
            if request.fullgraph or self._local.failure is None:
                raise
            self._failed_frames()[frame.f_code] = self._local.failure
            answer = None
        failure = self._local.failure
        if answer is not None:
            gave_up = failure and self.private.was_skipped(answer)
            # A skipped recompile also discards the earlier code: keep that effect.
            if request.is_recompile or not gave_up:
                return answer
        runs = Runs()
        runs.add(self.call)
        self.skipped[id(frame.f_code)] = (frame.f_code, failure, runs)
        return self.private.skip_once()

    def _line(self, code: types.CodeType, line: int) -> None:
        functions = self.traced.setdefault(code.co_filename, {})
        functions.setdefault(code.co_qualname, set()).add(line)

    def _note_marks(self, variables: Namespace) -> None:
        """Notes the dimensions that are marked dynamic, also in packed arguments."""
        import torch

        for name, value in variables.items():
            items = value.items() if isinstance(value, dict) else ()
            for source, item in [(name, value)] + [
                (f"{name}[{key!r}]", item) for key, item in items
            ]:
                if isinstance(item, torch.Tensor):
                    dims = self.private.marked_dimensions(item)
                    self.marks.update((source, dim) for dim in dims)

    def _graph(
        self, output_graph: Any, compiled: Callable[..., Any]
    ) -> Callable[..., Any]:
        compile_id = self.private.compile_id_of(output_graph)
        runs = self.graphs.setdefault(compile_id, Runs())

        @functools.wraps(compiled)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.graph_runs += 1
            runs.add(self.call)
            self.backwards.begin()
            outputs = compiled(*args, **kwargs)
            self.backwards.watch(compile_id, outputs)
            return outputs

        return counted

    def _captured(self, compile_id: str, graph: Any) -> None:
        if not self.paused:
            found = self.private.GraphOperations.of(graph)
            self.stream.write(
                "operations",
                compile_id=compile_id,
                rows=found.rows,
                stacks=found.stacks,
                changed=self.private.configs.changed(),
                zeros=getattr(self._local, "zeros", []),
            )

    # -- calls that bypass the compiled code ---------------------------------------

    def _method(self, module: Any, name: str, value: Any) -> Any:
        import torch

        is_own = (
            isinstance(value, types.MethodType) and value.__self__ is module._orig_mod
        )
        if not is_own or name.startswith("_") or hasattr(torch.nn.Module, name):
            return value

        @functools.wraps(value)
        def spied(*args: Any, **kwargs: Any) -> Any:
            if self.paused or bool(getattr(self._local, "depth", 0)):
                return value(*args, **kwargs)
            before = self.graph_runs

            def bypasses(result: Any) -> bool:
                tensors = self.private.trees.tensors((args, kwargs, result))
                return self.graph_runs == before and any(True for _ in tensors)

            return self.bypasses.call(
                module._orig_mod,
                name,
                run=lambda: value(*args, **kwargs),
                bypasses=bypasses,
            )

        return spied

    def _spy_on_original(self, wrapper: Wrapper, model: Any) -> None:
        """Detects calls of the original module, through its `_compiled_call_impl`.

        Module.__call__ uses that attribute, which is None on the original.
        """
        import torch

        if (
            not isinstance(model, torch.nn.Module)
            or model._compiled_call_impl is not None
        ):
            return
        model._compiled_call_impl = functools.partial(_spied_call, self, model)

    def ignores_originals(self) -> bool:
        """Whether a call of an original module now is part of a call that counts."""
        depth = getattr(self._local, "depth", 0)
        return self.paused or bool(depth) or self.bypasses.within

    def call_original(self, model: Any, run: Callable[[], Any]) -> Any:
        return self.bypasses.call(model, "forward", run=run, bypasses=lambda _: True)

    # -- the end -------------------------------------------------------------------

    def detach(self) -> None:
        """Writes the last counts and removes the hooks."""
        self.flush()
        self.hooks.close()

    def flush(self) -> None:
        """Writes a snapshot of all counts; the last one in the stream counts."""
        self._flushed = time.monotonic()
        runs = {k: [r.count, r.steps] for k, r in self.graphs.items()}
        skips = [
            {
                "compile_id": compile_id,
                "code": plain([frame_of(code)]),
                "runs": [skip_runs.count, skip_runs.steps],
            }
            for code, compile_id, skip_runs in self.skipped.values()
        ]
        wrappers = [
            [
                w.number,
                w.calls,
                w.compiled_calls,
                w.eager_stance,
                w.code in self.inlined,
            ]
            for w in self.wrappers
        ]
        self._flush_lines()
        self.stream.write(
            "counts",
            calls=self.calls,
            compiled_calls=self.compiled_calls,
            graphs=runs,
            skipped=skips,
            wrappers=wrappers,
            bypasses=self.bypasses.counts(),
            marks=sorted(self.marks),
            settings=self.settings,
            forms=self.forms,
            backwards=self.backwards.counts,
            late_backwards=self.backwards.late,
        )

    def _flush_lines(self) -> None:
        """Writes the lines traced since the last flush; all entries count together."""
        traced = self.traced
        self.traced = {}
        if traced:
            files = {
                file: {name: sorted(lines) for name, lines in functions.items()}
                for file, functions in traced.items()
            }
            self.stream.write("lines", files=files)


def _zeros(variables: Namespace) -> list[str]:
    """The arguments that are a floating-point zero."""
    return [k for k, v in variables.items() if isinstance(v, float) and v == 0]


def _spied_call(observer: Observer, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Replaces `_compiled_call_impl` of an original module; Dynamo traces through."""
    import torch

    if torch.compiler.is_compiling() or observer.ignores_originals():
        return model._call_impl(*args, **kwargs)
    run = functools.partial(model._call_impl, *args, **kwargs)
    return observer.call_original(model, run)
