"""The strategies of a load test: those of `bench`, and what production code calls.

| name | what is served |
|---|---|
| `full`, `regional:dynamic`, `full:reduce-overhead`... | as in `bench` |
| `full+graph`, `regional+graph` | `torchproof.graph`, recorded at the first call |
| `full+graph:nowait`, `graph:nowait` | the same with `wait=False`; the best strategy |
| `compile`, `compile:regional`, `compile:nowait` | `torchproof.compile`, `wait=False` |
| `recipe:FILE`, `recipe:FILE:nowait` | `torchproof.compile` with a recipe |
| `pack:DIR` | `torchproof.load` |

Each is applied by running its own Python lines, which the report shows. Unlike in
`bench`, a CUDA graph is not recorded in advance: its first call is part of the test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchproof.records import Record, UserError
from torchproof.strategies import (
    GRAPH,
    NotApplicable,
    Plan,
    Strategy,
    parse,
    source_lines,
    with_arguments,
)

if TYPE_CHECKING:
    from torchproof.strategies import Applied

COMPILE, RECIPE, PACK, NOWAIT = "compile", "recipe", "pack", "nowait"
AS_WRITTEN = "as-written"
BEST = f"{GRAPH}:{NOWAIT}"
DEFAULTS = ("eager", "full", f"{COMPILE}:{NOWAIT}")
_MODEL = "model"
_COMPILE_FORMS = ("full", "regional", "nested", "eager")


@dataclass(frozen=True)
class ServedStrategy(Record):
    """A way to serve a model: a strategy of `bench`, or lines that make it."""

    name: str
    strategy: Strategy | None = None
    lines: str = ""
    on_cuda: bool = False  # it records CUDA graphs
    in_graph: Strategy | None = None  # how the step is compiled inside the graph

    @property
    def as_written(self) -> bool:
        return self.name == AS_WRITTEN


def named(text: str, compile_arguments: dict[str, Any] | None = None) -> ServedStrategy:
    """Parses the name of a strategy; raises a `UserError` that says what is wrong."""
    head, *words = text.split(":")
    if head == COMPILE:
        return _compiled(text, words)
    if head == RECIPE:
        return _followed(text)
    if head == PACK:
        return _packed(text)
    if head == GRAPH:
        if text != BEST:
            raise UserError(f"strategy {text!r}: did you mean {BEST}?")
        lines = _called("torchproof.graph", [_MODEL, "wait=False"])
        return ServedStrategy(text, lines=lines, on_cuda=True)
    waits = words[-1:] != [NOWAIT]
    strategy = parse(text if waits else text.removesuffix(f":{NOWAIT}"))
    if compile_arguments and strategy.compiles:
        strategy = with_arguments(strategy, **compile_arguments)
    if not strategy.graph:
        if not waits:
            raise UserError(
                f"strategy {text!r}: torch.compile always waits: use {COMPILE}:{NOWAIT}"
            )
        return ServedStrategy(text, strategy)
    lines = source_lines.recorded(
        strategy, _MODEL, Plan(), at_first_call=True, wait=waits
    )
    return ServedStrategy(text, lines=lines, on_cuda=True, in_graph=strategy.in_graph)


def _compiled(text: str, words: Sequence[str]) -> ServedStrategy:
    arguments = [_MODEL]
    forms = [word for word in words if word != NOWAIT]
    if len(forms) > 1 or (forms and forms[0] not in _COMPILE_FORMS):
        choices = ", ".join((*_COMPILE_FORMS, NOWAIT))
        raise UserError(
            f"strategy {text!r}: {forms[-1]!r} is unknown after {COMPILE}: choose from"
            f" {choices}"
        )
    arguments += [f"strategy={json.dumps(form)}" for form in forms]
    arguments += ["wait=False"] if NOWAIT in words else []
    return ServedStrategy(text, lines=_called("torchproof.compile", arguments))


def _followed(text: str) -> ServedStrategy:
    path = text.partition(":")[2]
    waits = not path.endswith(f":{NOWAIT}")
    path = path.removesuffix(f":{NOWAIT}")
    if not os.path.isfile(path):
        raise UserError(f"strategy {text!r}: there is no recipe {path!r}")
    arguments = [_MODEL, f"recipe={json.dumps(path)}"]
    arguments += [] if waits else ["wait=False"]
    return ServedStrategy(text, lines=_called("torchproof.compile", arguments))


def _packed(text: str) -> ServedStrategy:
    path = text.partition(":")[2]
    if not os.path.exists(path):
        raise UserError(
            f"strategy {text!r}: there is no pack {path!r}: torchproof pack TARGET"
            " --for deploy makes one"
        )
    # A pack that is refused must not be measured under its name.
    arguments = [json.dumps(path), _MODEL, "strict=True"]
    return ServedStrategy(text, lines=_called("torchproof.load", arguments))


def _called(function: str, arguments: Sequence[str]) -> str:
    call = f"{_MODEL} = {function}({', '.join(arguments)})"
    return f"import torchproof\n\n{call}"


def assert_distinct(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--strategies: {name} is there twice")


def apply(
    served: ServedStrategy,
    fn: Callable[..., Any],
    calls: Sequence[Any],
    plan: Plan | None = None,
) -> Applied:
    """What answers the requests; runs in the process of the strategy."""
    from torchproof.strategies import Applied, on_cuda

    if served.as_written:
        return Applied(fn, source="")
    if served.strategy is not None:
        return served.strategy.apply(fn, calls, plan)
    if served.on_cuda and not on_cuda(fn, calls):
        raise NotApplicable("CUDA graphs need a CUDA device")
    names: dict[str, Any] = {_MODEL: fn}
    exec(compile(served.lines, f"<strategy {served.name}>", "exec"), names)
    if served.name.startswith(f"{RECIPE}:"):
        # A model that runs eager must not be measured under the name of a recipe.
        status = names["torchproof"].status(names[_MODEL])
        if status.recipe is not None and status.recipe["followed"] is False:
            raise NotApplicable("; ".join(each.why for each in status.fallbacks))
    return Applied(names[_MODEL], source=served.lines)
