"""Writes a strategy and its plan as the Python lines that apply them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torchproof.records import Keywords
from torchproof.strategies.plan import Plan, Site, Varying
from torchproof.strategies.strategy import Strategy

MODEL = "MODEL"
EXAMPLE = "example"  # one call: a tuple of arguments or a dict of keywords
# The arguments that `torchproof.graph` passes to torch.compile.
RECORDED_ARGUMENTS = ("options", "mode", "dynamic", "fullgraph")
_WIDTH = 88

# The block is an argument of the region: with bound methods, torch 2.13 to 2.15 uses
# the weights of the first block for all (tests/limitations/nested_methods.py).
_REGION = """\
    region = torch.compiler.nested_compile_region(type(block).forward)
    block.forward = functools.partial(region, block)"""

_MARKED = '''\
def marked(compiled, varying):
    """Marks the sizes that vary as dynamic before each call of compiled code."""

    @functools.wraps(compiled)
    def call(*args, **kwargs):
        arguments = {**dict(enumerate(args)), **kwargs}
        for (name, *path), sizes in varying.items():
            value = arguments.get(name)
            for step in path:
                value = None if value is None else value[step]
            if isinstance(value, torch.Tensor):
                torch._dynamo.maybe_mark_dynamic(value, sizes)
        return compiled(*args, **kwargs)

    return call
'''


def lines(
    strategy: Strategy,
    name: str = "model",
    plan: Plan | None = None,
    *,
    train: bool = False,
) -> str:
    """The Python lines to paste, for a target of this name.

    A strategy that `observes` returns a comment if there is no plan. With `train`, a
    CUDA graph contains the loss and the backward pass too.
    """
    if strategy.as_is:
        return f"# {name} runs as it is"
    if plan is None and strategy.observes:
        return f"# {strategy.name}: the lines are known after the target has run"
    if strategy.graph:
        return recorded(strategy, name, plan or Plan(), train=train)
    return written(strategy, name, plan or Plan())


def written(strategy: Strategy, name: str, plan: Plan) -> str:
    """The lines for a target of this name, imports included."""
    sites = plan.sites or (Site(place_of(strategy.method)),)
    marks = any(site.varying for site in sites)
    body = _settings(strategy)
    body += "\n".join(_site_lines(strategy, site, name) for site in sites)
    parts = ["import functools\n\n"] if marks or "functools." in body else []
    if marks or "torch." in body:
        parts.append("import torch\n\n")
    if marks:
        parts.append(f"\n{_MARKED}\n\n")
    return "".join(parts) + body


def recorded(
    strategy: Strategy,
    name: str,
    plan: Plan,
    *,
    train: bool = False,
    at_first_call: bool = False,
    wait: bool = True,
) -> str:
    """The lines that record the whole step, compiled or not, as a CUDA graph.

    `torchproof.graph` compiles the step itself. The lines before it compile a single
    method, or use another backend. The step is recorded with an example at once, or at
    its first call.
    """
    arguments = [name] if at_first_call else [name, EXAMPLE]
    before = _settings(strategy)
    inner = strategy.in_graph
    if compiled_by_graph(strategy):
        if strategy.compiles:
            arguments.append(f"strategy={_literal(inner.name)}")
        if strategy.other_arguments:
            arguments.append(_keywords(strategy.other_arguments))
    else:
        before = written(inner, name, plan).replace("import torch\n", "", 1).lstrip()
    if train:
        arguments.append("train=True")
    if not wait:
        arguments.append("wait=False")
    call = f"{name} = torchproof.graph({', '.join(arguments)})"
    imports = "import torchproof\n\n"
    if before or re.search(r"\btorch\.", call):
        imports = f"import torch\n{imports}"
    return imports + (f"{before.rstrip()}\n" if before else "") + call


def _settings(strategy: Strategy) -> str:
    """The lines that change settings of Dynamo."""
    lines = (
        f"torch._dynamo.config.{name} = {_literal(value)}\n"
        for name, value in strategy.dynamo.items()
    )
    return "".join(lines)


def compiled_by_graph(strategy: Strategy) -> bool:
    """Whether `torchproof.graph` has arguments to compile the step in this way."""
    return strategy.form != "core" and strategy.other_arguments.keys() <= {
        *RECORDED_ARGUMENTS
    }


def place_of(path: str | None) -> str:
    """The Python expression for a method of the target, or for the target itself."""
    steps = path.split(".") if path else ()
    return MODEL + "".join(f"[{s}]" if s.isdecimal() else f".{s}" for s in steps)


def _site_lines(strategy: Strategy, site: Site, name: str) -> str:
    place = site.place.replace(MODEL, name)
    if not site.paths:
        return f"{place} = {_compiled(place, strategy, site.varying)}"
    if strategy.form == "nested":
        return f"for block in {place}:\n{_REGION}"
    if site.varying:
        inner = _compiled("block.forward", strategy, site.varying)
        return f"for block in {place}:\n    block.forward = {inner}"
    return f"for block in {place}:\n    block.compile({_keywords(strategy.arguments)})"


def _compiled(place: str, strategy: Strategy, varying: Varying) -> str:
    keywords = _keywords(strategy.arguments)
    call = (
        f"torch.compile({place}, {keywords})" if keywords else f"torch.compile({place})"
    )
    return f"marked({call}, {dict(varying)!r})" if varying else call


def _keywords(arguments: Keywords) -> str:
    return ", ".join(f"{key}={_literal(value)}" for key, value in arguments.items())


def _literal(value: Any, key: str = "") -> str:
    if key == "guard_filter_fn":  # a function, by its public name
        return str(value)
    if isinstance(value, Mapping):
        items = (f"{_literal(k)}: {_literal(v, k)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def listed(expressions: Iterable[str]) -> str:
    """Expressions as a tuple, one per line if they do not fit on one."""
    names = list(expressions)
    short = f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"
    if len(short) <= _WIDTH - 20:
        return short
    return "(\n" + "".join(f"    {name},\n" for name in names) + ")"
