"""Finds state outside of the arguments that compiled code does not follow.

Takes a runner, returns causes of stale outputs. Compiled code is stale if compiling it
again before every call gives eager's outputs and reusing it does not.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchproof import torch_private
from torchproof.measure.diagnosis.outside_reads import (
    LateHook,
    OutsideReads,
    watched_hooks,
)
from torchproof.measure.diagnosis.reruns import TargetRunner, changed_compile, same
from torchproof.observe import reads_of
from torchproof.records import Frame, whose
from torchproof.targets import frame_of, stack
from torchproof.torch_private import compile_costs, switches


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
