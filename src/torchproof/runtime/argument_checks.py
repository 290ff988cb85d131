"""Checks the arguments of `torchproof.compile`.

A bad value raises a `UserError` in `compile` that names the argument, its value and
what is expected, instead of an error of torch at the first call.
"""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchproof.records import Keywords, UserError, one_line
from torchproof.runtime import compile_job
from torchproof.strategies import (
    compile_arguments,
    invalid_argument,
    is_keywords,
    parse,
)

DEADLINE_S = 600.0
# The arguments of torch.compile that are not in the signature of `torchproof.compile`.
ARGUMENTS = frozenset(
    {
        "backend",
        "mode",
        "options",
        "dynamic",
        "fullgraph",
        "disable",
        "isolate_recompiles",
        "name",
        "shapes_spec",
    }
)


def check(settings: Keywords, arguments: Keywords) -> None:
    """Raises a `UserError` for the first invalid argument."""
    assert_known(arguments)
    for name, (is_valid, expected) in _SETTINGS.items():
        if not is_valid(settings[name]):
            raise invalid_argument(name, settings[name], expected)
    deadline_s(settings["deadline"])
    compile_job.memory_limit_bytes()
    if settings["strategy"] is not None:
        parse(settings["strategy"])
    if settings["min_gain"] is not None and settings["example"] is None:
        raise UserError("min_gain needs example=, the arguments of one call to measure")
    for name in ("fullgraph", "disable", "isolate_recompiles"):
        if not isinstance(arguments.get(name), bool | None):
            raise invalid_argument(name, arguments[name], "True or False")
    if not isinstance(arguments.get("name", ""), str | None):
        raise invalid_argument("name", arguments["name"], "a text")
    for name in ("name", "shapes_spec"):
        if arguments.get(name) is not None and name not in _OF_TORCH_COMPILE:
            raise UserError(f"torch.compile of the installed torch takes no {name}")
    compile_arguments.check(arguments)
    if arguments.get("mode") and arguments.get("options"):
        raise UserError("give a mode or options, not both: a mode sets options")


def assert_known(arguments: Keywords) -> None:
    for name in arguments:
        if name not in ARGUMENTS:
            near = difflib.get_close_matches(name, [*ARGUMENTS, *_SETTINGS, "deadline"])
            hint = f", did you mean {near[0]}?" if near else ""
            raise UserError(f"torchproof.compile takes no argument {name!r}{hint}")


def check_limits(limits: Keywords) -> None:
    """Checks the numbers of parameters by which `torchproof.plan` decides."""
    for name, value in limits.items():
        if name not in ("full_below", "regional_below"):
            raise UserError(f"torchproof.plan takes no argument {name!r}")
        is_valid, expected = _SETTINGS[name]
        if not is_valid(value):
            raise invalid_argument(name, value, expected)


def deadline_s(argument: float | None) -> float:
    """The deadline from the argument, else the environment, else the default."""
    sources = {"deadline": argument} | {
        name: os.environ.get(name)
        for name in ("TORCHPROOF_DEADLINE_S", "TORCH_COMPILE_TIMEOUT")
    }
    for name, value in sources.items():
        if value is None or (name != "deadline" and not value):
            continue
        seconds = _seconds(value, is_text=name != "deadline")
        if not seconds > 0:
            text = one_line(repr(value), 80)
            raise UserError(f"{name}={text}: give a number of seconds above 0")
        return seconds
    return DEADLINE_S


def _seconds(value: Any, *, is_text: bool) -> float:
    """An argument or the text of a variable as a number; NaN if it is none."""
    if not is_text and (
        not isinstance(value, numbers.Number) or isinstance(value, bool)
    ):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int with hundreds of digits
        return math.inf if value > 0 else math.nan
    except (TypeError, ValueError):
        return math.nan


def arguments_of(example: Any) -> tuple[tuple[Any, ...], Keywords]:
    """The arguments of a call from an example: a tuple, a dict of keywords, or one."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, tuple) else (example,)), {}


def is_count(value: Any) -> bool:
    """Whether it is a whole number above 0; a bool is not."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_whole and value > 0


def _is_amount(value: Any) -> bool:
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and value >= 0  # NaN is not


def _is_recipe(value: Any) -> bool:
    from torchproof.strategies import Recipe

    return value is None or isinstance(value, str | os.PathLike | Recipe)


def _is_verify(value: Any) -> bool:
    is_first = isinstance(value, str) and value == "first"
    return value is False or is_first or is_count(value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_OF_TORCH_COMPILE = inspect.signature(torch.compile).parameters

_SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "recipe": (_is_recipe, "the path of a recipe file, or a Recipe"),
    "strategy": (
        lambda value: value is None or isinstance(value, str),
        "the name of a strategy, such as 'full' or 'regional'",
    ),
    "verify": (_is_verify, "'first', a number of calls, or False"),
    "min_gain": (
        lambda value: value is None or (_is_amount(value) and math.isfinite(value)),
        "a share of eager's time, such as 0.05 for 5 percent",
    ),
    "example": (
        lambda value: not isinstance(value, Mapping) or is_keywords(value),
        "a tuple of arguments, or a dict with the names of arguments as keys",
    ),
    "wait": (_is_bool, "True or False"),
    "recompile_limit": (
        lambda value: value is None or is_count(value),
        "a whole number above 0",
    ),
    "on_event": (
        lambda value: value is None or callable(value),
        "a function that takes a kind and a record",
    ),
    "full_below": (_is_amount, "a number of parameters"),
    "regional_below": (_is_amount, "a number of parameters"),
}
