"""Why torch compiles a function once more: the guards that failed, as torch says them.

torch 2.11 to 2.15.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torchproof.torch_private.hooks import patched

PROBES: dict[str, tuple[str, ...]] = {
    "reasons of recompilations": (
        "torch._dynamo.convert_frame:get_and_maybe_log_recompilation_reasons",
    ),
}


def reasons(receive: Callable[[list[str]], None]) -> AbstractContextManager[None]:
    """`receive(reasons)` at each recompilation, the most recent code's reason first."""
    convert_frame = importlib.import_module("torch._dynamo.convert_frame")
    original = convert_frame.get_and_maybe_log_recompilation_reasons

    @functools.wraps(original)
    def explain(*args: Any, **kwargs: Any) -> list[str]:
        failed = original(*args, **kwargs)
        receive(failed)
        return failed

    return patched(convert_frame, "get_and_maybe_log_recompilation_reasons", explain)
