"""Finds why compiled outputs differ from eager's.

Takes a job, and whether the outputs of a strategy are wrong. Returns an `AnswerEvent`
for each cause, which the rules NM4xx turn into findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchproof.measure.diagnosis import outside_state
from torchproof.measure.diagnosis.outside_state import (
    LateHooks,
    StaleCause,
    watch,
)
from torchproof.measure.diagnosis.reruns import TargetRunner, WrongCall, same
from torchproof.measure.diagnosis.suspects import (
    LAYERS,
    Layer,
    first_wrong_layer,
    suspects,
)
from torchproof.observe import Read, reads_of
from torchproof.records import (
    FormDifference,
    Frame,
    StaleAnswerEvent,
    WrongAnswerEvent,
)
from torchproof.targets import Job, calls
from torchproof.torch_private import switches

_TRACING = "eager"
RANDOM = "the random stream"


def diagnose(
    job: Job,
    *,
    wrong: bool,
    forms: Sequence[FormDifference] = (),
) -> list[WrongAnswerEvent | StaleAnswerEvent]:
    """Returns events about the outputs of a target.

    `wrong` says that compiled values differ from eager's, `forms` how strides and the
    like do. There are no events if eager does not give the same outputs twice.
    """
    runner = TargetRunner(job)
    late, outputs = watch(runner)
    if not same(outputs, runner.eager()):
        return []
    function = calls.function_of(runner.fresh())
    if wrong:
        events = _explain(runner, late, function)
    else:
        events = [WrongAnswerEvent(function=function, form=each) for each in forms]
    causes = outside_state.ignored_hooks(runner, late)
    stale = (event for event in events if isinstance(event, StaleAnswerEvent))
    explained = {(event.what, event.name) for event in stale}
    return events + [
        _stale(cause, function, None)
        for cause in causes
        if (cause.what, cause.name) not in explained
    ]


def _explain(
    runner: TargetRunner, late: LateHooks, function: Frame
) -> list[WrongAnswerEvent | StaleAnswerEvent]:
    layer = first_wrong_layer(runner)
    if layer is None:
        return _unexplained(runner, function)
    if causes := _stale_causes(runner, layer, late):
        return [_stale(cause, function, layer) for cause in causes]
    if layer.name == LAYERS[_TRACING]:
        return _in_tracing(runner, layer, function)
    operations = suspects(runner, layer.backend)
    return [
        _wrong(
            layer.wrong,
            function,
            frames=each.frames,
            layer=layer.name,
            operation=each.operation,
            gives=each.gives,
            undeclared=each.undeclared,
            value=dict(each.numerics),
        )
        for each in operations
    ] or [_wrong(layer.wrong, function, layer=layer.name)]


def _stale_causes(
    runner: TargetRunner, layer: Layer, late: LateHooks
) -> Sequence[StaleCause]:
    """Returns stale causes; generated code has none, except for folded weights."""
    if layer.name == LAYERS["inductor"] and not switches.folds_weights():
        return ()
    return outside_state.stale(runner, layer.backend, layer.wrong.call, late)


def _in_tracing(
    runner: TargetRunner, layer: Layer, function: Frame
) -> list[WrongAnswerEvent | StaleAnswerEvent]:
    """Explains a graph of Dynamo that computes something else than the program."""
    functions = outside_state.traced(runner, _TRACING)
    if seeds := outside_state.ignores_numpy_seed(runner, functions):
        return [_stale(cause, function, layer) for cause in seeds]
    compiling_reads = [read for read in reads_of(functions) if read.what == "compiling"]
    if compiling_reads and _branches_on_compiling(runner):
        return [_branch(layer, function, read) for read in compiling_reads]
    return [_wrong(layer.wrong, function, layer=layer.name)]


def _branches_on_compiling(runner: TargetRunner) -> bool:
    """Whether eager, with is_compiling() true, gives the compiled outputs."""
    with switches.pretend_compiling():
        pretended = runner.eager()
    return same(pretended, runner.compiled(_TRACING))


def _branch(layer: Layer, function: Frame, read: Read) -> WrongAnswerEvent:
    return _wrong(
        layer.wrong, function, frames=(read.frame,), layer=layer.name, asks=read.name
    )


def _unexplained(
    runner: TargetRunner, function: Frame
) -> list[WrongAnswerEvent | StaleAnswerEvent]:
    """Handles outputs that are right with eager's random stream."""
    try:
        wrong = runner.wrong(runner.compiled())
    except Exception:  # there are no compiled outputs
        return []
    if wrong is None:
        return [WrongAnswerEvent(function=function)]
    return [_wrong(wrong, function, layer=RANDOM)]


def _wrong(wrong: WrongCall, function: Frame, **details: Any) -> WrongAnswerEvent:
    return WrongAnswerEvent(
        function=function,
        numerics=wrong.numerics.to_json(),
        call=wrong.call,
        **details,
    )


def _stale(cause: StaleCause, function: Frame, layer: Layer | None) -> StaleAnswerEvent:
    return StaleAnswerEvent(
        frames=cause.frames,
        function=function,
        call=cause.call,
        what=cause.what,
        name=cause.name,
        layer=layer.name if layer else None,
        numerics=layer.wrong.numerics.to_json() if layer else {},
    )
