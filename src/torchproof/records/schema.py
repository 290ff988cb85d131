"""Checks JSON when it is read, and converts it to records and back.

The field types of the records are the schema, so a new field is checked automatically.
`SHAPES` adds the types of mappings without a class. Unknown keys are allowed with any
value, since a newer torchproof may have written them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

from torchproof.records.printable import line
from torchproof.records.run import (
    CATEGORIES,
    OLDER_NAMES,
    Finding,
    Measurement,
    Run,
)

DEEPEST = 64  # levels of lists and objects
LARGEST = 1e30  # the largest measurement or count
MOST_BYTES = 256 * 2**20  # the largest file
_DIGITS = 300  # the most digits of an integer that a float can hold
_SHOWN = 60  # characters of a quoted value

T = TypeVar("T")
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


class Mismatch(Exception):
    """`measurements[0].median_ms: expected a number >= 0 or null, found "abc"`."""

    def __init__(self, path: str, expected: str, value: str) -> None:
        what = f"expected {expected}, found {value}"
        super().__init__(f"{path}: {what}" if path else what)


class Counts(dict[str, Any]):
    """Numbers by name; some are mappings by the name of a block."""


class Error(float):
    """The error of an output; infinite if one of two outputs is."""


class Integer(int):
    """An integer of either sign."""


class Time(float):
    """The time of one call, above zero."""


class Samples(list[float]):
    """The times of one round: at least one, each above zero."""


class Environment(TypedDict, total=False):
    python: str | None
    platform: str | None
    machine: str | None
    cores: int | None
    threads: int | None
    torch: str | None
    cuda: str | None
    triton: str | None
    device: str | None
    gpu: str | None
    size: str | None
    train: bool | None
    variables: Mapping[str, str | int | float | bool | None] | None


class Options(TypedDict, total=False):
    """The options of a check."""

    arguments: tuple[str, ...] | None
    compile: Mapping[str, Any] | None
    as_written: bool | None
    train: bool | None
    device: str | None
    size: str | None
    effort: str | None


class Start(TypedDict, total=False):
    """A first call, with its cache hits and misses."""

    label: str | None
    refused: str | None
    first_call_s: float | None
    imports_s: float | None
    later_compile_s: float | None
    hits: int | None
    misses: int | None
    bypasses: int | None


class Numerics(TypedDict, total=False):
    verdict: str | None
    max_rel_error: Error | None
    eager_error: Error | None
    reference: str | None
    where: str | None
    why: str | None


class Guards(TypedDict, total=False):
    guards: int | None
    lookup_us: float | None
    share: float | None
    not_checked: Mapping[str, int | None] | None


class Kernels(TypedDict, total=False):
    per_step: float | None
    busy_share: float | None
    kernel_ms: float | None
    generated_ms: float | None


class Baseline(TypedDict, total=False):
    """The summary of an earlier run."""

    id: str | None
    target: str | None
    started: str | None
    command: str | None
    counts: Counts | None
    environment: Environment | None
    measurements: tuple[Measurement, ...] | None
    findings: Mapping[str, int | None] | None
    identities: tuple[str, ...] | None


SHAPES: dict[tuple[type, str], Any] = {
    (Run, "environment"): Environment,
    (Run, "counts"): Counts,
    (Run, "options"): Options,
    (Run, "baseline"): Baseline | None,
    (Measurement, "variant"): Mapping[str, str | int | float | bool | None],
    (Measurement, "counts"): Counts | None,
    (Measurement, "rounds_ms"): tuple[Samples, ...],
    (Measurement, "start"): Start | None,
    (Measurement, "warm_start"): Start | None,
    (Measurement, "numerics"): Numerics | None,
    (Measurement, "guards"): Guards | None,
    (Measurement, "kernels"): Kernels | None,
    (Finding, "kind"): Literal[tuple(CATEGORIES)],
}
# Numbers that may be negative: the exit code of a process that a signal killed, and
# costs, which are differences of two measurements.
SIGNED = {(Run, "exit_code"), (Finding, "cost_us")}


def loads(text: str, **settings: Any) -> Any:
    """Parses JSON; an integer that no record can hold becomes a float.

    Python does not parse integers of thousands of digits. As floats they are infinite,
    and the check rejects them with their path. Text that is nested too deeply raises
    `RecursionError` before the parser comes near Python's stack limit.
    """
    depth = 0
    for token in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > DEEPEST:
            raise RecursionError(f"more than {DEEPEST} levels of nesting")

    def integer(digits: str) -> float:
        return int(digits) if len(digits) <= _DIGITS else float(digits)

    return json.loads(text, parse_int=integer, **settings)


def check_run(plain: Any) -> None:
    """Raises `Mismatch` if the JSON is not a run."""
    check(Run, plain)


def check(kind: Any, plain: Any) -> None:
    """Raises `Mismatch` if JSON does not fit a type (a record, a `TypedDict`...)."""
    if is_deep(plain):
        raise Mismatch("", f"at most {DEEPEST} levels of nesting", "more")
    _check(kind, plain, "")


def to_plain(value: Any) -> Any:
    """A record as JSON, which `build` reads."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {name: to_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return value


