"""The recipe: the strategy that `torchproof tune` chose, as a file for production.

`Recipe.write` writes `torchproof.toml`, and `load` reads it. `fingerprint` identifies a
model, and `matching` lists what differs. Nothing here needs torch, and no content of a
file is ever run as code.
"""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchproof.records import UserError, files, shapes
from torchproof.records.mappings import JsonObject, TorchConfig
from torchproof.strategies.plan import Plan
from torchproof.strategies.strategy import Strategy

SCHEMA = 1
FILE = "torchproof.toml"
_MOST_BYTES = 16 << 20  # a recipe has a few kilobytes


class InvalidRecipe(UserError):
    """The file exists, but is not a recipe that this torchproof can read."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.why = why


@dataclass(frozen=True)
class Recipe:
    """A strategy, what it compiles in the model, and its measured gain.

    `gain` has `value`, `low` and `high`: how many times as fast as eager. `model` is
    the model's fingerprint. `dynamo` are settings of torch._dynamo.config; a list adds
    functions by name. Unknown values are absent. `other` keeps keys that a later
    torchproof wrote.
    """

    strategy: Strategy
    plan: Plan = field(default_factory=Plan)
    train: bool = False
    target: str | None = None
    run: str | None = None
    objective: str | None = None
    gain: shapes.Values = field(default_factory=dict, hash=False)
    measured: shapes.Values = field(default_factory=dict, hash=False)
    numerics: shapes.Values = field(default_factory=dict, hash=False)
    environment: shapes.Environment = field(
        default_factory=shapes.Environment, hash=False
    )
    model: shapes.Fingerprint = field(default_factory=shapes.Fingerprint, hash=False)
    lines: str = ""
    buckets: JsonObject | None = field(default=None, hash=False)
    other: JsonObject = field(default_factory=dict, hash=False)
    dynamo: TorchConfig = field(default_factory=dict, hash=False)

    def to_json(self) -> JsonObject:
        plain: JsonObject = {"schema": SCHEMA}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            plain[item.name] = dict(value) if isinstance(value, Mapping) else value
        plain["strategy"] = self.strategy.to_json()
        plain["plan"] = self.plan.to_json()
        return plain

    def dumps(self) -> str:
        """The recipe as TOML, with a comment at the top that says how to apply it."""
        from torchproof.strategies.recipe import document

        return document.written(self)

    def write(self, path: str | Path = FILE, *, overwrite: bool = False) -> Path:
        """Writes the file atomically; does not overwrite one unless asked to."""
        target = Path(path)
        try:
            _write(target, self.dumps().encode(), overwrite=overwrite)
        except FileExistsError:
            raise UserError(
                f"{target} exists and is not overwritten: name another file, or move it"
            ) from None
        except OSError as error:
            why = error.strerror or str(error)
            raise UserError(f"cannot write the recipe {target}: {why}") from None
        return target


def load(path: str | os.PathLike[str]) -> Recipe:
    """The recipe in a file; raises `InvalidRecipe` if the file has another content."""
    try:
        with files.open_regular(path) as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"cannot read the recipe {os.fspath(path)}: {error.strerror or error};"
            " torchproof tune TARGET makes one"
        ) from None
    if len(content) > _MOST_BYTES:
        raise InvalidRecipe(os.fspath(path), "too large to be a recipe")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        why = f"not a recipe: byte {error.start} is not UTF-8"
        raise InvalidRecipe(os.fspath(path), why) from None
    return loads(text, os.fspath(path))


def loads(text: str, path: str = FILE) -> Recipe:
    """The recipe in a text; an error names `path`."""
    from torchproof.strategies.recipe import document

    try:
        return document.read(text)
    except UserError as error:
        raise InvalidRecipe(path, str(error)) from None


def _write(target: Path, content: bytes, *, overwrite: bool) -> None:
    temporary = target.with_name(f".torchproof-{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content)
        if overwrite:
            os.replace(temporary, target)
        else:
            # A link never replaces a file, even if two processes write at once.
            os.link(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
