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

from torchproof import strategies
from torchproof.records import Keywords, Namespace, Record, UserError
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


def named(text: str, compile_arguments: Keywords | None = None) -> ServedStrategy:
    """Parses the name of a strategy; raises a `UserError` that says what is wrong."""
    name = text.removesuffix(f":{NOWAIT}")
    waits = name == text
    wait = [] if waits else ["wait=False"]
    head, _, rest = name.partition(":")
    if head == COMPILE:
        if rest not in ("", *_COMPILE_FORMS):
            choices = ", ".join((*_COMPILE_FORMS, NOWAIT))
            raise UserError(
                f"strategy {text!r}: {rest!r} is unknown after {COMPILE}: choose from"
                f" {choices}"
            )
        form = [f"strategy={json.dumps(rest)}"] if rest else []
        return _called(text, "torchproof.compile", _MODEL, *form, *wait)
    if head == RECIPE:
        if not os.path.isfile(rest):
            raise UserError(f"strategy {text!r}: there is no recipe {rest!r}")
        recipe = f"recipe={json.dumps(rest)}"
        return _called(text, "torchproof.compile", _MODEL, recipe, *wait)
    if head == PACK:
        path = text.partition(":")[2]
        if not os.path.exists(path):
            raise UserError(
                f"strategy {text!r}: there is no pack {path!r}: torchproof pack TARGET"
                " --for deploy makes one"
            )
        # A pack that is refused must not be measured under its name.
        return _called(text, "torchproof.load", json.dumps(path), _MODEL, "strict=True")
    if head == GRAPH:
        if text != BEST:
            raise UserError(f"strategy {text!r}: did you mean {BEST}?")
        return _called(text, "torchproof.graph", _MODEL, *wait, on_cuda=True)
    strategy = parse(name)
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


def _called(
    name: str, function: str, *arguments: str, on_cuda: bool = False
) -> ServedStrategy:
    lines = f"import torchproof\n\n{_MODEL} = {function}({', '.join(arguments)})"
    return ServedStrategy(name, lines=lines, on_cuda=on_cuda)


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
        return strategies.apply(served.strategy, fn, calls, plan)
    if served.on_cuda and not on_cuda(fn, calls):
        raise NotApplicable("CUDA graphs need a CUDA device")
    names: Namespace = {_MODEL: fn}
    exec(compile(served.lines, f"<strategy {served.name}>", "exec"), names)
    if served.name.startswith(f"{RECIPE}:"):
        # A model that runs eager must not be measured under the name of a recipe.
        status = names["torchproof"].status(names[_MODEL])
        if status.recipe is not None and status.recipe["followed"] is False:
            raise NotApplicable("; ".join(each.why for each in status.fallbacks))
    return Applied(names[_MODEL], source=served.lines)
