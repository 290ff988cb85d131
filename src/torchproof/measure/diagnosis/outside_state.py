"""What eager code sees of its surroundings, and compiled code does not.

Comes in: a trial. Goes out: causes of stale answers. Compiled code is stale where
compiling it anew before every call gives eager's answers and keeping it does not, or
where eager's answer changes with an environment variable and the compiled one stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchproof import torch_private
from torchproof.measure.diagnosis.outside_reads import (
    LateHook,
    VariableRead,
    Watch,
    watched_hooks,
)
from torchproof.measure.diagnosis.reruns import Trial, changed_compile, same
from torchproof.observe import reads_of
from torchproof.records import Frame, whose
from torchproof.targets import Answers, Loaded, frame_of, stack
from torchproof.torch_private import compile_costs, switches

# Tried in turn for a variable, besides what the code compares it with.
_VALUES = ("1", "0", "2", "true")
_MOST_VARIABLES = 4
_MOST_VALUES = 8


@dataclass(frozen=True)
class Stale:
    """A change that eager sees and compiled code does not."""

    what: Literal[
        "environment", "hook", "numpy_seed", "constant_result", "guards", "other"
    ]
    call: int
    name: str = ""
    frames: tuple[Frame, ...] = ()
    old: str | None = None
    new: str | None = None
    replayed: bool = False  # the change was torchproof's, not the program's


# -- what the calls themselves change --------------------------------------------------


def stale(trial: Trial, rung: str | None, call: int, seen: Watch) -> list[Stale]:
    """Why the answers of a call are those of an earlier one; empty if they are not."""
    if call == 0:
        return []
    if left_out := _left_out_guards(trial, rung, call):
        return left_out
    if _still_wrong(trial, rung, anew=True):
        return []
    if changed := list(_changed_variables(seen, call)):
        return changed
    late = [hook for hook in seen.hooks if hook.call <= call]
    if late:
        with switches.guard_module_hooks():
            cured = not _still_wrong(trial, rung)
        if cured:
            return _from_hooks(late)
    if constant := _constant_results(trial, rung, call):
        return constant
    return [Stale("other", call)]


def ignored_hooks(trial: Trial, seen: Watch) -> list[Stale]:
    """Hooks of later calls that run in eager and never in compiled code."""
    if not seen.fired:
        return []
    other = Watch()
    try:
        with watched_hooks(other):
            trial.compiled("eager", other.begin)
    except Exception:  # what cannot be compiled ignores nothing
        return []
    return _from_hooks(seen.hooks) if other.hooks and not other.fired else []


def _from_hooks(hooks: Sequence[LateHook]) -> list[Stale]:
    at_each_place = {hook.frames: hook for hook in reversed(hooks)}
    return [
        Stale("hook", hook.call, hook.name, hook.frames)
        for hook in at_each_place.values()
    ]


def _still_wrong(trial: Trial, rung: str | None, *, anew: bool = False) -> bool:
    """Whether it makes no difference; what cannot run makes none."""

    def prepare(index: int) -> None:
        if anew:
            torch.compiler.reset()

    try:
        with compile_costs.eager_random():
            answers = trial.compiled(rung, prepare)
    except Exception:
        return True
    return trial.wrong(answers) is not None


def _changed_variables(seen: Watch, call: int) -> Iterator[Stale]:
    """Variables that a call reads otherwise than the calls before it."""
    for name in dict.fromkeys(read.name for read in seen.variables):
        reads = [read for read in seen.variables if read.name == name]
        then = [read for read in reads if read.call < call]
        now = [read for read in reads if read.call == call]
        if then and now and then[-1].value != now[0].value:
            frames, old, new = now[0].frames, then[-1].value, now[0].value
            yield Stale("environment", call, name, frames, old=old, new=new)


def _constant_results(trial: Trial, rung: str | None, call: int) -> list[Stale]:
    """Results taken for constants, if that is why the answers are stale."""
    marked: list[Any] = []
    with switches.constant_results(marked.append):
        functions = traced(trial, rung)
    if not marked:
        return []
    with switches.no_constant_results():
        if _still_wrong(trial, rung):
            return []
    names = {getattr(each, "__name__", "") for each in marked}
    calls_of = [
        read
        for read in reads_of(functions)
        if read.what == "constant_result" and read.name in names
    ]
    return [
        Stale("constant_result", call, read.name, (read.frame,)) for read in calls_of
    ] or [Stale("constant_result", call, name) for name in sorted(names)]


def _left_out_guards(trial: Trial, rung: str | None, call: int) -> list[Stale]:
    """What keeps guards from being checked, if that is why the answers are stale."""
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
        if _still_wrong(trial, rung):
            return []
    return [Stale("guards", call, name, at) for name, at in dropped.items()]


def traced(trial: Trial, rung: str | None) -> list[Frame]:
    """The functions of users and libraries that Dynamo traces in a pass."""
    codes: list[types.CodeType] = []

    def convert(answer: Callable[[], Any], asked: Any) -> Any:
        codes.append(asked.frame.f_code)
        return answer()

    with (
        torch_private.inlined_code(codes.append),
        torch_private.frame_callbacks(convert),
    ):
        trial.compiled(rung)
    functions = map(frame_of, dict.fromkeys(codes))
    return [each for each in functions if whose(each.file) in {"user", "library"}]


# -- numpy's seed ----------------------------------------------------------------------


def ignores_numpy_seed(trial: Trial, functions: Sequence[Frame]) -> list[Stale]:
    """Whether compiled code draws from torch's generator where eager uses numpy's."""
    drawn = [read for read in reads_of(functions) if read.what == "numpy_random"]
    if not drawn:
        return []

    def other_seed(index: int) -> None:
        torch.manual_seed(1000 + index)

    with compile_costs.eager_random():
        first, second = trial.compiled("eager"), trial.compiled("eager", other_seed)
    if same(first, second):
        return []
    frames = dict.fromkeys((read.name, read.frame) for read in drawn)
    return [Stale("numpy_seed", 0, name, (frame,)) for name, frame in frames]


# -- what the calls do not change, but somebody else may -------------------------------


def frozen_variables(trial: Trial, seen: Watch) -> list[Stale]:
    """Environment variables whose change eager sees and compiled code does not."""
    found = []
    first = {read.name: read for read in reversed(seen.variables)}
    for read in list(first.values())[:_MOST_VARIABLES]:
        with contextlib.suppress(Exception):  # what cannot run twice is no evidence
            if change := _ignored_change(trial, read):
                found.append(change)
    return found


def _ignored_change(trial: Trial, read: VariableRead) -> Stale | None:
    base = _twice(trial, {}, backend=None)
    for value in _other_values(read):
        change = {read.name: value}
        try:
            expected = _twice(trial, change, backend=None)
        except Exception:  # a value that the program refuses
            continue
        if same(expected, base):
            continue
        got = _twice(trial, change, backend="eager")
        if same(got, expected) or not same(got, base):
            return None
        frames, old = read.frames, read.value
        return Stale(
            "environment", 0, read.name, frames, old=old, new=value, replayed=True
        )
    return None


def _other_values(read: VariableRead) -> list[str | None]:
    """What else the variable may be; first what the code around compares it with."""
    known = [
        value
        for each in reads_of(read.frames[-1:])
        if each.what == "environment" and each.name == read.name
        for value in each.values
    ]
    candidates: list[str | None] = [*known, *_VALUES]
    if read.value is not None:
        candidates.insert(0, None)
    fitting = dict.fromkeys(each for each in candidates if each != read.value)
    return list(fitting)[:_MOST_VALUES]


def _twice(
    trial: Trial, change: dict[str, str | None], *, backend: str | None
) -> Answers:
    """The answers of the first call made again, after a change of the environment."""

    def prepare(index: int) -> None:
        for name, value in change.items() if index == 1 else ():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    if backend is None:
        both = trial.eager(prepare, load=_first_call_twice)
    else:
        both = trial.compiled(backend, prepare, load=_first_call_twice)
    return {label: value for label, value in both.items() if label.startswith("call 1")}


def _first_call_twice(load: Callable[[], Loaded]) -> Callable[[], Loaded]:
    """A target with its first call and a copy of it; before_call runs for the first."""

    def load_both() -> Loaded:
        again, loaded = load(), load()

        def before(fn: Any, index: int) -> None:
            if index == 0 and loaded.before_call is not None:
                loaded.before_call(fn, 0)

        both = [loaded.calls[0], again.calls[0]]
        return dataclasses.replace(loaded, calls=both, before_call=before)

    return load_both
