"""The values of options from the text of a flag.

The message of a `ValueError` follows the name of the flag.
"""

from __future__ import annotations

import ast
import math
import re
import shlex
from collections.abc import Callable
from typing import Any

from torchproof.records.mappings import Keywords

LONGEST_S = 1e9  # the longest timeout: 31 years
NUMBER_TYPES = ("float32", "float16", "bfloat16", "float64")
_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_DURATION = re.compile(
    r"\s*".join(rf"(?:{_NUMBER}\s*{unit}(?![a-z]))?" for unit in _UNITS_S)
)
_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
# The arguments of torch.compile that are true or false, and the words for neither.
_SWITCHES = {"dynamic": ("auto", "none"), "fullgraph": (), "disable": ()}


def seconds(text: str) -> float:
    value = number(text)
    if not 0 < value < math.inf:
        raise ValueError(f"{text}: expected a positive number of seconds")
    return min(value, LONGEST_S)


def factor(text: str) -> float:
    value = number(text)
    if not 1 <= value < math.inf:
        raise ValueError(f"{text}: expected a factor of 1 or more")
    return value


def duration(text: str) -> float:
    """`50ms`, `90s`, `1h30m` or a number of seconds."""
    text = text.strip()
    if re.fullmatch(_NUMBER, text):
        return min(float(text), LONGEST_S)
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"{text!r}: expected a time such as 50ms, 90s, 10m or 1h")
    parts = zip(match.groups(), _UNITS_S.values(), strict=True)
    return min(sum(float(n) * unit_s for n, unit_s in parts if n), LONGEST_S)


def time_limit(text: str) -> float:
    """A duration that is not 0."""
    value = duration(text)
    if not value:
        raise ValueError(f"{text}: expected a time above 0")
    return value


def one_to_nine(text: str) -> int:
    if whole(text) not in range(1, 10):
        raise ValueError(f"{text}: expected a number from 1 to 9")
    return int(text)


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r}: expected a whole number") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r}: expected a number") from None


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def sizes(text: str) -> tuple[int, ...]:
    """`4,8,1` as positive integers."""
    try:
        found = tuple(int(part) for part in names(text))
    except ValueError:
        found = (0,)
    if any(size < 1 for size in found):
        raise ValueError(f"{text}: expected positive integers, as in 4,8,1")
    return found


def some_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """Reads names among the choices."""

    def read(text: str) -> tuple[str, ...]:
        found = names(text)
        if unknown := [name for name in found if name not in choices]:
            raise ValueError(f"{', '.join(unknown)}: choose from {', '.join(choices)}")
        return found

    return read


def words(text: str) -> tuple[str, ...]:
    """The words of a command line."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def ablation(text: str) -> tuple[tuple[str, Any], ...]:
    """Parses `max_autotune;coordinate_descent_tuning=True`; a value is optional."""
    changes: list[tuple[str, Any]] = []
    for part in text.split(";"):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name:
            changes.append((name, _literal(value) if equals else None))
    if text.strip() and not changes:
        raise ValueError(
            f"{text!r} names no option of Inductor, such as 'max_autotune'"
        )
    return tuple(changes)


def compile_arguments(text: str) -> Keywords:
    """`dynamic=true,mode=reduce-overhead` as keyword arguments."""
    arguments: dict[str, object] = {}
    for item in _split(text):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key.isidentifier():
            raise ValueError(f"{item!r} is not KEY=VALUE")
        arguments[key] = _switch(key, value) if key in _SWITCHES else _literal(value)
    return arguments


def _switch(key: str, value: str) -> bool | None:
    word, neither = value.lower(), _SWITCHES[key]
    if word in neither:
        return None
    if word not in _WORDS:
        accepted = [*_WORDS, *neither]
        choices = f"{', '.join(accepted[:-1])} or {accepted[-1]}"
        raise ValueError(f"{key}={value} is not known: give {choices}")
    return _WORDS[word]


def _literal(value: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]
