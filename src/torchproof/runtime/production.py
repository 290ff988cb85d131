"""`torchproof.compile` and its companions `status`, `retry` and `plan`.

    model = torchproof.compile(model)

replaces `model.forward` by a callable that compiles within a deadline and runs eager if
compiling fails; `torchproof.status(model)` has the reason. Loading this file loads
torch, but neither torch's compiler nor the diagnosis.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from torch import nn

from torchproof.records import UserError
from torchproof.runtime.explained import Explained, How

if TYPE_CHECKING:
    from torchproof.runtime.compiled_forward import CompiledForward
    from torchproof.runtime.method_replacement import Verify
    from torchproof.runtime.status_report import Status
    from torchproof.runtime.telemetry import Listener
    from torchproof.strategies import Recipe

_Model = TypeVar("_Model", bound=Callable[..., Any])


# For type checkers: a model keeps its type, and a decorator that of the function.
@overload
def compile(
    model: _Model,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = ...,
    strategy: str | None = ...,
    deadline: float | None = ...,
    verify: Verify = ...,
    min_gain: float | None = ...,
    example: Any = ...,
    wait: bool = ...,
    recompile_limit: int | None = ...,
    on_event: Listener | None = ...,
    full_below: float = ...,
    regional_below: float = ...,
    **arguments: Any,
) -> _Model: ...
@overload
def compile(
    model: None = None,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = ...,
    strategy: str | None = ...,
    deadline: float | None = ...,
    verify: Verify = ...,
    min_gain: float | None = ...,
    example: Any = ...,
    wait: bool = ...,
    recompile_limit: int | None = ...,
    on_event: Listener | None = ...,
    full_below: float = ...,
    regional_below: float = ...,
    **arguments: Any,
) -> Callable[[_Model], _Model]: ...
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
    recompile_limit: int | None = None,
    on_event: Listener | None = None,
    full_below: float = 10e9,
    regional_below: float = 40e9,
    **arguments: Any,
) -> Any:
    """Compiles a model at its first call; it runs eager if compiling fails.

    A module is changed in place and returned; for a function, returns a compiled one.
    `deadline` limits the seconds that one call may spend compiling. `strategy` is
    "full", "regional", "nested", "core:METHOD" or "eager"; by default the number of
    parameters decides. `recipe` is a file of `torchproof tune` that names the strategy
    for one model on one machine. `verify` compares with eager at the "first" call, or
    at every n-th. With `example`, the arguments of one call, the model is tried in a
    child process first. With `min_gain` too, the model stays eager unless compiling
    makes it that much faster. `wait=False` runs eager while it compiles. `arguments`
    are those of torch.compile, with the same meaning.
    """
    settings = {k: v for k, v in locals().items() if k not in ("model", "arguments")}
    is_off = os.environ.get("TORCHPROOF_DISABLE") == "1"
    if not is_off:
        from torchproof.runtime.argument_checks import check

        check(settings, arguments)
    if model is None:
        return functools.partial(compile, **settings, **arguments)
    if is_off or arguments.pop("disable", False):
        return model
    from torchproof.runtime import build

    return build.make(model, settings, arguments)


@overload
def status(model: Explained[How]) -> How: ...
@overload
def status(model: Any) -> Status: ...
def status(model: Any) -> Any:
    """How a compiled model runs, and why: strategy, compilations, fallbacks, reasons.

    Also takes a step of `torchproof.graph`, a package of `torchproof.load`, and
    `torchproof.step` itself, for all steps that ended.
    """
    if isinstance(model, Explained):
        return model.status()
    forward = compiled_forward_of(model)
    forward.telemetry.deliver()
    return forward.status()


def retry(model: Any) -> None:
    """Compiles what failed again at the next call."""
    compiled_forward_of(model).retry()


def plan(model: nn.Module, **limits: float) -> Any:
    """The strategy that the size of a model suggests, and why; changes nothing."""
    from torchproof.runtime import argument_checks, policy

    argument_checks.check_limits(limits)
    return policy.plan(model, **limits)


def compiled_forward_of(model: Any) -> CompiledForward:
    from torchproof.runtime.compiled_forward import CompiledForward

    while isinstance(model, nn.Module) and "forward" not in model.__dict__:
        inner = getattr(model, "module", None)  # of DistributedDataParallel
        if not isinstance(inner, nn.Module):
            break
        model = inner
    forward = model.__dict__.get("forward") if isinstance(model, nn.Module) else model
    if isinstance(forward, CompiledForward):
        return forward
    if os.environ.get("TORCHPROOF_DISABLE") == "1":
        raise UserError("torchproof is switched off by TORCHPROOF_DISABLE=1")
    why = f"{type(model).__name__} was not compiled by torchproof.compile"
    replaced = ", or its forward was replaced since" if forward is not None else ""
    raise UserError(why + (replaced if isinstance(model, nn.Module) else ""))


def uncompiled_reason(model: Any) -> str | None:
    """Why a model runs without torchproof; None if it is compiled."""
    try:
        compiled_forward_of(model)
    except UserError as error:
        return str(error)
    return None
