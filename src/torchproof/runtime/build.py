"""Builds the `CompiledForward` of a model: chooses the strategy, and runs the trials.

Takes the checked arguments of `torchproof.compile`, returns the compiled model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn

from torchproof.records import Keywords, UserError
from torchproof.runtime import policy, probe, recipe_following, speed_trial
from torchproof.runtime.argument_checks import arguments_of, deadline_s
from torchproof.runtime.compiled_forward import CompiledForward, CompiledFunction
from torchproof.runtime.method_replacement import Options, method_of, why_eager
from torchproof.runtime.status_report import Fallback
from torchproof.strategies import BLOCKS, Strategy, parse, recipe_source
from torchproof.torch_private import module_copies, switches


def make(model: Any, settings: Keywords, arguments: Keywords) -> Any:
    """The model as `torchproof.compile` returns it; the arguments have been checked."""
    arguments = {
        name: value
        for name, value in arguments.items()
        if value is not None and (value is not False or name == "dynamic")
    }
    if (
        "backend" not in arguments
        and (default := switches.default_backend()) != "inductor"
    ):
        arguments["backend"] = default
    if isinstance(model, nn.Module):
        inner = unwrapped(model)
        for wrapper in {model, inner}:
            module_copies.undo_compile(wrapper)
        forward = CompiledForward.install(
            inner, "forward", _options(inner, settings, arguments)
        )
    elif callable(model):
        plain = model.plain if isinstance(model, CompiledForward) else model
        options = _options(None, settings, arguments)
        forward = model = CompiledFunction(None, "__call__", plain, options)
    else:
        raise UserError(
            f"cannot compile {type(model).__name__}: give a module or a function"
        )
    assert isinstance(forward, CompiledForward)
    forward.adopt(may_be_moved=True)
    if forward.strategy != "eager" and forward.owner is not None:
        # Decorated functions may never be called; they prepare at their first call.
        forward.prepare()
    if settings["example"] is not None and forward.strategy != "eager":
        args, kwargs = arguments_of(settings["example"])
        _try_example(forward, args, kwargs, settings["min_gain"])
    forward.telemetry.deliver()
    return model


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside wrappers that must call compiled code, not be part of it.

    nn.DataParallel copies it to each GPU, if there are several, and copies run eager.
    """
    wrappers = nn.parallel.DistributedDataParallel, nn.DataParallel
    while isinstance(model, wrappers):
        model = model.module
    return model


def _options(
    model: nn.Module | None, settings: Keywords, arguments: Keywords
) -> Options:
    source = None
    by_recipe = None
    if settings["recipe"] is not None:
        recipe_following.assert_alone(settings, arguments)
        source = recipe_source(settings["recipe"])
        by_recipe, why = recipe_following.strategy_of(
            source, model, wait=settings["wait"]
        )
    strategy, why = (by_recipe, why) if by_recipe else _strategy(model, settings)
    return Options(
        strategy.name,
        why,
        deadline_s(settings["deadline"]),
        verify=settings["verify"],
        wait=settings["wait"],
        recompile_limit=settings["recompile_limit"],
        arguments=dict(arguments),
        on_event=settings["on_event"],
        recipe=source,
        by_recipe=by_recipe,
    )


def _strategy(model: nn.Module | None, settings: Keywords) -> tuple[Strategy, str]:
    if why := why_eager(model):
        return parse("eager"), why
    if settings["strategy"] is None:
        if model is None:
            return parse("full"), "a function"
        limits = {name: settings[name] for name in ("full_below", "regional_below")}
        chosen = policy.plan(model, **limits)
        if chosen.strategy == "eager" and settings["min_gain"] is not None:
            return parse("regional"), f"{chosen.why}; min_gain measures it here"
        return parse(chosen.strategy), chosen.why
    strategy = parse(settings["strategy"])
    if strategy.graph:
        raise UserError(
            f"strategy {strategy.name!r}: to record a whole step as a CUDA graph, use"
            f" torchproof.graph(model, example, strategy={strategy.in_graph.name!r})"
        )
    if strategy.marks:
        raise UserError(
            f"strategy {strategy.name!r}: torchproof.compile takes no marks; it makes"
            " sizes that vary dynamic by itself"
        )
    if model is None and strategy.form in (*BLOCKS, "core"):
        raise UserError(f"strategy {strategy.name!r} needs a module")
    if strategy.form == "core" and strategy.method is None:
        raise UserError("strategy 'core' needs a method: core:encode, for example")
    if strategy.form == "core":
        assert model is not None and strategy.method is not None
        method_of(model, strategy.method)
    return strategy, "requested"


# -- the trial before traffic ----------------------------------------------------------


def _try_example(
    forward: CompiledForward,
    args: tuple[Any, ...],
    kwargs: Keywords,
    min_gain: float | None,
) -> None:
    """Keeps the model eager if the example crashes, or gains less than the minimum."""
    why_not = _probe(forward, args, kwargs)
    if why_not is not None:
        forward.go_eager(Fallback("probe", "the model", why_not))
    elif min_gain is not None:
        _decide(forward, args, kwargs, min_gain)


def _probe(
    forward: CompiledForward, args: tuple[Any, ...], kwargs: Keywords
) -> str | None:
    # A compiled forward compiles itself in the child too, as it will here.
    subject = forward if forward.owner is None else forward.owner
    try:
        return probe.probe(
            subject,
            args,
            kwargs,
            seconds=forward.options.deadline_s,
        )
    except probe.NotProbed as error:
        forward.telemetry.note(str(error))
        return None


def _decide(
    forward: CompiledForward,
    args: tuple[Any, ...],
    kwargs: Keywords,
    min_gain: float,
) -> None:
    def make(
        module: nn.Module | None,
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        # It shares the engine, so that traffic uses the code compiled here.
        timed = forward.for_timing(module)
        return timed.run_eager, timed

    trial = speed_trial.measured(make, args, kwargs, owner=forward.owner)
    forward.worth = dataclasses.asdict(trial) | {"summary": str(trial)}
    forward.engine.saving_ms = trial.eager_ms - trial.compiled_ms
    if not trial.pays(min_gain):
        forward.go_eager(Fallback("gain", "the model", _too_little(trial, min_gain)))


def _too_little(trial: speed_trial.SpeedTrial, min_gain: float) -> str:
    if trial.gain < min_gain:
        return f"{trial}: less than the minimum of {min_gain:.0%}"
    return f"{trial}: not certain enough to count"
