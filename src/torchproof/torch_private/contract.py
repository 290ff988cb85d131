"""What torchproof needs of torch's private parts, and what it loses without them.

contract.toml lists every private name in use, with the parameters that the code relies
on. Each feature probes its names on the installed torch before it uses them: `missing`
names what torch lacks, and the feature is then left out instead of failing later.
`make compat` probes every torch version that is supported, runs the tests of each
feature there, and writes docs/reference/compat.md.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchproof.records import MissingHook, installed_torch


@dataclass(frozen=True)
class Feature:
    """The hooks that belong together: without one of them, none is used."""

    name: str
    without: str  # what torchproof does if a name is missing
    tests: str  # the tests that use these hooks
    hooks: Mapping[str, tuple[str, ...]]


@functools.cache
def contract() -> tuple[Feature, ...]:
    """The table: every private name of torch in use, by feature."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(Feature(**plain) for plain in tomllib.loads(text)["feature"])


@functools.cache
def missing(feature: str) -> tuple[str, ...]:
    """One message for each name that the installed torch lacks or has changed."""
    [needed] = [each for each in contract() if each.name == feature]
    return tuple(
        message
        for names in needed.hooks.values()
        for name in names
        if (message := _problem(name))
    )


def require(feature: str) -> None:
    """Raises `MissingHook` with one line if the installed torch lacks a name."""
    if messages := missing(feature):
        raise MissingHook(messages[0])


def _problem(name: str) -> str | None:
    path, _, parameters = name.rstrip(")").partition("(")
    path, _, local = path.rstrip("]").partition("[")
    try:
        value = _resolve(path)
    except (ImportError, AttributeError, FileNotFoundError):
        return f"torch {installed_torch()} has no {path}"
    if local and not _has_local(value, *local.split(".")):
        return f"torch {installed_torch()} has no {name}"
    if "(" in name and not _accepts(value, parameters.split(", ")):
        torch = f"torch {installed_torch()}"
        return f"{torch} has no {name}; its parameters are {_signature(value)}"
    return None


def _resolve(path: str) -> Any:
    module, _, attributes = path.partition(":")
    if module == "file":
        return _torch_folder().joinpath(attributes).resolve(strict=True)
    value: Any = importlib.import_module(module)
    for name in attributes.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            # A dataclass field with a default factory is not a class attribute.
            if name not in getattr(value, "__dataclass_fields__", {}):
                raise
            value = value.__dataclass_fields__[name]
    return value


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent.parent


def _has_local(value: Any, function: str, local: str) -> bool:
    """Whether a function that is defined in another one has a local variable."""
    inner = getattr(getattr(value, "__code__", None), "co_consts", ())
    codes = [each for each in inner if isinstance(each, types.CodeType)]
    return any(c.co_name == function and local in c.co_varnames for c in codes)


def _accepts(value: Any, needed: list[str]) -> bool:
    """Whether a callable has the parameters and requires no others."""
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):  # C code without a signature
        return True
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    if any(each.kind in variable for each in parameters.values()):
        return True
    required = {
        name
        for name, each in parameters.items()
        if each.default is each.empty and name != "self"
    }
    named = {name for name in needed if name}
    return named <= parameters.keys() and required <= named


def _signature(value: Any) -> str:
    with contextlib.suppress(TypeError, ValueError):
        return str(inspect.signature(value))
    return "unknown"
