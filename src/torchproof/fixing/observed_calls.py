"""What a probed call of a function got and returned, as the parent reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchproof.records import Record


@dataclass(frozen=True)
class Value(Record):
    """A tensor or an array with its sizes, integers, or other data of Python."""

    kind: str  # "tensor", "array", "integer", "integers", "data" or "other"
    numbers: tuple[int, ...] = ()  # the sizes, or the integers
    dtype: str = ""
    device: str = ""


@dataclass(frozen=True)
class ObservedCall(Record):
    """One call in eager mode.

    `scope` are values around the call: arguments by position, `0`, or by keyword, and
    local variables of the caller as `.name`.
    """

    scope: Mapping[str, Value]
    results: tuple[Value, ...]
    several: bool  # a tuple of results, even if it has one
    given: str  # a digest of the values of all tensors
    integers: tuple[int, ...] = ()  # literals in the source of the function
    problem: str | None = None  # why the call cannot run on the host
