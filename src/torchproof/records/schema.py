"""The one JSON codec: records to JSON, and JSON to records with a check of every value.

The field types of a record are its schema, so a new field is checked automatically.
`Annotated[JsonObject, Shape]` narrows the JSON of a field without a class of its own.
Unknown keys are allowed with any value, since a newer torchproof may have written them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NotRequired, Self, TypeVar

from torchproof.records.mappings import JsonObject
from torchproof.records.printable import line

DEEPEST = 64  # levels of lists and objects
LARGEST = 1e30  # the largest measurement or count
MOST_BYTES = 256 * 2**20  # the largest file
_EXACT = 2**53  # the largest integer up to which floats have every one
DIGITS = 300  # the most digits of an integer that a float can hold
_SHOWN = 60  # characters of a quoted value

T = TypeVar("T")
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


class Mismatch(Exception):
    """`measurements[0].median_ms: expected a number >= 0 or null, found "abc"`."""

    def __init__(self, path: str, expected: str, value: str) -> None:
        what = f"expected {expected}, found {value}"
        super().__init__(f"{path}: {what}" if path else what)


# Numbers are not negative, except for these.


class Integer(int):
    """An integer of either sign."""


class Number(float):
    """A number of either sign."""


class Error(float):
    """The error of an output; infinite if one of two outputs is."""


class Time(float):
    """The time of one call, above zero."""


class Samples(list[float]):
    """The times of one round: at least one, each above zero."""


_NUMBERS: dict[type, tuple[float, str]] = {  # the least value, and the words for it
    int: (0, "an integer >= 0"),
    float: (0, "a number >= 0"),
    Integer: (-LARGEST, "an integer"),
    Number: (-LARGEST, "a number"),
    Error: (-math.inf, "a number"),
    Time: (math.nextafter(0, 1), "a number > 0"),
}


class Record:
    """A dataclass that is saved as JSON.

    `derived` names properties that are written and not read; `older_names` are fields
    with another name in older files. A field `other` keeps unknown keys. `late_types`
    are types of fields by their module, which is only imported to read JSON: commands
    that read no run start faster.
    """

    derived: ClassVar[tuple[str, ...]] = ()
    older_names: ClassVar[Mapping[str, str]] = {}
    late_types: ClassVar[Mapping[str, str]] = {}

    def to_json(self) -> JsonObject:
        return _fields_of(self)

    def inconsistency(self) -> tuple[str, str, str] | None:
        """A field that does not fit the others: its name, what is expected and found.

        Only asked of records that are read.
        """
        return None

    @classmethod
    def upgraded(cls, values: JsonObject, plain: JsonObject) -> None:
        """Fills the fields that an older record lacks, from what it has."""

    @classmethod
    def from_json(cls, plain: Any) -> Self:
        """Raises `Mismatch` if the JSON does not fit."""
        return build(cls, plain)


def to_plain(value: Any) -> Any:
    """A value as JSON: records become objects; NaN and infinities become null."""
    if isinstance(value, Record):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return _fields_of(value)
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _fields_of(record: Any) -> JsonObject:
    names = [f.name for f in dataclasses.fields(record) if f.name != "other"]
    names += getattr(record, "derived", ())
    plain = {name: to_plain(getattr(record, name)) for name in names}
    return plain | dict(getattr(record, "other", {}))


def build(kind: type[T], plain: Any) -> T:
    """The record that JSON describes; raises `Mismatch` if it does not fit the type."""
    _check_depth(plain)
    record: T = _read(kind, plain, "")
    return record


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
        return int(digits) if len(digits) <= DIGITS else float(digits)

    return json.loads(text, parse_int=integer, **settings)


def check(kind: Any, plain: Any) -> None:
    """Raises `Mismatch` if JSON does not fit a type (a record, a `TypedDict`...)."""
    _check_depth(plain)
    _read(kind, plain, "")


def _check_depth(plain: Any) -> None:
    """Fails if JSON is nested more deeply than torchproof writes it."""
    level = [plain]
    for _ in range(DEEPEST):
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [
            item
            for each in inner
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise Mismatch("", f"at most {DEEPEST} levels of nesting", "more")


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Name to (type, whether it is required)."""
    late = {
        name: getattr(importlib.import_module(module), name)
        for name, module in getattr(kind, "late_types", {}).items()
    }
    hints = typing.get_type_hints(kind, localns=late or None, include_extras=True)
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return {
            field.name: (
                hints[field.name],
                field.default is field.default_factory is missing,
            )
            for field in dataclasses.fields(kind)
            if field.name != "other"
        }
    optional = {n for n, h in hints.items() if typing.get_origin(h) is NotRequired}
    hints |= {name: typing.get_args(hints[name])[0] for name in optional}
    needed = kind.__required_keys__ - optional
    return {name: (hint, name in needed) for name, hint in hints.items()}


