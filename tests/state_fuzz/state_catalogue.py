"""The ways in which a step can read state, from the tables in mechanisms/*.toml.

A mechanism has these fields. N stands for the number of the reader in its program,
VALUE for one of `values`, OBJ for the object as a holder gives it, SELF for the owner.

- `setup`: statements at the top of the program; `files`: further files beside it
- `object`: an expression that makes an object, which any holder can keep
- `read`, `tensor` or `apply`: an expression that gives a number, gives a tensor of four
  columns, or is a whole expression over `x`
- `before`: statements that come right before this expression
- `changes`: statements that change what is read, from outside
- `state`: an expression that is compared after each call
- `cleanup`: a statement that undoes what is changed for the whole process
- `writes`: the step changes the state itself; `varies`: it draws random numbers
- `alone`: it cannot be in one program with others
- `forms`: only where the step has one of these forms
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLES = Path(__file__).resolve().parent / "mechanisms"
TABLES_OF_MECHANISMS = (
    *("objects", "modules", "functions", "containers", "torch", "roots", "found"),
)
FORMS = ("function", "module", "method", "callable", "partial", "closure")


@dataclass(frozen=True)
class Mechanism:
    name: str
    setup: str = ""
    files: dict[str, str] = field(default_factory=dict)
    object: str = ""
    read: str = ""
    tensor: str = ""
    apply: str = ""
    before: str = ""
    changes: tuple[str, ...] = ()
    values: tuple[str, ...] = ("2.0", "3.0", "5.0")
    state: str = ""
    cleanup: str = ""
    writes: bool = False
    varies: bool = False
    alone: bool = False
    forms: tuple[str, ...] = FORMS

    @property
    def is_root(self) -> bool:
        """Whether it is about the step itself, whatever that reads."""
        return self.forms != FORMS


@dataclass(frozen=True)
class Holder:
    name: str
    inside: str
    outside: str
    assign: str
    definition: str = ""
    after: str = ""
    frame: str = ""


@dataclass(frozen=True)
class Placement:
    name: str
    call: str
    definition: str = ""
    method: str = ""
    after: str = ""


def _table(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8"))


def _frozen(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in fields.items()
    }


@functools.cache
def mechanisms() -> dict[str, Mechanism]:
    found = {}
    for table in TABLES_OF_MECHANISMS:
        for name, fields in _table(table).items():
            assert name not in found, f"two mechanisms are called {name!r}"
            found[name] = Mechanism(name, **_frozen(fields))
    return found


def found_once() -> list[str]:
    """The mechanisms that were stale once."""
    return [*_table("found")]


@functools.cache
def holders() -> dict[str, Holder]:
    return {name: Holder(name, **each) for name, each in _table("holders").items()}


@functools.cache
def placements() -> dict[str, Placement]:
    table = _table("placements")
    return {name: Placement(name, **each) for name, each in table.items()}
