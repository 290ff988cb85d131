"""Compilation that cannot hurt the job: what production code loads.

    model = torchproof.compile(model)

puts a callable in the place of `model.forward` that compiles within a deadline, runs
eager where compiling fails, and says so in `torchproof.status(model)`. Loading this
file loads torch and neither its compiler nor anything that diagnoses.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

from torch import nn

from torchproof.records import UserError, one_line

if TYPE_CHECKING:
    from torchproof.runtime.compiled_forward import CompiledForward
    from torchproof.runtime.method_replacement import Verify
    from torchproof.runtime.status_report import Status
    from torchproof.runtime.telemetry import Listener
    from torchproof.strategies import Recipe

DEADLINE_S = 600.0
# What torch.compile takes and this passes on.
ARGUMENTS = frozenset({"backend", "mode", "options", "dynamic"})


def compile(
    model: Any = None,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    strategy: str | None = None,
    deadline: float | None = None,
    verify: Verify = False,
    min_gain: float | None = None,
    example: Any = None,
    wait: bool = True,
    recompile_limit: int = 8,
    monitor: bool = False,
    on_event: Listener | None = None,
    full_below: float = 10e9,
    regional_below: float = 40e9,
    **arguments: Any,
) -> Any:
    """The model, compiled at its first call, never worse than eager.

    A module is changed in place and returned; of a function, a compiled one. `deadline`
    in seconds covers all compiling of a call. `strategy` is "full", "regional", "core:
    METHOD" or "eager", by default what the number of parameters suggests; `recipe`, a
    file of `torchproof tune`, says it for the place and the model it was made for.
    `verify` compares with eager: at the "first" call, or at every n-th. With `example`,
    the arguments of one call, it is tried in a child process first; with `min_gain`
    too, eager is kept unless compiling makes it that much faster. `wait=False` runs
    eager while it compiles. `arguments` are those of torch.compile.
    """
    settings = {k: v for k, v in locals().items() if k not in ("model", "arguments")}
    is_off = os.environ.get("TORCHPROOF_DISABLE") == "1"
    if not is_off:
        from torchproof.runtime.argument_checks import check

        check(settings, arguments)
    if model is None:
        return functools.partial(compile, **settings, **arguments)
    if is_off:
        return model
    from torchproof.runtime import build

    return build.make(model, settings, arguments)


def status(model: Any) -> Status:
    """What is in force for a model that was compiled here, and why."""
    entry = compiled_forward_of(model)
    entry.telemetry.deliver()
    return entry.status()


def retry(model: Any) -> None:
    """Lets what failed be compiled again, at the next call."""
    compiled_forward_of(model).retry()


def plan(model: nn.Module, **limits: float) -> Any:
    """Which strategy the size of a model suggests, and why; does nothing else."""
    from torchproof.runtime import argument_checks as arguments
    from torchproof.runtime import policy

    arguments.check_limits(limits)
    return policy.plan(model, **limits)


def compiled_forward_of(model: Any) -> CompiledForward:
    from torchproof.runtime.compiled_forward import CompiledForward

    while isinstance(model, nn.Module) and "forward" not in model.__dict__:
        inner = getattr(model, "module", None)  # of DistributedDataParallel
        if not isinstance(inner, nn.Module):
            break
        model = inner
    found = model.__dict__.get("forward") if isinstance(model, nn.Module) else model
    if isinstance(found, CompiledForward):
        return found
    if os.environ.get("TORCHPROOF_DISABLE") == "1":
        raise UserError("torchproof is switched off by TORCHPROOF_DISABLE=1")
    raise UserError(
        f"{type(model).__name__} was not compiled by torchproof.compile: nothing is"
        " known about it"
    )


def deadline_s(given: float | None) -> float:
    """From the argument, else the environment, else the default."""
    sources = {"deadline": given} | {
        name: os.environ.get(name)
        for name in ("TORCHPROOF_DEADLINE_S", "TORCH_COMPILE_TIMEOUT")
    }
    for name, value in sources.items():
        if value is None or (name != "deadline" and not value):
            continue
        seconds = _seconds(value, is_text=name != "deadline")
        if not seconds > 0:
            shown = one_line(repr(value), 80)
            raise UserError(f"{name}={shown}: give a number of seconds above 0")
        return seconds
    return DEADLINE_S


def _seconds(value: Any, *, is_text: bool) -> float:
    """The number that a value is, or that a variable says; NaN where it is none."""
    if not is_text and (not isinstance(value, Number) or isinstance(value, bool)):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if value > 0 else math.nan
    except (TypeError, ValueError):
        return math.nan


def arguments_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example as the arguments of a call: a tuple, a dict of keywords, or one."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, tuple) else (example,)), {}
