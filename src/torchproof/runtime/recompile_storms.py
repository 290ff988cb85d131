"""Decides what to do about a function that keeps recompiling.

Recompiling is fine if it settles: another number of arguments, another mode. It is a
storm if the same value changes with every call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from types import CodeType

# Recompilations for the same cause after which the changing value becomes dynamic.
GENERALISE_AT = 3


@dataclass
class History:
    """The compilations of one function."""

    count: int = 0
    causes: list[str] = field(default_factory=list)
    recompile_s: float = 0.0
    generalised: set[str] = field(default_factory=set)


class Storms:
    """The compilations of each function, and whether to compile it again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._histories: defaultdict[CodeType, History] = defaultdict(History)

    def note(self, code: CodeType, cause: str | None, seconds: float) -> None:
        history = self._histories[code]
        history.count += 1
        if cause is not None:
            history.causes.append(cause)
            history.recompile_s += seconds

    def has_compiled(self, code: CodeType) -> bool:
        return code in self._histories and self._histories[code].count > 0

    def generalises(self, code: CodeType, cause: str) -> bool:
        """Whether the next compilation treats the changing value as dynamic."""
        history = self._histories[code]
        kind = kind_of(cause)
        alike = [other for other in history.causes if kind_of(other) == kind]
        if len(alike) + 1 >= GENERALISE_AT:
            history.generalised.add(kind)
        return kind in history.generalised

    def why_stop(self, code: CodeType, saved_s: float | None) -> str | None:
        """Why a function is not compiled again, or None.

        `saved_s` is the time that compiled code has saved so far, if it is known.
        """
        history = self._histories[code]
        recompiles = len(history.causes)
        if recompiles >= self._limit:
            why = f"compiled {history.count} times"
        elif (
            saved_s is not None
            and recompiles > GENERALISE_AT
            and history.recompile_s > saved_s
        ):
            spent = history.recompile_s
            why = f"recompiling took {spent:.1f} s, more than it saved"
        else:
            return None
        return f"{why}, the last time because {history.causes[-1]}"

    def forget(self) -> None:
        self._histories.clear()


def kind_of(cause: str) -> str:
    """The guard without its values: the name of what changes.

    >>> kind_of("tensor 'x' size mismatch at index 0. expected 3, actual 4")
    "tensor 'x' size mismatch at index 0"
    >>> kind_of("self.name == 'b'")
    'self.name'
    """
    return re.sub(r"\.?\s*(==|!=|expected ).*", "", cause)
