"""Modules: shallow copies of them, and what `module.compile()` leaves in them.

`after_copying` tells when torch or `copy.copy` makes a shallow copy of a module.

Such a copy has its own attributes, but the attributes' values are those of the original
module: callables that are bound to the original, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

Adjust = Callable[[nn.Module], None]


def undo_compile(module: nn.Module) -> None:
    """Undoes `module.compile()`, whose code would be called instead of `forward`."""
    attributes: Any = module.__dict__
    if attributes.get("_compiled_call_impl") is not None:
        module._compiled_call_impl = None


@functools.cache
def after_copying(adjust_copy: Adjust, adjust_replica: Adjust) -> None:
    """Calls a function for each copy: of `copy.copy`, or of nn.DataParallel.

    `adjust_copy` is called for deep copies and unpickled modules too.
    """
    kind: Any = nn.Module
    restore, replicate = kind.__setstate__, kind._replicate_for_data_parallel

    @functools.wraps(restore)
    def set_state(self: nn.Module, state: Any) -> None:
        restore(self, state)
        adjust_copy(self)

    @functools.wraps(replicate)
    def replicate_module(self: nn.Module) -> nn.Module:
        replica: nn.Module = replicate(self)
        adjust_replica(replica)
        return replica

    kind.__setstate__ = set_state
    kind._replicate_for_data_parallel = replicate_module
