"""The description of an option: how users name it, its values, its help.

It is metadata of a field of a dataclass. The parser of a verb, its tool for agents,
shell completion, the man page and the signatures of `api` are made from the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, TypeVar

from torchproof.records.mappings import Keywords, Namespace
from torchproof.records.user_error import UserError

_KEY = "option"
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, kw_only=True)
class Option:
    """How users name an option and what its values are.

    An option without a flag is an argument, whose name is its metavar. `read` makes the
    value from text; the message of its `ValueError` follows the name of the flag.
    Options of a group are listed together; the `exclusive` ones of it exclude each
    other. `for_agents` makes it an argument of the tool of its verb.
    """

    help: str
    flag: str | None = None  # "": by the name of the field
    metavar: str = ""
    choices: tuple[str, ...] = ()
    read: Callable[[str], Any] | None = None
    group: str = ""  # a title; further lines are a text below it
    exclusive: bool = False
    for_agents: bool = False
    const: Any = None  # of a flag that may stand without a value


@dataclass(frozen=True)
class _Nested:
    """A record with options of its own."""

    kind: type[Any]


@dataclass(frozen=True)
class OptionField:
    """An option with the place of its value in the record of a verb."""

    path: tuple[str, ...]  # of field names: several for one of a nested record
    option: Option
    default: Any  # None also if there is none
    is_required: bool

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def flag(self) -> str | None:
        return self.option.flag

    @property
    def word(self) -> str:
        """The name of the flag as a keyword; of an argument, that of its field."""
        return (self.flag or self.path[-1]).lstrip("-").replace("-", "_")

    def read(self, text: str) -> Any:
        """The value of a text; a wrong one is a `UserError`."""
        choices = ("True", "False") if self.is_switch else self.option.choices
        read, name = self.option.read, self.flag or self.option.metavar
        if choices and text not in choices:
            raise UserError(f"{name} {text}: choose from {', '.join(choices)}")
        try:
            return text == "True" if self.is_switch else read(text) if read else text
        except ValueError as error:
            raise UserError(f"{name} {error}") from None

    @property
    def shown_value(self) -> str:
        """What stands for the value in a help text."""
        if self.option.metavar or not self.option.choices:
            return self.option.metavar
        return f"{{{','.join(self.option.choices)}}}"

    @property
    def is_switch(self) -> bool:
        """Whether it has no value: giving it turns the default round."""
        return isinstance(self.default, bool)


def option(
    default: Any, help: str, metavar: str = "", *, flag: str = "", **settings: Any
) -> Any:
    """A field of a dataclass with a flag, by default that of the field's name."""
    return _field(default, Option(help=help, flag=flag, metavar=metavar, **settings))


def argument(default: Any, help: str, metavar: str, **settings: Any) -> Any:
    """A field whose value follows the verb without a flag."""
    return _field(default, Option(help=help, metavar=metavar, **settings))


def nested(kind: type[Any]) -> Any:
    """A field with another record of options, None if none of them is set."""
    return field(default=None, metadata={_KEY: _Nested(kind)})


def _field(default: Any, described: Option) -> Any:
    metadata = {_KEY: described}
    if default is MISSING:
        return field(metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(kind: type[Any]) -> list[OptionField]:
    """The options of a record in the order of its bases, the last base first.

    Where a class describes a field of its base again, its description counts and stands
    where the class has it.
    """
    known = {each.name: each for each in fields(kind)}
    order: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        for name in vars(base).get("__annotations__", ()):
            order.pop(name, None)
            order[name] = None
    return [each for name in order if name in known for each in _options(known[name])]


def _options(each: Field[Any]) -> Iterator[OptionField]:
    described = each.metadata.get(_KEY)
    if isinstance(described, _Nested):
        for inner in options_of(described.kind):
            yield replace(inner, path=(each.name, *inner.path))
    elif described is not None:
        if described.flag == "":
            flag = f"--{each.name.replace('_', '-')}"
            described = replace(described, flag=flag)
        factory = each.default_factory
        default = each.default if factory is MISSING else factory()
        required = default is MISSING
        default = None if required else default
        yield OptionField((each.name,), described, default, required)


def made(kind: type[_Kind], by_key: Keywords) -> _Kind:
    """The record from the values of its options, by their keys."""
    values: Namespace = {}
    inner: dict[str, Namespace] = {}
    for key, value in by_key.items():
        name, dot, rest = key.partition(".")
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            values[name] = value
    for each in fields(kind) if inner else ():  # type: ignore[arg-type]
        if each.name in inner:
            values[each.name] = made(each.metadata[_KEY].kind, inner[each.name])
    return kind(**values)


def values_of(kind: type[Any], record: Any) -> Keywords:
    """The fields of a record that this base of it has."""
    return {each.name: getattr(record, each.name) for each in fields(kind)}
