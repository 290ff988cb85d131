"""Intercepts each frame that Dynamo is about to compile, for the runtime.

Inside `intercept_conversions(guard)`, torch.compile returns callables that call `guard`
whenever Dynamo is about to convert a frame: at the first call and at each recompile.
The guard takes a `Conversion` and returns Dynamo's answer for the frame. With a copy of
the frame, a conversion can run in another thread.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch

from torchproof.records import Namespace
from torchproof.torch_private.dynamo import class_guards, stances, thread_state
from torchproof.torch_private.replacements import Place as Replaced
from torchproof.torch_private.replacements import Replacement

_FRAME_FIELDS = ("f_code", "f_locals", "f_globals", "f_builtins", "f_lasti", "f_lineno")


@dataclass(frozen=True)
class Conversion:
    """One frame that Dynamo is about to convert, with its earlier compiled code."""

    frame: Any
    entry: Any  # the newest compiled code of the frame, or None
    state: Any
    callback: Callable[..., Any]
    backend: Any
    constants: list[str] = dataclasses.field(default_factory=list)  # not guarded

    @property
    def code(self) -> CodeType:
        code: CodeType = self.frame.f_code
        return code

    def is_trivial(self) -> bool:
        """Whether Dynamo will skip the frame without tracing it."""
        from torch._dynamo import config, trace_rules

        return bool(config.disable) or trace_rules.check(self.code)

    def run(self) -> Any:
        """Returns Dynamo's answer; raises the error that prevents tracing the frame.

        Dynamo would swallow the error and skip the function for ever, even if only this
        call cannot be traced.
        """
        _here.swallowed = None
        with class_guards.record_inlined() as inlined:
            answer = self.callback(self.frame, self.entry, self.state)
        if is_compiled_code(answer):
            class_guards.add_guards(answer.guarded_code.guard_manager, inlined)
        self.constants.extend(inlined.constants)
        swallowed: BaseException | None = _here.swallowed
        if swallowed is not None and not is_compiled_code(answer):
            raise swallowed
        return answer

    def with_frame_copy(self) -> Conversion:
        """The same conversion with a copy of the frame, which outlives the frame."""
        frame = self.frame
        fields = {
            name: getattr(frame, name) for name in _FRAME_FIELDS if hasattr(frame, name)
        }
        fields["f_locals"] = dict(frame.f_locals)
        if hasattr(frame, "closure"):
            fields["closure"] = frame.closure
        copy = SimpleNamespace(**fields)
        return dataclasses.replace(self, frame=copy)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The sizes of the tensors among the frame's arguments, by name."""
        tensors = tensors_of(self.frame.f_locals)
        return {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def reason(self) -> str | None:
        """The guard of the newest compiled code that fails for this frame."""
        from torch._dynamo.guards import get_guard_fail_reason

        if self.entry is None:
            return None
        return get_guard_fail_reason(
            self.entry.guard_manager,
            self.entry.code,
            self.frame.f_locals,
            self.entry.compile_id,
            self.backend,
            skip_logging=True,
        )

    def has_code(self) -> bool:
        """Whether compiled code of an equal backend fits this frame."""
        from torch._dynamo.guards import DeletedGuardManagerWrapper

        return any(
            entry.backend == self.backend
            and not isinstance(entry.guard_manager, DeletedGuardManagerWrapper)
            and entry.guard_manager.check(self.frame.f_locals)
            for entry in _entries(self.code)
        )

    def is_marked_static(self, reason: str) -> bool:
        """Whether the size that a failed guard names is marked with mark_static."""
        named = re.match(r"tensor '(\w+)' size mismatch at index (\d+)", reason)
        if named is None:
            return False
        tensor = tensors_of(self.frame.f_locals).get(named[1])
        return int(named[2]) in getattr(tensor, "_dynamo_static_indices", ())


class GuardedCallback:
    """Replaces Dynamo's callback by a call of the guard."""

    def __init__(self, callback: Any, interception: _Interception) -> None:
        guard, backend, ran_eager, _, callbacks = interception
        self.change_backend(backend)
        callbacks.append(self)
        self.hooks = callback.hooks
        self._callback = callback
        self._guard = guard
        self.ran_eager = ran_eager

    def change_backend(self, backend: Any) -> None:
        """Dynamo follows this attribute to the backend at each call.

        It uses compiled code of this backend alone.
        """
        self._torchdynamo_orig_backend = backend

    def __call__(self, frame: Any, entry: Any, state: Any) -> Any:
        conversion = Conversion(
            frame=frame,
            entry=entry,
            state=state,
            callback=self._callback,
            backend=self._torchdynamo_orig_backend,
        )
        return self._guard(conversion)


_here = threading.local()


class _ErrorRecorder:
    """Wraps Dynamo's innermost conversion to record errors that its caller swallows."""

    def __init__(self, convert: Any) -> None:
        self._convert = convert

    def __getattr__(self, name: str) -> Any:
        return getattr(self._convert, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._convert(*args, **kwargs)
        except Exception as error:
            _here.swallowed = error
            raise


# The guard, the backend, what to call if a stance makes a call run eager, whether a
# graph break is an error, and the callbacks that were made.
_Interception = tuple[
    Callable[[Conversion], Any],
    Any,
    Callable[[str], None],
    bool,
    list[GuardedCallback],
]
_guard: contextvars.ContextVar[_Interception | None] = contextvars.ContextVar(
    "torchproof_guard", default=None
)


@contextlib.contextmanager
def intercept_conversions(
    guard: Callable[[Conversion], Any],
    backend: Any,
    ran_eager: Callable[[str], None] = lambda stance: None,
    *,
    fullgraph: bool = False,
) -> Iterator[list[GuardedCallback]]:
    """Callables that torch.compile returns inside ask `guard` about each frame.

    Yields the callbacks through which they do.

    Dynamo takes `backend`, which torch.compile is called with, for theirs. It keeps
    pointers to it that do not keep it alive: it must never be deleted. `ran_eager` is
    called with the stance if one makes a frame run eager. With `fullgraph`, tracing
    stops at a graph break with the error that torch.compile(fullgraph=True) raises. Its
    own wrapper would also raise if a call runs eager for another reason.
    """
    _at_first_use()
    callbacks: list[GuardedCallback] = []
    token = _guard.set((guard, backend, ran_eager, fullgraph, callbacks))
    try:
        with _callbacks.active():
            yield callbacks
    finally:
        _guard.reset(token)
        _forget_wrappers(backend)


def _forget_wrappers(backend: Any) -> None:
    """Dynamo stores the wrapper that torch.compile puts around a backend for ever."""
    from torch._dynamo import eval_frame

    for number, wrapper in list(eval_frame.cached_backends.items()):
        if getattr(wrapper, "compiler_fn", None) is backend:
            eval_frame.cached_backends.pop(number, None)


@contextlib.contextmanager
def watch_conversions(
    wrap: Callable[[Callable[[], Any], CodeType], Any],
) -> Iterator[None]:
    """Calls `wrap(convert, code)` for each frame that a guard is asked about.

    It runs in the thread that called the model and waits for the answer.
    """
    original = GuardedCallback.__call__

    def call(self: GuardedCallback, frame: Any, entry: Any, state: Any) -> Any:
        return wrap(lambda: original(self, frame, entry, state), frame.f_code)

    GuardedCallback.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        GuardedCallback.__call__ = original  # type: ignore[method-assign]


def _places_of_callbacks() -> Iterator[Replaced]:
    from torch._dynamo import convert_frame

    yield convert_frame, "catch_errors_wrapper", _guarded


def _guarded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(callback: Any, hooks: Any) -> Any:
        current = _guard.get()
        if current is None:
            return original(callback, hooks)
        callback._inner_convert._one_graph = current[3]
        callback._inner_convert = _ErrorRecorder(callback._inner_convert)
        return GuardedCallback(original(callback, hooks), current)

    return guarded


_callbacks = Replacement(_places_of_callbacks)


@functools.cache
def _at_first_use() -> None:
    os.register_at_fork(after_in_child=thread_state.forget_other_compilers)


def under_stance(stance: str, callback: Any) -> Any:
    """What Dynamo calls for frames while a stance other than the default is in force.

    Stances that compile from the second call on would bypass the guard: the first call
    compiles. For `stances.answered`.
    """
    if not isinstance(callback, GuardedCallback):
        return stances.UNCHANGED
    if stance == "force_eager":
        callback.ran_eager(stance)
    elif stance == "eager_on_recompile":
        return _RunOnly(callback, stance)
    elif stance in ("eager_then_compile", "aot_eager_then_compile"):
        return callback
    return stances.UNCHANGED


class _RunOnly:
    """Runs frames without compiled code eager, as Dynamo does, and reports them."""

    def __init__(self, callback: GuardedCallback, stance: str) -> None:
        self._torchdynamo_orig_backend = callback  # as in `GuardedCallback`
        self._ran_eager = functools.partial(callback.ran_eager, stance)

    def __call__(self, frame: Any, entry: Any, state: Any) -> Any:
        from torch._dynamo import trace_rules

        if not trace_rules.check(frame.f_code):
            self._ran_eager()
        return eager_once(inner=False)


_check: contextvars.ContextVar[Callable[[], None] | None] = contextvars.ContextVar(
    "torchproof_check", default=None
)


@contextlib.contextmanager
def checkpoints(check: Callable[[], None]) -> Iterator[None]:
    """Calls `check` between steps of tracing and of graph passes; it may raise."""
    token = _check.set(check)
    try:
        with _steps.active():
            yield
    finally:
        _check.reset(token)


def _places_of_steps() -> Iterator[Replaced]:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch.fx import Interpreter

    yield InstructionTranslatorBase, "step", _checked
    yield Interpreter, "run_node", _checked


def _checked(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check = _check.get()
        if check is not None:
            check()
        return step(*args, **kwargs)

    return checked


_steps = Replacement(_places_of_steps)


Place = tuple[str, int]  # a file and a line
_note_break: contextvars.ContextVar[Callable[[Place], None] | None] = (
    contextvars.ContextVar("torchproof_note_break", default=None)
)


@contextlib.contextmanager
def breaks_noted(note: Callable[[Place], None]) -> Iterator[None]:
    """Calls `note` with the place of each graph break of this thread's conversions."""
    token = _note_break.set(note)
    try:
        with _breaks.active():
            yield
    finally:
        _note_break.reset(token)


def _places_of_breaks() -> Iterator[Replaced]:
    from torch._dynamo.output_graph import GraphCompileReason

    yield GraphCompileReason, "__post_init__", _noting


def _noting(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """A break in a called function has the same place in the function and its caller.

    Dynamo breaks the graphs of both.
    """

    @functools.wraps(original)
    def noted(reason: Any) -> None:
        original(reason)
        note = _note_break.get()
        if note is not None and reason.graph_break and reason.user_stack:
            innermost = reason.user_stack[-1]
            note((innermost.filename, innermost.lineno))

    return noted


_breaks = Replacement(_places_of_breaks)


def traceable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or a wrapper with its name that Dynamo does not skip.

    Dynamo has such a wrapper itself, but only one: all wrapped functions share its
    compiled code and its skips.
    """
    from torch._dynamo import trace_rules

    plain = getattr(fn, "__func__", fn)
    is_function = isinstance(plain, FunctionType)
    if is_function and not trace_rules.check(fn):
        return fn
    # Other callables, such as partials, are not cached: they may hold a model.
    wrapper = _wrapper_of_function if is_function else _wrapper
    code, names = wrapper(plain, getattr(fn, "__qualname__", type(fn).__qualname__))
    return FunctionType(code, names, closure=(CellType(fn),))


def _wrapper(plain: Any, name: str) -> tuple[CodeType, Namespace]:
    """Code and globals of a wrapper; the methods of many modules share them.

    Dynamo stores compiled code with the code object, and its graphs in the globals.
    """

    def around(inner: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        return call

    code = around(None).__code__
    code = code.replace(co_name=name.rpartition(".")[2], co_qualname=name)
    return code, {"__builtins__": builtins, "__name__": __name__}


_wrapper_of_function = functools.cache(_wrapper)


def refuses_to_be_traced(error: BaseException) -> bool:
    """Whether a compiled function raised this only because jit or FX traces the call.

    It raises before it runs anything.
    """
    return isinstance(error, RuntimeError) and str(error).startswith(
        ("Detected that you are using FX to", "Detected that you are using torch.jit")
    )


def is_traced_elsewhere() -> bool:
    """Whether torch.export, torch.jit.trace or FX is tracing the call."""
    from torch.fx import _symbolic_trace

    compiler: Any = torch.compiler
    return bool(
        torch.jit.is_tracing()
        or compiler.is_exporting()
        or getattr(_symbolic_trace, "is_fx_symbolic_tracing", bool)()
    )


def why_compile_is_disabled() -> str | None:
    """The setting that disables Dynamo; None if none does."""
    from torch._dynamo import config, eval_frame

    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return "TORCHDYNAMO_DISABLE=1 in the environment"
    if config.disable:
        if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
            return "TORCH_COMPILE_DISABLE=1 in the environment"
        return "torch._dynamo.config.disable is set"
    stance: str = eval_frame._stance.stance
    if stance == "force_eager":
        return 'torch.compiler.set_stance("force_eager") is in force'
    return None


# -- answers to Dynamo -----------------------------------------------------------------


def eager_once(*, inner: bool) -> Any:
    """The answer to run this frame in eager mode, this time only.

    With `inner`, frames that it calls may be compiled. Otherwise these only use
    existing compiled code.
    """
    from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

    inner_action = FrameAction.DEFAULT if inner else FrameAction.RUN_ONLY
    return ConvertFrameReturn(
        frame_exec_strategy=FrameExecStrategy(FrameAction.SKIP, inner_action),
        apply_to_code=False,
    )


def recompile_limit() -> int:
    """How often torch.compile recompiles a function if it is not told."""
    from torch._dynamo import config

    return int(config.recompile_limit)


def is_graph_break(error: BaseException) -> bool:
    """Whether it is what torch.compile(fullgraph=True) raises instead of breaking."""
    from torch._dynamo import exc

    return isinstance(error, exc.Unsupported | exc.UserError | _over_limit())


def recompile_limit_error(why: str) -> Exception:
    """What torch.compile(fullgraph=True) raises at its recompile limit."""
    error: Exception = _over_limit()(why)
    return error


def _over_limit() -> Any:
    from torch._dynamo import exc

    return exc.FailOnRecompileLimitHit


def is_compiled_code(answer: Any) -> bool:
    return getattr(answer, "guarded_code", None) is not None


def fits(answer: Any, conversion: Conversion) -> bool:
    """Whether the guards of code compiled for another call hold for this frame."""
    return bool(answer.guarded_code.guard_manager.check(conversion.frame.f_locals))


def invalidate(answer: Any, why: str) -> None:
    """Makes Dynamo stop using compiled code that it has already stored."""
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    guards = answer.guarded_code.guard_manager
    if guards.cache_entry is not None and guards.extra_state is not None:
        deleted = DeletedGuardManagerWrapper(why)
        guards.extra_state.invalidate(guards.cache_entry, deleted)
    _detach_finalizers(guards)


def symbolic_shapes_of(gm: Any) -> Any:
    """The environment of symbolic shapes that a graph was traced in, or None."""
    from torch._subclasses import FakeTensor

    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, FakeTensor):
            return value.fake_mode.shape_env
    return None


def release_symbolic_shapes(environment: Any) -> None:
    """Frees the fake inputs of a trace whose guards exist.

    The environment lists them, and their sizes refer to it, out of sight of the garbage
    collector. Torch does the same after a trace that failed.
    """
    environment.tracked_fakes = None
    environment.fake_tensor_cache.clear()


def _detach_finalizers(guards: Any) -> None:
    """Frees the guards: finalizers of the classes that they compare keep them alive."""
    registry: Mapping[weakref.finalize[..., Any], Any]
    registry = getattr(weakref.finalize, "_registry", {})
    for finalizer in list(registry):
        alive = finalizer.peek()
        manager = getattr(getattr(alive and alive[1], "func", None), "__self__", None)
        if getattr(manager, "guard_manager", None) is guards:
            finalizer.detach()


def ranks_by_last_use(code: CodeType) -> Callable[[Any], int]:
    """Returns a function from compiled code to its rank; the last used has rank 0.

    Dynamo moves code to the front of its list when a call uses it. Code that it has
    forgotten comes last.
    """
    ranks = {id(e.guard_manager): rank for rank, e in enumerate(_entries(code))}
    return lambda answer: ranks.get(id(answer.guarded_code.guard_manager), sys.maxsize)


def _entries(code: CodeType) -> list[Any]:
    """The compiled code of a function, in the order in which Dynamo tries it."""
    from torch._C._dynamo import eval_frame

    return list(eval_frame._debug_get_cache_entry_list(code))


def call_directly(answer: Any, names: Namespace) -> None:
    """Makes compiled code call its graph, not the wrapper of its first run.

    `names` are the globals of the function, where Dynamo stores graphs.
    """
    from torch._dynamo import disable

    for name in answer.guarded_code.code.co_names:
        value = names.get(name)
        if not isinstance(value, FunctionType):  # may be the user's object
            continue
        first_run = getattr(value, "_torchdynamo_orig_callable", None)
        if isinstance(first_run, functools.partial) and inspect.isroutine(
            first_run.func
        ):
            names[name] = disable(first_run.func, reason="a compiled graph")


# -- the configuration of a conversion -------------------------------------------------


@contextlib.contextmanager
def compiler_switches(*, generalise: bool) -> Iterator[None]:
    """Sets Dynamo's configuration for a conversion by the runtime.

    Recompile limits are off, because the runtime has its own. Hooks that are added to
    modules later are guarded, and so is which parameters are the same tensor. Only
    inside `compile_lock`: torch 2.11 has one configuration for all threads, and another
    thread would save these changes as the original values and restore them.
    """
    from torch._dynamo import config

    changed: dict[str, Any] = {
        "recompile_limit": 1 << 20,
        "accumulated_recompile_limit": 1 << 20,
        "fail_on_recompile_limit_hit": False,
        "skip_nnmodule_hook_guards": False,
        "skip_no_tensor_aliasing_guards_on_parameters": False,
    }
    if generalise:
        changed |= {
            "assume_static_by_default": False,
            "automatic_dynamic_shapes": True,
            "allow_unspec_int_on_nn_module": True,
        }
    with config.patch(changed), thread_state.unusable_cuda_hidden():
        yield


@contextlib.contextmanager
def compile_lock(until: float) -> Iterator[bool]:
    """Holds torch's compile lock; False if another thread holds it until then.

    Torch compiles one thing at a time, and waits for that without a limit.
    """
    from torch._dynamo import convert_frame

    lock = convert_frame.compile_lock
    wait_s = min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)
    is_mine = False
    try:
        is_mine = lock.acquire(timeout=wait_s)
        yield is_mine
    finally:
        if is_mine:
            lock.release()


def tensors_of(values: Namespace) -> dict[str, torch.Tensor]:
    """The tensors among a frame's arguments by name, those of *args by index.

    Nested tensors are left out: they have no sizes.
    """
    every = dict(values)
    for name, value in values.items():
        if isinstance(value, tuple):
            every |= {f"{name}[{number}]": item for number, item in enumerate(value)}
        elif type(value) is dict:
            every |= {str(key): item for key, item in value.items()}
    tensors = {n: v for n, v in every.items() if isinstance(v, torch.Tensor)}
    return {name: tensor for name, tensor in tensors.items() if not tensor.is_nested}


def describe_code(code: CodeType) -> str:
    """The name, file and line of a function."""
    if code.co_filename == __file__:
        return code.co_qualname  # a wrapper made by `traceable`
    file = code.co_filename.rpartition("/")[2]
    return f"{code.co_qualname} ({file}:{code.co_firstlineno})"
