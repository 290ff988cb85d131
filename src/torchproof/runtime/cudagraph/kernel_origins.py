"""Finds the Python functions that launch the kernels of a step.

Takes an eager run inside the context of `KernelOrigins`, with the Python stack of each
operation. Returns, for each function outside of torch, how many operations it launches
and how much memory they fill.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torchproof.records import whose
from torchproof.torch_private import EagerDispatchMode, trees

# Kernels that fusion does not speed up.
_OWN_KERNELS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "embedding", "index")


@dataclass
class Origin:
    """The operations that one Python function launches, directly or through torch."""

    operations: int = 0
    bytes: int = 0


class KernelOrigins(EagerDispatchMode):
    """Notes the Python stack of each operation inside its context."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[tuple[CodeType, ...], str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if outputs := trees.tensors(result):
            size = sum(each.numel() * each.itemsize for each in outputs)
            name = func.overloadpacket.__name__
            self._operations.append((_stack(), name, size))
        return result

    def callers_of(self, codes: Collection[CodeType]) -> frozenset[CodeType]:
        """The functions that were on the stack when one of these ran."""
        callers: set[CodeType] = set()
        for stack, _, _ in self._operations:
            inside = [place for place, code in enumerate(stack) if code in codes]
            if inside:
                callers.update(stack[: inside[0]])
        return frozenset(callers)

    def by_function(self, above: frozenset[CodeType]) -> dict[CodeType, Origin]:
        """Operations by the outermost function that is not in `above`.

        Only functions outside of torch count, because they can be compiled separately.
        """
        origins: dict[CodeType, Origin] = {}
        for codes, name, size in self._operations:
            owner = next(_can_be_compiled(codes, above), None)
            if owner is None or name in _OWN_KERNELS:
                continue
            origin = origins.setdefault(owner, Origin())
            origin.operations += 1
            origin.bytes += size
        return origins


def _stack() -> tuple[CodeType, ...]:
    """The code objects on the stack, the outermost first."""
    codes = []
    # In a backward, the caller can be the outermost frame of its thread.
    frame = sys._getframe(1).f_back
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return tuple(reversed(codes))


def _can_be_compiled(
    codes: tuple[CodeType, ...], above: frozenset[CodeType]
) -> Iterator[CodeType]:
    for code in codes:
        if code not in above and whose(code.co_filename) in ("user", "library"):
            yield code
