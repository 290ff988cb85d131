"""Why compiled answers differ from eager's: the entry point of a child process.

Comes in: a target, a job, and whether an arm was found wrong. Goes out: events of kind
`wrong_answer` and `stale_answer`, which the rules NM4xx turn into findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchproof.measure.diagnosis import outside_state
from torchproof.measure.diagnosis.outside_reads import Watch, watch
from torchproof.measure.diagnosis.outside_state import Stale
from torchproof.measure.diagnosis.reruns import Trial, Wrong, same
from torchproof.measure.diagnosis.suspects import (
    LADDER,
    Layer,
    first_wrong_layer,
    suspects,
)
from torchproof.observe import Read, reads_of
from torchproof.records import Event, Frame
from torchproof.targets import Target, calls
from torchproof.torch_private import switches

_TRACING = "eager"
RANDOM = "the random stream"


def diagnose(target: Target, job: dict[str, Any], *, wrong: bool) -> list[Event]:
    """What is to be said about a target's answers.

    Where eager does not give the same answers twice, nothing can be said.
    """
    trial = Trial(target, job)
    seen, answers = watch(trial)
    if not same(answers, trial.eager()):
        return []
    function = calls.function_of(trial.fresh())
    found = _explain(trial, seen, function) if wrong else []
    quiet = [
        *outside_state.ignored_hooks(trial, seen),
        *outside_state.frozen_variables(trial, seen),
    ]
    known = {(event.data.get("what"), event.data.get("name")) for event in found}
    return found + [
        _stale(change, function, None)
        for change in quiet
        if (change.what, change.name) not in known
    ]


def _explain(trial: Trial, seen: Watch, function: Frame) -> list[Event]:
    layer = first_wrong_layer(trial)
    if layer is None:
        return _unexplained(trial, function)
    if changes := _changes(trial, layer, seen):
        return [_stale(change, function, layer) for change in changes]
    if layer.name == LADDER[_TRACING]:
        return _in_tracing(trial, layer, function)
    blamed = suspects(trial, layer.rung)
    return [
        _wrong(
            layer.wrong,
            function,
            frames=each.frames,
            layer=layer.name,
            operation=each.operation,
            gives=each.gives,
            undeclared=list(each.undeclared),
            value=dict(each.numerics),
        )
        for each in blamed
    ] or [_wrong(layer.wrong, function, layer=layer.name)]


def _changes(trial: Trial, layer: Layer, seen: Watch) -> Sequence[Stale]:
    """Generated code knows no surroundings, but for weights folded into it."""
    if layer.name == LADDER["inductor"] and not switches.folds_weights():
        return ()
    return outside_state.stale(trial, layer.rung, layer.wrong.call, seen)


def _in_tracing(trial: Trial, layer: Layer, function: Frame) -> list[Event]:
    """The graph that Dynamo captured computes something else than the program."""
    functions = outside_state.traced(trial, _TRACING)
    if seeds := outside_state.ignores_numpy_seed(trial, functions):
        return [_stale(change, function, layer) for change in seeds]
    asked = [read for read in reads_of(functions) if read.what == "compiling"]
    if asked and _branches_on_compiling(trial):
        return [_branch(layer, function, read) for read in asked]
    return [_wrong(layer.wrong, function, layer=layer.name)]


def _branches_on_compiling(trial: Trial) -> bool:
    """Whether eager, told that it is being compiled, gives the compiled answers."""
    with switches.pretend_compiling():
        pretended = trial.eager()
    return same(pretended, trial.compiled(_TRACING))


def _branch(layer: Layer, function: Frame, read: Read) -> Event:
    return _wrong(
        layer.wrong, function, frames=(read.frame,), layer=layer.name, asks=read.name
    )


def _unexplained(trial: Trial, function: Frame) -> list[Event]:
    """Right with eager's random stream: other random numbers, or wrong only once."""
    try:
        wrong = trial.wrong(trial.compiled())
    except Exception:  # there are no compiled answers to speak of
        return []
    if wrong is None:
        return [Event("wrong_answer", function=function, data={"layer": None})]
    return [_wrong(wrong, function, layer=RANDOM)]


def _wrong(
    wrong: Wrong, function: Frame, frames: tuple[Frame, ...] = (), **data: Any
) -> Event:
    told = {**data, "numerics": wrong.numerics.to_json()}
    return Event("wrong_answer", None, frames, function, told, wrong.call)


def _stale(change: Stale, function: Frame, layer: Layer | None) -> Event:
    data = {
        "what": change.what,
        "name": change.name,
        "old": change.old,
        "new": change.new,
        "replayed": change.replayed,
        "layer": layer.name if layer else None,
        "numerics": layer.wrong.numerics.to_json() if layer else None,
    }
    return Event("stale_answer", None, change.frames, function, data, change.call)
