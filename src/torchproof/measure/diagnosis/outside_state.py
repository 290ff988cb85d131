"""Finds state outside of the arguments that compiled code does not follow.

`watch` records the hooks that a pass in eager registers or removes between calls, each
with its stack; other state is found in the source of what Dynamo traces. Compiled code
is stale if compiling it again before every call gives eager's outputs and reusing it
does not.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from torchproof import torch_private
from torchproof.measure.diagnosis.reruns import (
    TargetRunner,
    changed_compile,
    nothing,
    same,
)
from torchproof.observe import reads_of
from torchproof.records import Frame, Keywords, whose
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
class StaleCause:
    """A change that affects eager and not compiled code."""

    what: Literal[
        "environment", "hook", "numpy_seed", "constant_result", "guards", "other"
    ]
    call: int
    name: str = ""
    frames: tuple[Frame, ...] = ()


@dataclass
class LateHooks:
    """The hooks that change after the first call of a pass, and between calls."""

    hooks: list[StaleCause] = field(default_factory=list)
    fired: int = 0  # calls of late hooks
    call: int = -1  # index of the current call
    inside: bool = False  # that call is running

    def begin(self, index: int) -> None:
        self.call = index

    def around(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that hooks that it registers itself are not late."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.inside = True
            try:
                return fn(*args, **kwargs)
            finally:
                self.inside = False

        return watched

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        with contextlib.ExitStack() as patches:
            hooks = [(torch.nn.Module, name) for name in _HOOKS]
            for owner, name in [*hooks, _REMOVAL]:
                noted = self._noting(name, getattr(owner, name))
                patches.enter_context(torch_private.patched(owner, name, noted))
            yield

    def _noting(self, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def note(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self.call >= 0 and not self.inside:
                cause = StaleCause("hook", self.call + 1, name, stack())
                self.hooks.append(cause)
                args = (*map(self._counted, args[:1]), *args[1:])
            return change(owner, *args, **kwargs)

        return note

    def _counted(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.fired += 1
            return hook(*args, **kwargs)

        return run


def watch(runner: TargetRunner) -> tuple[LateHooks, Answers]:
    """Runs one pass in eager and records the hooks that change between its calls."""
    late = LateHooks()
    with late.recording():
        outputs = runner.eager(late.begin, around=late.around)
    return late, outputs


# -- changes by the program ------------------------------------------------------------


def stale(
    runner: TargetRunner, backend: str | None, call: int, late: LateHooks
) -> list[StaleCause]:
    """Returns why a call gives the outputs of an earlier one; empty if it does not."""
    if call == 0:
        return []
    if dropped := _dropped_guards(runner, backend, call):
        return dropped
    if _still_wrong(runner, backend, recompile=True):
        return []
    if hooks := [hook for hook in late.hooks if hook.call <= call]:
        with switches.guard_module_hooks():
            fixed = not _still_wrong(runner, backend)
        if fixed:
            return _at_each_place(hooks)
    if constant := _constant_results(runner, backend, call):
        return constant
    return [
        StaleCause("environment", call, name, (frame,))
        for name, frame in _reads(traced(runner, backend), "environment")
    ] or [StaleCause("other", call)]


def ignored_hooks(runner: TargetRunner, late: LateHooks) -> list[StaleCause]:
    """Returns late hooks that run in eager and never in compiled code."""
    if not late.fired:
        return []
    compiled = LateHooks()
    try:
        with compiled.recording():
            runner.compiled("eager", compiled.begin)
    except Exception:  # code that does not compile ignores no hooks
        return []
    ignored = compiled.hooks and not compiled.fired
    return _at_each_place(late.hooks) if ignored else []


def _at_each_place(hooks: Sequence[StaleCause]) -> list[StaleCause]:
    return [*{hook.frames: hook for hook in reversed(hooks)}.values()]


def _still_wrong(
    runner: TargetRunner, backend: str | None, *, recompile: bool = False
) -> bool:
    """Whether the outputs are still wrong, or the target no longer runs."""
    prepare = (lambda _: torch.compiler.reset()) if recompile else nothing
    try:
        with compile_costs.eager_random():
            outputs = runner.compiled(backend, prepare)
    except Exception:
        return True
    return runner.wrong(outputs) is not None


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
    reads = _reads(functions, "constant_result")
    return [
        StaleCause("constant_result", call, name, (frame,))
        for name, frame in reads
        if name in names
    ] or [StaleCause("constant_result", call, name) for name in sorted(names)]


def _dropped_guards(
    runner: TargetRunner, backend: str | None, call: int
) -> list[StaleCause]:
    """Returns what disables guards, if that is the cause."""
    dropped: dict[str, tuple[Frame, ...]] = {}
    set_stance = torch.compiler.set_stance

    def keep_all(arguments: Keywords) -> Keywords:
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


def _reads(functions: Sequence[Frame], what: str) -> list[tuple[str, Frame]]:
    """The names that the functions read, with the places."""
    found = [read for read in reads_of(functions) if read.what == what]
    return list(dict.fromkeys((read.name, read.frame) for read in found))


def ignores_numpy_seed(
    runner: TargetRunner, functions: Sequence[Frame]
) -> list[StaleCause]:
    """Returns calls for which compiled code uses torch's generator, eager numpy's."""
    drawn = _reads(functions, "numpy_random")
    if not drawn:
        return []

    def other_seed(index: int) -> None:
        torch.manual_seed(1000 + index)

    with compile_costs.eager_random():
        first, second = runner.compiled("eager"), runner.compiled("eager", other_seed)
    if same(first, second):
        return []
    return [StaleCause("numpy_seed", 0, name, (frame,)) for name, frame in drawn]
