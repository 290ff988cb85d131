"""Tells the runtime of calls that run eager because of `torch.compiler.set_stance`.

Dynamo asks `_callback_from_stance` at each call of a compiled function. It is replaced
only while a stance other than the default is in force, so that other calls cost nothing
more. `answer` takes the stance and Dynamo's callback, and returns the callback to use,
or `UNCHANGED`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

UNCHANGED = object()
Answer = Callable[[str, Any], Any]
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


def install(answer: Answer) -> None:
    """Patches Dynamo for good; also if a stance is in force already."""
    from torch._dynamo import decorators, eval_frame

    original = eval_frame._callback_from_stance
    set_stance = eval_frame._set_stance

    @functools.wraps(original)
    def callback_from_stance(callback: Any) -> Any:
        changed = answer(eval_frame._stance.stance, callback)
        return original(callback) if changed is UNCHANGED else changed

    def follow() -> None:
        is_default = eval_frame._stance.stance == "default"
        replacement = original if is_default else callback_from_stance
        eval_frame._callback_from_stance = replacement

    @functools.wraps(set_stance)
    def set_and_follow(stance: Any) -> Any:
        prior = set_stance(stance)
        follow()
        return prior

    eval_frame._set_stance = set_and_follow
    decorators._set_stance = set_and_follow
    follow()