def _read(kind: Any, value: Any, path: str) -> Any:
    """The value as the type has it: records for objects, tuples for lists."""
    for option in _options(kind):
        if _fits(option, value):
            return _inside(option, value, path)
    raise Mismatch(path, expected(kind), _quoted(value))


@functools.cache
def _options(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) is Annotated:
        kind = kind.__metadata__[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


@functools.cache
def _form(kind: Any) -> str:
    """What of JSON a type stands for; looked up once, since `typing` is slow."""
    if kind is Any:
        return "anything"
    if kind is type(None):
        return "null"
    if typing.get_origin(kind) is Literal:
        return "word"
    if kind in _NUMBERS:
        return "number"
    if kind in (str, bool):
        return "plain"
    if typing.get_origin(kind) is tuple or kind is Samples:
        return "list"
    is_mapping = (typing.get_origin(kind) or kind) in (dict, Mapping)
    return "mapping" if is_mapping else "object"


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value has the type, without a check of its content."""
    match _form(kind):
        case "plain":
            return isinstance(value, kind)
        case "number":
            return _is_number(kind, value)
        case "null":
            return value is None
        case "list":
            return isinstance(value, list) and _has_length(kind, len(value))
        case "word":
            return isinstance(value, str) and value in typing.get_args(kind)
        case "anything":
            return True
    return isinstance(value, dict)


def _has_length(kind: Any, length: int) -> bool:
    if kind is Samples:
        return length > 0
    items = typing.get_args(kind)
    return items[-1] is Ellipsis or length == len(items)


def _is_number(kind: type, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind is Error:
        return True
    if not _NUMBERS[kind][0] <= value <= LARGEST:  # NaN is neither
        return False
    return isinstance(value, int) or kind not in (int, Integer)


def _inside(kind: Any, value: Any, path: str) -> Any:
    form = _form(kind)
    if form == "list":
        if kind is Samples and all(type(v) is float and 0 < v < _EXACT for v in value):
            return tuple(value)
        item, *rest = (Time, ...) if kind is Samples else typing.get_args(kind)
        kinds = itertools.repeat(item) if rest[-1:] == [...] else (item, *rest)
        pairs = zip(kinds, value, strict=False)
        return tuple(_read(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(pairs))
    if form == "mapping":
        item = (*typing.get_args(kind), Any, Any)[1]
        return {n: _read(item, each, _below(path, n)) for n, each in value.items()}
    if form == "object":
        return _object(kind, value, path)
    if form == "number" and kind not in (int, Integer) and abs(value) > _EXACT:
        return float(value)  # numpy computes with no larger integer
    return value


def _object(kind: Any, value: JsonObject, path: str) -> Any:
    """A record, or the object itself if its type is a `TypedDict`."""
    is_record = dataclasses.is_dataclass(kind)
    renamed = getattr(kind, "older_names", {})
    names = {renamed.get(name, name): name for name in value}
    values = {}
    for name, (hint, required) in _fields(kind).items():
        if name in names:
            written = names.pop(name)
            values[name] = _read(hint, value[written], _below(path, written))
        elif required:
            raise Mismatch(_below(path, name), expected(hint), "nothing: it is missing")
    if not is_record:
        return value
    if any(field.name == "other" for field in dataclasses.fields(kind)):
        derived = getattr(kind, "derived", ())
        values["other"] = {n: value[n] for n in names.values() if n not in derived}
    if issubclass(kind, Record):
        kind.upgraded(values, value)
    record = kind(**values)
    if isinstance(record, Record) and (problem := record.inconsistency()):
        name, wanted, found = problem
        raise Mismatch(_below(path, name), wanted, found)
    return record


def _below(path: str, name: str) -> str:
    named = name if name.isidentifier() else f"[{_quoted(name)}]"
    return f"{path}.{named}" if path and named == name else f"{path}{named}"


def expected(kind: Any) -> str:
    """A type in words: `a number >= 0 or null`."""
    return " or ".join(dict.fromkeys(map(_words, _options(kind))))


def json_types(kind: Any) -> dict[str, str]:
    """The type of each field of a record, in words."""
    types = {name: expected(each) for name, (each, _) in _fields(kind).items()}
    return types | dict.fromkeys(kind.derived, "derived from the others")


def _words(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(typing.get_args(kind))
    if kind in _NUMBERS:
        return _NUMBERS[kind][1]
    if kind is Samples:
        return "a list of samples"
    if _form(kind) == "list":
        items = typing.get_args(kind)
        return "a list" if items[-1] is Ellipsis else f"a list of {len(items)}"
    words = {str: "a text", bool: "true or false", type(None): "null"}
    return words.get(kind, "an object")


def _quoted(value: Any) -> str:
    """A value as JSON, shortened if it is long."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = line(json.dumps(value, default=str))  # TOML has dates
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
