"""The answer of a health route: `return health(model)`."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchproof import runtime
from torchproof.integrations.compile_metrics import status_of


def health(model: Any) -> dict[str, str]:
    """What calls run now, and why, in plain words for people and probes.

    A compiled model can answer in every state: it runs eager while it compiles, and
    after a fallback. Also takes packages of `torchproof.load`, which are compiled, and
    steps of `torchproof.graph`, which are while they replay recordings. A module that
    is not compiled, or no longer because its forward was replaced, is eager.
    """
    if not isinstance(model, nn.Module):
        if isinstance(model, runtime.DeployedModel):
            package = model.status()
            return _answer("compiled", package.artifact, _first_line(package))
        if isinstance(model, runtime.Graphed):
            step = model.status()
            why = str(step.stops[-1]) if step.stops else _first_line(step)
            return _answer(model.state, f"{step.strategy} + graph", why)
    status = status_of(model)
    if status is None:
        return _answer("eager", "eager", runtime.uncompiled_reason(model) or "")
    return _answer(status.state, status.strategy, status.reason)


def _answer(state: str, strategy: str, reason: str) -> dict[str, str]:
    return {"state": state, "strategy": strategy, "reason": reason}


def _first_line(status: object) -> str:
    return str(status).splitlines()[0]
