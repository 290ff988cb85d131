"""Calls whose answers are compared with eager's, before they are handed out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchproof.runtime.status_report import Fallback

if TYPE_CHECKING:
    from torchproof.runtime.compiled_forward import CompiledForward


class CallVerifier:
    """Stands before what each call runs: compares the first one, or every n-th."""

    def __init__(self, entry: CompiledForward, run: Callable[..., Any]) -> None:
        self._entry, self._run = entry, run
        self._left = 0

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._left > 0 or not self._has_compiled():
            self._left -= 1
            return self._run(*args, **kwargs)
        every = self._entry.options.verify
        if every == "first":
            self._entry.run = self._run
        else:
            self._left = int(every) - 1
        return self._verify(args, kwargs)

    def _has_compiled(self) -> bool:
        """Whether a call would run compiled code, having waited for it or not."""
        entry = self._entry
        if entry.options.wait:
            return True
        return bool(entry.telemetry.compilations) and not entry.engine.pending

    def _verify(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from torchproof.runtime import verification as verify

        entry, telemetry = self._entry, self._entry.telemetry
        answer, verification = verify.verified(
            entry.run_eager, self._run, args, kwargs, owner=entry.owner
        )
        if telemetry.was_eager and verification.verdict == "same":
            why = "some of it ran eager, and what runs eager is the same"
            verification = replace(verification, why=why)
        telemetry.verified(verification.to_json())
        telemetry.ran_eager()  # it is eager's answer that is handed out
        if not verification.passed:
            entry.go_eager(Fallback("verification", "the model", str(verification)))
        return answer
