"""The files of a patch folder: a manifest, and one module per patched library file.

A patch module is Python that is read but never imported: it has the replaced functions
in classes of the same names, as they are in the library. `definitions` finds functions
by their qualified names, there and in the library.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchproof.records import (
    MOST_SOURCE_BYTES,
    JsonObject,
    Mark,
    Mismatch,
    Record,
    Setting,
    UserError,
    read_bytes,
)

SCHEMA = 1
MANIFEST = "manifest.json"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class PatchModule(Record):
    """A file of the folder: the functions of one library module that it replaces."""

    file: str
    module: str
    package: str  # the distribution, with the version that the patch was made for
    # By qualified name: the SHA-256 of the source it replaces; "" for a new function.
    functions: Mapping[str, str]
    imports: tuple[str, ...] = ()  # statements that the new source needs
    other: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class PatchManifest(Record):
    """What a patch folder contains, and where it comes from."""

    schema: int
    torchproof: str
    target: str
    command: str
    environment: Mapping[str, str]
    modules: tuple[PatchModule, ...] = ()
    settings: tuple[Setting, ...] = ()
    marks: tuple[Mark, ...] = ()
    other: JsonObject = field(default_factory=dict, hash=False)


def read_manifest(folder: Path) -> PatchManifest:
    """The manifest of a patch folder; raises `UserError` if it is not one."""
    path = folder / MANIFEST
    try:
        plain = json.loads(read_bytes(path, MOST_SOURCE_BYTES))
        if not isinstance(plain, dict) or not isinstance(plain.get("schema"), int):
            raise UserError(f"{path} is not the manifest of a patch folder")
        if plain["schema"] > SCHEMA:
            raise UserError(
                f"{path} has schema {plain['schema']}, this torchproof reads up to"
                f" {SCHEMA}: install a newer torchproof"
            )
        manifest = PatchManifest.from_json(plain)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{folder} is not a patch folder: {MANIFEST}: {why}") from None
    except (ValueError, RecursionError, Mismatch) as error:
        raise UserError(f"{path} is not a manifest of patches: {error}") from None
    for module in manifest.modules:
        if Path(module.file).name != module.file:
            raise UserError(f"{path}: {module.file!r} is not a file of the folder")
    return manifest


# -- the functions of a source text ----------------------------------------------------


@dataclass(frozen=True)
class Definition:
    """A function of a module or class, with its decorators."""

    name: str  # qualified: `Net.forward`
    node: Function = field(compare=False)
    classes: tuple[ast.ClassDef, ...] = field(compare=False)
    lines: tuple[str, ...]

    @property
    def first(self) -> int:
        return first_line(self.node)

    @property
    def last(self) -> int:
        return self.node.end_lineno or self.first

    @property
    def digest(self) -> str:
        """The SHA-256 of the source; line endings do not count."""
        text = "\n".join(line.rstrip("\r\n") for line in self.lines)
        return hashlib.sha256(text.encode()).hexdigest()


def first_line(node: Function | ast.ClassDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def definitions(text: str) -> dict[str, Definition]:
    """The functions of modules and classes that are defined once."""
    # Lines as the parser counts them: a form feed does not end one.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found: dict[str, list[Definition]] = {}
    for node, classes in _functions(ast.parse(text).body, ()):
        name = ".".join([*(each.name for each in classes), node.name])
        source = lines[first_line(node) - 1 : node.end_lineno]
        definition = Definition(name, node, classes, tuple(source))
        found.setdefault(name, []).append(definition)
    return {name: each[0] for name, each in found.items() if len(each) == 1}


def _functions(
    body: Sequence[ast.stmt], classes: tuple[ast.ClassDef, ...]
) -> Iterator[tuple[Function, tuple[ast.ClassDef, ...]]]:
    """Functions in bodies of classes and of conditional statements, in order."""
    for statement in body:
        if isinstance(statement, Function):
            yield statement, classes
        elif isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body, (*classes, statement))
        else:
            for name in ("body", "orelse", "finalbody"):
                yield from _functions(getattr(statement, name, ()), classes)
            for handler in getattr(statement, "handlers", ()):
                yield from _functions(handler.body, classes)
