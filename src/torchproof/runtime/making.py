"""Makes the entry of a model: which strategy, tried and measured where asked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from torch import nn

from torchproof.recipe.adoption import given
from torchproof.records import UserError
from torchproof.runtime import ARGUMENTS, arguments_of, deadline_s, following, plan
from torchproof.runtime.entry import Entry, FunctionEntry
from torchproof.runtime.parts import Options, why_eager
from torchproof.strategies import BLOCKS, Strategy, parse


def make(model: Any, settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """The model as `torchproof.compile` returns it."""
    _assert_known(arguments)
    if settings["min_gain"] is not None and settings["example"] is None:
        raise UserError("min_gain needs example=: the arguments of one call to measure")
    if isinstance(model, nn.Module):
        inner = _unwrapped(model)
        entry = Entry.put(inner, "forward", _options(inner, settings, arguments))
    elif callable(model):
        plain = model.plain if isinstance(model, Entry) else model
        options = _options(None, settings, arguments)
        entry = model = FunctionEntry(None, "__call__", plain, options)
    else:
        raise UserError(
            f"cannot compile {type(model).__name__}: give a module or a function"
        )
    assert isinstance(entry, Entry)
    entry.adopt(may_be_moved=True)
    if entry.strategy != "eager" and entry.owner is not None:
        # Decorated functions, which may never be called, do so when they are.
        entry.prepare()
    if settings["example"] is not None and entry.strategy != "eager":
        from torchproof.runtime.rehearsal import rehearse

        rehearse(entry, *arguments_of(settings["example"]), settings["min_gain"])
    return model


def _assert_known(arguments: Mapping[str, Any]) -> None:
    for name in arguments:
        if name == "fullgraph":
            raise UserError(
                "fullgraph=True makes a graph break an error, and nothing here is one:"
                " `torchproof check` finds the breaks"
            )
        if name not in ARGUMENTS:
            near = difflib.get_close_matches(name, [*ARGUMENTS, "strategy", "deadline"])
            hint = f", did you mean {near[0]}?" if near else ""
            raise UserError(f"torchproof.compile takes no argument {name!r}{hint}")


def _unwrapped(model: nn.Module) -> nn.Module:
    """What DistributedDataParallel wraps: it has to be compiled inside of it."""
    while isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    if isinstance(model, nn.DataParallel):
        raise UserError(
            "nn.DataParallel calls copies of the model that share its compiled code:"
            " use DistributedDataParallel"
        )
    return model


def _options(
    model: nn.Module | None, settings: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Options:
    source, by_recipe = None, None
    if settings["recipe"] is not None:
        following.assert_alone(settings, arguments)
        source = given(settings["recipe"])
        by_recipe, why = following.strategy_of(source, model, wait=settings["wait"])
    strategy, why = (by_recipe, why) if by_recipe else _strategy(model, settings)
    if arguments.get("backend") and arguments.get("mode"):
        raise UserError("give a backend or a mode: modes are Inductor's")
    return Options(
        strategy.name,
        why,
        deadline_s(settings["deadline"]),
        verify=_verify(settings["verify"]),
        wait=settings["wait"],
        recompile_limit=settings["recompile_limit"],
        monitor=settings["monitor"],
        arguments=dict(arguments),
        on_event=settings["on_event"],
        recipe=source,
        by_recipe=by_recipe,
    )


def _strategy(
    model: nn.Module | None, settings: Mapping[str, Any]
) -> tuple[Strategy, str]:
    if why := why_eager(model):
        return parse("eager"), why
    if settings["strategy"] is None:
        if model is None:
            return parse("full"), "a function"
        limits = {name: settings[name] for name in ("full_below", "regional_below")}
        chosen = plan(model, **limits)
        if chosen.strategy == "eager" and settings["min_gain"] is not None:
            return parse("regional"), f"{chosen.why}; here it is measured"
        return parse(chosen.strategy), chosen.why
    strategy = parse(settings["strategy"])
    if strategy.graph:
        raise UserError(
            f"strategy {strategy.name!r}: a whole step is recorded by"
            f" torchproof.graph(model, example, strategy={strategy.in_graph.name!r})"
        )
    if strategy.marks:
        raise UserError(
            f"strategy {strategy.name!r}: marks are learned from many calls; sizes that"
            " vary are generalised here by themselves"
        )
    if strategy.arguments.get("fullgraph"):
        _assert_known({"fullgraph": True})
    if model is None and strategy.form in (*BLOCKS, "core"):
        raise UserError(f"strategy {strategy.name!r} needs a module")
    if strategy.form == "core" and strategy.method is None:
        raise UserError("strategy 'core' needs a method: core:encode, for example")
    return strategy, "as asked for"


def _verify(given: Any) -> Any:
    is_count = isinstance(given, int) and not isinstance(given, bool) and given > 0
    if given is False or given == "first" or is_count:
        return given
    raise UserError(f"verify={given!r}: give 'first', a number of calls, or False")
