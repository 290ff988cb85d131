"""A condition of compiled code that no longer held, and how the user writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from torchproof.records.frame import Frame

# The stack value of a resumed function, or a part of it: the user's code has no name.
_HANDED_OVER = re.compile(
    r"(?:___stack\d+|__resume_frame_values\[\d+\])(?:\.\w+|\[[^\[\]]+\])*"
)
BEFORE_THE_BREAK = "the value computed just before the break"

# What changed, as far as rules tell guards apart.
GuardCause = Literal[
    "size",
    "size_one",
    "equal_sizes",
    "shape_condition",
    "stride",
    "rank",
    "dtype",
    "device",
    "dispatch_key",
    "requires_grad",
    "alias",
    "value",
    "type",
    "length",
    "keys",
    "attribute",
    "global",
    "identity",
    "global_state",
    "training",
    "learning_rate",
    "backend",
    "other",
]
# Guards on sizes, and on what torch derives from them.
SIZE_CAUSES: frozenset[GuardCause] = frozenset(
    {"size", "size_one", "equal_sizes", "shape_condition"}
)
Subject = tuple[GuardCause, str, int | None]  # cause, source, dimension


@dataclass(frozen=True)
class Guard:
    """One failed guard: `source` is the checked expression, `values` its values."""

    cause: GuardCause
    source: str
    text: str
    dim: int | None = None
    expected: str | None = None
    actual: str | None = None
    code: str = ""  # the user's line that caused the guard, as torch quotes it
    file: str = ""  # the end of the path of that line's file
    line: int | None = None
    other: str = ""  # the second tensor of an equality, or the class of an object
    graph: str = ""  # the graph that has the guard, by torch's compile id: 0/1

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(v for v in (self.expected, self.actual) if v is not None)


@dataclass(frozen=True)
class FailedGuard:
    """One graph's failed guard, and the user's stack that the guard came from."""

    guard: Guard
    frames: tuple[Frame, ...] = ()

    @property
    def subject(self) -> Subject:
        """What the guard checks, whatever its value."""
        return (self.guard.cause, self.guard.source, self.guard.dim)


def what_changed(guard: Guard) -> str:
    """What a failed guard says, in words: `size 1 of x was 512, is 576`."""
    what = f"size {guard.dim} of {guard.source}" if guard.dim is not None else ""
    what = what or guard.source
    if guard.expected is not None and guard.actual is not None:
        return f"{what} was {guard.expected}, is {guard.actual}"
    if guard.expected is not None:
        return f"{what} was {guard.expected}"
    return " ".join(guard.text.split("  #")[0].split())[:100]


def readable_source(name: str) -> str:
    """Torch's source expression as the user writes it: `L['x']` is `x`."""
    name = re.sub(r"\b[LG]\['(\w+)'\]", r"\1", name.strip())
    name = re.sub(r"\._(?:modules|parameters|buffers)\['(\d+)'\]", r"[\1]", name)
    name = re.sub(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1", name)
    name = re.sub(r"___as_tensor\((.+?)\)\.item\(\)", r"\1", name)
    name = re.sub(r"___from_numpy\((.+)\)", r"\1", name)
    name = re.sub(r"\.__dict__\['(\w+)'\]", r".\1", name)
    return BEFORE_THE_BREAK if _HANDED_OVER.fullmatch(name) else name
