"""Finds state outside of the arguments that compiled code does not follow.

`watch` records what a pass in eager reads outside of its arguments: environment
variables, and hooks that are registered or removed between calls, each with its stack.
Compiled code is stale if compiling it again before every call gives eager's outputs and
reusing it does not.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from torchproof import torch_private
from torchproof.measure.diagnosis.reruns import TargetRunner, changed_compile, same
from torchproof.observe import reads_of
from torchproof.records import Frame, whose
from torchproof.targets import Answers, frame_of, stack
from torchproof.torch_private import compile_costs, switches

_HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)
_REMOVAL = (torch.utils.hooks.RemovableHandle, "remove")


@dataclass(frozen=True)
class VariableRead:
    """An environment variable read inside a call; `value` is None if it is unset."""

    name: str
    value: str | None
    call: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class LateHook:
    """A hook registered after a module's first call, and before call `call`."""

    name: str
    call: int
    frames: tuple[Frame, ...]


@dataclass
class OutsideReads:
    """The outside reads of a pass in eager."""

    variables: list[VariableRead] = field(default_factory=list)
    hooks: list[LateHook] = field(default_factory=list)
    fired: int = 0  # calls of late hooks
    call: int = -1  # index of the current call
    inside: bool = False

    def begin(self, index: int) -> None:
        self.call = index

    def around(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that variables it reads are recorded."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.inside = True
            try:
                return fn(*args, **kwargs)
            finally:
                self.inside = False

        return watched

    def note_variable(self, name: Any, value: str | None) -> None:
        if not self.inside or not isinstance(name, str):
            return
        frames = stack()
        while frames and whose(frames[-1].file) in {"standard", "generated"}:
            frames = frames[:-1]
        if frames and whose(frames[-1].file) in {"user", "library"}:
            self.variables.append(VariableRead(name, value, self.call, frames))

    def note_hook(self, name: str) -> bool:
        """Records a hook that is late; returns whether it is."""
        late = self.call >= 0 and not self.inside
        if late:
            self.hooks.append(LateHook(name, self.call + 1, stack()))
        return late

    def counted(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.fired += 1
            return hook(*args, **kwargs)

        return run


def watch(runner: TargetRunner) -> tuple[OutsideReads, Answers]:
    """Runs one pass in eager and records its outside reads."""
    reads = OutsideReads()
    with _watched_variables(reads), watched_hooks(reads):
        outputs = runner.eager(reads.begin, around=reads.around)
    return reads, outputs


@contextlib.contextmanager
def _watched_variables(reads: OutsideReads) -> Iterator[None]:
    original = type(os.environ).__getitem__

    def get(self: Any, key: Any) -> Any:
        try:
            value = original(self, key)
        except KeyError:
            reads.note_variable(key, None)
            raise
        reads.note_variable(key, value)
        return value

    with torch_private.patched(type(os.environ), "__getitem__", get):
        yield


@contextlib.contextmanager
def watched_hooks(reads: OutsideReads) -> Iterator[None]:
    def watched(name: str, register: Callable[..., Any]) -> Callable[..., Any]:
        def note(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if reads.note_hook(name) and args:
                args = (reads.counted(args[0]), *args[1:])
            return register(self, *args, **kwargs)

        return note

    with contextlib.ExitStack() as patches:
        for owner, name in [*((torch.nn.Module, name) for name in _HOOKS), _REMOVAL]:
            note = watched(name, getattr(owner, name))
            patches.enter_context(torch_private.patched(owner, name, note))
        yield


# -- causes of stale outputs -----------------------------------------------------------


@dataclass(frozen=True)
class StaleCause:
    """A change that affects eager and not compiled code."""

    what: Literal[
        "environment", "hook", "numpy_seed", "constant_result", "guards", "other"
    ]
    call: int
    name: str = ""
    frames: tuple[Frame, ...] = ()
    old: str | None = None
    new: str | None = None


# -- changes by the program ------------------------------------------------------------


def stale(
    runner: TargetRunner, backend: str | None, call: int, reads: OutsideReads
) -> list[StaleCause]:
    """Returns why a call gives the outputs of an earlier one; empty if it does not."""
    if call == 0:
        return []
    if dropped := _dropped_guards(runner, backend, call):
        return dropped
    if _still_wrong(runner, backend, recompile=True):
        return []
    if changed := list(_changed_variables(reads, call)):
        return changed
    late = [hook for hook in reads.hooks if hook.call <= call]
    if late:
        with switches.guard_module_hooks():
            fixed = not _still_wrong(runner, backend)
        if fixed:
            return _from_hooks(late)
    if constant := _constant_results(runner, backend, call):
        return constant
    return [StaleCause("other", call)]


def ignored_hooks(runner: TargetRunner, reads: OutsideReads) -> list[StaleCause]:
    """Returns late hooks that run in eager and never in compiled code."""
    if not reads.fired:
        return []
    compiled_reads = OutsideReads()
    try:
        with watched_hooks(compiled_reads):
            runner.compiled("eager", compiled_reads.begin)
    except Exception:  # code that does not compile ignores no hooks
        return []
    return (
        _from_hooks(reads.hooks)
        if compiled_reads.hooks and not compiled_reads.fired
        else []
    )


def _from_hooks(hooks: Sequence[LateHook]) -> list[StaleCause]:
    at_each_place = {hook.frames: hook for hook in reversed(hooks)}
    return [
        StaleCause("hook", hook.call, hook.name, hook.frames)
        for hook in at_each_place.values()
    ]


def _still_wrong(
    runner: TargetRunner, backend: str | None, *, recompile: bool = False
) -> bool:
    """Whether the outputs are still wrong, or the target no longer runs."""

    def prepare(index: int) -> None:
        if recompile:
            torch.compiler.reset()

    try:
        with compile_costs.eager_random():
            outputs = runner.compiled(backend, prepare)
    except Exception:
        return True
    return runner.wrong(outputs) is not None


def _changed_variables(outside: OutsideReads, call: int) -> Iterator[StaleCause]:
    """Yields variables whose value differs from that of earlier calls."""
    for name in dict.fromkeys(read.name for read in outside.variables):
        reads = [read for read in outside.variables if read.name == name]
        then = [read for read in reads if read.call < call]
        now = [read for read in reads if read.call == call]
        if then and now and then[-1].value != now[0].value:
            yield StaleCause(
                "environment",
                call,
                name,
                now[0].frames,
                old=then[-1].value,
                new=now[0].value,
            )


def _constant_results(
    runner: TargetRunner, backend: str | None, call: int
) -> list[StaleCause]:
    """Returns results that the compiler treats as constants, if they are the cause."""
    marked: list[Any] = []
    with switches.constant_results(marked.append):
        functions = traced(runner, backend)
    if not marked:
        return []
    with switches.no_constant_results():
        if _still_wrong(runner, backend):
            return []
    names = {getattr(each, "__name__", "") for each in marked}
    reads = [
        read
        for read in reads_of(functions)
        if read.what == "constant_result" and read.name in names
    ]
    return [
        StaleCause("constant_result", call, read.name, (read.frame,)) for read in reads
    ] or [StaleCause("constant_result", call, name) for name in sorted(names)]


def _dropped_guards(
    runner: TargetRunner, backend: str | None, call: int
) -> list[StaleCause]:
    """Returns what disables guards, if that is the cause."""
    dropped: dict[str, tuple[Frame, ...]] = {}
    set_stance = torch.compiler.set_stance

    def keep_all(arguments: dict[str, Any]) -> dict[str, Any]:
        options = dict(arguments.get("options") or {})
        if options.pop("guard_filter_fn", None):
            dropped["guard_filter_fn"] = stack()
        return {**arguments, "options": options or None}

    def check_all(*args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("skip_guard_eval_unsafe", False):
            dropped["skip_guard_eval_unsafe"] = stack()
        return set_stance(*args, **kwargs)

    with (
        changed_compile(keep_all),
        torch_private.patched(torch.compiler, "set_stance", check_all),
    ):
        if _still_wrong(runner, backend):
            return []
    return [StaleCause("guards", call, name, at) for name, at in dropped.items()]


def traced(runner: TargetRunner, backend: str | None) -> list[Frame]:
    """Returns the functions of users and libraries that Dynamo traces in a pass."""
    codes: list[types.CodeType] = []

    def convert(answer: Callable[[], Any], request: Any) -> Any:
        codes.append(request.frame.f_code)
        return answer()

    with (
        torch_private.inlined_code(codes.append),
        torch_private.frame_callbacks(convert),
    ):
        runner.compiled(backend)
    functions = map(frame_of, dict.fromkeys(codes))
    return [each for each in functions if whose(each.file) in {"user", "library"}]


# -- numpy's seed ----------------------------------------------------------------------


def ignores_numpy_seed(
    runner: TargetRunner, functions: Sequence[Frame]
) -> list[StaleCause]:
    """Returns calls for which compiled code uses torch's generator, eager numpy's."""
    drawn = [read for read in reads_of(functions) if read.what == "numpy_random"]
    if not drawn:
        return []

    def other_seed(index: int) -> None:
        torch.manual_seed(1000 + index)

    with compile_costs.eager_random():
        first, second = runner.compiled("eager"), runner.compiled("eager", other_seed)
    if same(first, second):
        return []
    frames = dict.fromkeys((read.name, read.frame) for read in drawn)
    return [StaleCause("numpy_seed", 0, name, (frame,)) for name, frame in frames]
