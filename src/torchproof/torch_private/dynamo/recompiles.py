"""Torch's reasons for recompiling a function: the guards that failed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torchproof.torch_private.hooks import patched


def reasons(receive: Callable[[list[str]], None]) -> AbstractContextManager[None]:
    """Calls `receive(reasons)` at each recompile; the newest code's reason is first."""
    convert_frame = importlib.import_module("torch._dynamo.convert_frame")
    original = convert_frame.get_and_maybe_log_recompilation_reasons

    @functools.wraps(original)
    def explain(*args: Any, **kwargs: Any) -> list[str]:
        failed_guards = original(*args, **kwargs)
        receive(failed_guards)
        return failed_guards

    return patched(convert_frame, "get_and_maybe_log_recompilation_reasons", explain)