def build(kind: type[T], plain: Any) -> T:
    """The record that JSON describes; raises `Mismatch` if it does not fit the type."""
    check(kind, plain)
    record: T = _built(kind, plain)
    return record


def _built(kind: Any, value: Any) -> Any:
    options = [each for each in _options(kind) if _fits(each, value, signed=True)]
    kind = options[0] if options else Any
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = {name: hint for name, (hint, _) in _fields(kind).items()}
        given = {
            name: _built(hints[name], value[name])
            for name in hints.keys() & value.keys()
        }
        return kind(**given)
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_built(item, each) for each in value)
    if typing.get_origin(kind) is Mapping:
        item = typing.get_args(kind)[1]
        return {name: _built(item, each) for name, each in value.items()}
    return value


def is_deep(plain: Any) -> bool:
    """Whether JSON is nested more deeply than torchproof writes it."""
    level, depth = [plain], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            return True
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [
            item
            for each in inner
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return False


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Name to (type, whether it is required)."""
    hints = typing.get_type_hints(kind)
    if not dataclasses.is_dataclass(kind):
        marked = typing.get_type_hints(kind, include_extras=True)
        optional = {n for n, h in marked.items() if typing.get_origin(h) is NotRequired}
        needed = kind.__required_keys__ - optional
        return {name: (hint, name in needed) for name, hint in hints.items()}
    assert isinstance(kind, type)
    fields = {
        field.name: (
            SHAPES.get((kind, field.name), hints[field.name]),
            field.default is field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
        if field.name != "other"
    }
    if kind is Measurement:
        fields |= {older: fields[name] for older, name in OLDER_NAMES.items()}
    return fields


def _check(kind: Any, value: Any, path: str, *, signed: bool = False) -> None:
    if kind is Any:
        return
    options = _options(kind)
    if value is None and type(None) in options:
        return
    matching = [o for o in options if _fits(o, value, signed=signed)]
    if not matching:
        raise Mismatch(path, expected(kind, signed=signed), _quoted(value))
    _check_inside(matching[0], value, path)


def _options(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _fits(kind: Any, value: Any, *, signed: bool) -> bool:
    """Whether a value has the type, without a check of its content."""
    if kind is Any:
        return True
    if typing.get_origin(kind) is Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if kind in (int, float, Integer, Error, Time):
        return _is_number(kind, value, signed=signed)
    if kind in (str, bool):
        return isinstance(value, kind)
    if _is_list(kind):
        return isinstance(value, list) and (kind is not Samples or bool(value))
    return kind is not type(None) and isinstance(value, dict)


def _is_number(kind: Any, value: Any, *, signed: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind is Error:
        return True
    least = -LARGEST if signed or kind is Integer else 0
    if not least <= value <= LARGEST:  # NaN is neither
        return False
    if kind in (int, Integer):
        return isinstance(value, int)
    return kind is float or value > 0


def _is_list(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple or kind is Samples


def _check_inside(kind: Any, value: Any, path: str) -> None:
    if _is_list(kind):
        item = Time if kind is Samples else typing.get_args(kind)[0]
        for index, each in enumerate(value):
            _check(item, each, f"{path}[{index}]")
    elif typing.get_origin(kind) is Mapping or kind is Mapping:
        item = (*typing.get_args(kind), Any, Any)[1]
        for name, each in value.items():
            _check(item, each, _below(path, name))
    elif kind is Counts:
        for name, each in value.items():
            _check(_COUNT, each, _below(path, name))
    elif isinstance(value, dict) and kind is not Any:
        _check_fields(kind, value, path)


_COUNT = float | Mapping[str, float | None] | None


def _check_fields(kind: Any, value: dict[str, Any], path: str) -> None:
    for name, (hint, required) in _fields(kind).items():
        if name in value:
            signed = (kind, name) in SIGNED
            _check(hint, value[name], _below(path, name), signed=signed)
        elif required:
            raise Mismatch(_below(path, name), expected(hint), "nothing: it is missing")


def _below(path: str, name: str) -> str:
    named = name if name.isidentifier() else f"[{_quoted(name)}]"
    return f"{path}.{named}" if path and named == name else f"{path}{named}"


def expected(kind: Any, *, signed: bool = False) -> str:
    """A type in words: `a number >= 0 or null`."""
    return " or ".join(
        dict.fromkeys(_words(each, signed=signed) for each in _options(kind))
    )


def _words(kind: Any, *, signed: bool) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(typing.get_args(kind))
    if kind is Samples:
        return "a list of samples"
    if _is_list(kind):
        return "a list"
    least = "" if signed else " >= 0"
    plain = {
        int: f"an integer{least}",
        float: f"a number{least}",
        Integer: "an integer",
        Error: "a number",
        Time: "a number > 0",
        str: "a text",
        bool: "true or false",
        type(None): "null",
    }
    return plain.get(kind, "an object")


def _quoted(value: Any) -> str:
    """A value as JSON, shortened if it is long."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = line(json.dumps(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
