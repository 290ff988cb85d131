"""Tells the runtime of calls that run eager because of `torch.compiler.set_stance`.

Dynamo asks `_callback_from_stance` at each call of a compiled function. It is replaced
only during calls under a stance other than the default. `answer` takes the stance and
Dynamo's callback, and returns the callback to use, or `UNCHANGED`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from torchproof.torch_private.replacements import Place, Replacement

DEFAULT = "default"
UNCHANGED = object()
Answer = Callable[[str, Any], Any]
_answer: contextvars.ContextVar[Answer | None] = contextvars.ContextVar(
    "torchproof_stance_answer", default=None
)
_forced = contextvars.ContextVar("torchproof_forced_eager", default=False)


@contextlib.contextmanager
def force_eager() -> Iterator[None]:
    """Runs compiled functions in eager, for a purpose of torchproof."""
    token = _forced.set(True)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        _forced.reset(token)


def is_forced() -> bool:
    """Whether `force_eager`, and not the user, has set the stance in force."""
    return _forced.get()


def holder() -> tuple[Any, Any]:
    """An object, and what its attribute `_stance` is under the default stance.

    Each call of a model compares them: a function call would cost three times as much.
    If they differ, `is_default` decides.
    """
    from torch._dynamo import eval_frame

    return eval_frame, eval_frame._stance if is_default() else None


def is_default() -> bool:
    from torch._dynamo import eval_frame

    return eval_frame._stance.stance == DEFAULT


NOT_HELD = (SimpleNamespace(_stance=None), None)  # for models that run eager


@contextlib.contextmanager
def answered(answer: Answer) -> Iterator[None]:
    """Dynamo asks `answer`, in this context, what to do under the stance in force."""
    token = _answer.set(answer)
    try:
        with _replacement.active():
            yield
    finally:
        _answer.reset(token)


def _places() -> Iterator[Place]:
    from torch._dynamo import eval_frame

    yield eval_frame, "_callback_from_stance", _asking


def _asking(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    from torch._dynamo import eval_frame

    @functools.wraps(original)
    def callback_from_stance(callback: Any) -> Any:
        answer, stance = _answer.get(), eval_frame._stance.stance
        if answer is None or stance == DEFAULT:
            return original(callback)
        changed = answer(stance, callback)
        return original(callback) if changed is UNCHANGED else changed

    return callback_from_stance


_replacement = Replacement(_places)
