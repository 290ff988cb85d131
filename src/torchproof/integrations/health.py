"""The answer of a health route: `return health(model)`."""

from __future__ import annotations

from typing import Any

from torchproof.integrations.compile_metrics import status_of


def health(model: Any) -> dict[str, str]:
    """What calls run now, and why, in plain words for people and probes.

    A compiled model can answer in every state: it runs eager while it compiles, and
    after a fallback.
    """
    status = status_of(model)
    if status is None:
        why = "torchproof is switched off by TORCHPROOF_DISABLE=1"
        return {"state": "eager", "strategy": "eager", "reason": why}
    return {
        "state": status.state,
        "strategy": status.strategy,
        "reason": status.reason,
    }
