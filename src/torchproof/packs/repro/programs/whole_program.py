"""Extracts a target's program as candidates without importing or running it."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.file_merger import Merged, Unsuitable, merge_files
from torchproof.packs.repro.programs.scopes import Globals
from torchproof.packs.repro.programs.tree_shaking import (
    foreign_packages,
    shake,
    without_annotations,
)
from torchproof.targets import Target, own_file

ROOTS = ("make", "before_call")
_EXTRACT = "source of your program, cut to the code that the target reaches"
_WHOLE = "all of your program"


def program_candidates(
    target: Target,
    arguments: Mapping[str, object] | None = None,
    *,
    as_written: bool = False,
) -> Iterator[Candidate]:
    """Yields the program of a factory or a script, or raises `Unsuitable`.

    First what the target reaches, then everything, in case the failure depends on code
    that seems unreachable. `arguments` are the keyword arguments of the factory. With
    `as_written`, a program of one file comes first, as it is.
    """
    path = own_file(target)
    if path is None or target.kind not in {"factory", "workload", "script"}:
        raise Unsuitable(f"{target.text} has no source file to extract a program from")
    merged = merge_files(path)
    if target.kind == "script":
        tree = _script(merged.tree, target)
    else:
        tree = _factory(merged, target, arguments or {})
    if as_written and target.kind == "factory" and merged.file_count == 1:
        yield from _file_as_written(path, target, tree)
    extract = shake(copy.deepcopy(tree), ROOTS)
    needed = foreign_packages(extract)
    if needed:
        raise Unsuitable(f"the program needs {', '.join(needed)} in addition to torch")
    yield _candidate(extract, _EXTRACT, path)
    if not foreign_packages(tree):
        yield _candidate(tree, _WHOLE, path)


def size_of(tree: ast.AST) -> int:
    """Returns the number of statements."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def _candidate(tree: ast.Module, about: str, path: Path) -> Candidate:
    source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return Candidate("program", source, about, size_of(tree), origin=str(path))


def _file_as_written(
    path: Path, target: Target, tree: ast.Module
) -> Iterator[Candidate]:
    text = path.read_text(encoding="utf-8")
    if not foreign_packages(ast.parse(text)):
        if target.factory != "make":
            text += f"\n\nmake = {target.factory}\n"
        yield Candidate("program", text, _WHOLE, size_of(tree), origin=str(path))


def _factory(
    merged: Merged, target: Target, arguments: Mapping[str, object]
) -> ast.Module:
    """Names the factory `make`, or calls it with its arguments in a new `make`."""
    if target.factory not in merged.names:
        raise Unsuitable(f"{Path(target.where).name} does not define {target.factory}")
    factory = merged.names[target.factory]
    hook = merged.names.get("before_call", "before_call")
    tree = ast.Module([n for n in merged.tree.body if not _is_main_block(n)], [])
    names = Globals(tree)
    renamed = {hook: "before_call"}
    build = _free("build", names.bound)
    if arguments or factory != "make":
        renamed |= {"make": build, factory: build if arguments else "make"}
    names.rename(renamed)
    if arguments:
        keywords = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        text = f"def make():\n    return {build}({keywords})\n"
        tree.body += ast.parse(text).body
    return tree


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _script(tree: ast.Module, target: Target) -> ast.Module:
    """Moves the statements of a script into a function; definitions stay global.

    Its variables stay globals too, because the compiler guards on globals.
    """
    body: list[ast.stmt] = []
    outside: list[ast.stmt] = []
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    # A global that a function declares must not have an annotation.
    for node in _with_main_block(without_annotations(tree)):
        # A decorator may be `torch.compile`, or use a variable of the script.
        decorators = getattr(node, "decorator_list", ())
        is_early = isinstance(node, definitions) and not decorators
        (outside if is_early else body).append(node)
    names = sorted(Globals(ast.Module(body, [])).bound)
    if target.arguments or "sys.argv" in ast.unparse(tree):
        outside.append(ast.Import([ast.alias("sys")]))
        argv = ["script.py", *target.arguments]
        body[:0] = ast.parse(f"sys.argv = {argv!r}").body
    if names:
        body.insert(0, ast.Global(names))
    run, make = ast.parse("def run(): pass\ndef make():\n    return run, [()]").body
    assert isinstance(run, ast.FunctionDef)
    run.body = body or [ast.Pass()]
    return ast.fix_missing_locations(ast.Module([*outside, run, make], []))


def _with_main_block(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yields the statements of a script with those of its main block."""
    for node in tree.body:
        if isinstance(node, ast.If) and _is_main_block(node):
            yield from node.body
        else:
            yield node


def _is_main_block(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
