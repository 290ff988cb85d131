"""Formats numbers with units; a value that was not measured is `-`."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

UNKNOWN = "-"
_HUGE = 1e15  # larger values are not measured


def known(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that was measured."""
    return isinstance(value, int | float) and 0 <= value < _HUGE


def plain(value: float | None, digits: int = 3) -> str:
    """Three significant digits, never an exponent."""
    if value is None:
        return UNKNOWN
    return f"{value:.{decimals(value, digits)}f}"


def decimals(value: float, digits: int = 3) -> int:
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def milliseconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{plain(value)} ms"


def seconds(value: float | None) -> str:
    if value is not None and value < 0.1:
        return milliseconds(value * 1000)
    return UNKNOWN if value is None else f"{plain(value)} s"


def per_second(value: float | None) -> str:
    return UNKNOWN if value is None else f"{plain(value)}/s"


def duration(value: float | None) -> str:
    """`12 s`, `5 min 12 s`, `1 h 3 min`."""
    if value is None:
        return UNKNOWN
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    big, small, units = whole // 60, whole % 60, ("min", "s")
    if whole >= 3600:
        big, small, units = whole // 3600, whole % 3600 // 60, ("h", "min")
    return f"{big} {units[0]}" + (f" {small} {units[1]}" if small else "")


def count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:g}"


def interval(low: float | None, high: float | None) -> str:
    """`2.41-2.60`, with one more digit if the ends would look equal."""
    if low is None or high is None:
        return UNKNOWN
    digits = decimals(high)
    if f"{low:.{digits}f}" == f"{high:.{digits}f}":
        digits += 1
    return f"{low:.{digits}f}-{high:.{digits}f}"


def size(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= one:
            return f"{plain(value / one)} {unit}"
    return f"{value:g} B"


def share(value: float | None, *, at_least: bool = False) -> str:
    """`41%`, `0.32%`; `>41%` if it is a lower bound."""
    if value is None:
        return UNKNOWN
    return f"{'>' if at_least else ''}{plain(value * 100, 2)}%"


def operations(value: float | None) -> str:
    """`12.3 G`: floating-point operations with the prefix of their unit."""
    if value is None:
        return UNKNOWN
    for prefix, one in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= one:
            return f"{plain(value / one)} {prefix}"
    return f"{plain(value)} "


def times(value: float | None, low: float | None, high: float | None) -> str:
    """`1.80x (1.74-1.86)`."""
    if value is None:
        return UNKNOWN
    if low is None or high is None:
        return f"{value:.2f}x"
    return f"{value:.2f}x ({low:.2f}-{high:.2f})"


def amount(number: int | None, noun: str) -> str:
    """`1 graph`, `3 graphs`."""
    return f"{UNKNOWN if number is None else number} {noun}{'' if number == 1 else 's'}"
