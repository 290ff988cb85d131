"""Extracts a target's program as a candidate without importing or running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.file_merger import Merged, Unsuitable, merge_files
from torchproof.packs.repro.programs.scopes import MODULE, Binding, Names
from torchproof.packs.repro.programs.tree_shaking import (
    foreign_packages,
    shake,
    statements,
)
from torchproof.targets import Target, own_file

ABOUT = "source of your program, cut to the code that the target reaches"


def program_candidate(
    target: Target, arguments: Mapping[str, Any] | None = None
) -> Candidate:
    """Extracts the program of a factory or a script, or raises `Unsuitable`.

    `arguments` are the keyword arguments of the factory.
    """
    path = own_file(target)
    if path is None or target.kind not in {"factory", "workload", "script"}:
        raise Unsuitable(f"{target.text} has no source file to extract a program from")
    whole = merge_files(path)
    if target.kind == "script":
        tree = _script(whole.tree, target)
    else:
        tree = _factory(whole, target, arguments or {})
    needed = foreign_packages(tree)
    if needed:
        raise Unsuitable(f"the program needs {', '.join(needed)} in addition to torch")
    return program_from_tree(tree, origin=str(path))


def unmodified_program(
    target: Target, arguments: Mapping[str, Any] | None = None
) -> Candidate:
    """Returns the unmodified file if it is the whole program, else the extract."""
    path = own_file(target)
    candidate = program_candidate(target, arguments)
    if path is None or target.kind == "script" or arguments:
        return candidate
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    local = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    is_whole = len(merge_files(path).files) == 1 and target.factory in local
    if not is_whole or foreign_packages(tree):
        return candidate
    if target.factory != "make":
        text += f"\n\nmake = {target.factory}\n"
    return Candidate(
        "program", text, "all of your program", candidate.size, origin=str(path)
    )


def program_from_tree(
    tree: ast.Module, origin: str = "", about: str = ABOUT
) -> Candidate:
    """Returns a candidate of form "program" for a module."""
    source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return Candidate("program", source, about, size_of(tree), origin=origin)


def size_of(tree: ast.AST) -> int:
    return sum(1 for _ in statements(tree))


def _factory(whole: Merged, target: Target, arguments: Mapping[str, Any]) -> ast.Module:
    factory = whole.name(target.factory)
    hook = whole.name("before_call") if whole.defines("before_call") else None
    tree = shake(whole.tree, {factory, *filter(None, [hook])})
    lines = f"before_call = {hook}\n" if hook not in {None, "before_call"} else ""
    if not _set_defaults(tree, factory, arguments):
        keywords = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        factory = _rename_global(tree, factory, "build")
        lines += f"def make():\n    return {factory}({keywords})\n"
    elif factory != "make":
        _rename_global(tree, "make", "build")
        _rename_global(tree, factory, "make")
    tree.body += ast.parse(lines).body
    return tree


def _set_defaults(tree: ast.Module, factory: str, arguments: Mapping[str, Any]) -> bool:
    """Makes the arguments the factory's defaults; returns whether that worked."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == factory:
            break
    else:
        return not arguments and factory == "make"
    parameters = node.args
    values = dict(arguments)
    required = len(parameters.args) - len(parameters.defaults)
    old_defaults = [None] * required + [*parameters.defaults]
    defaults: list[ast.expr | None] = []
    for parameter, default in zip(parameters.args, old_defaults, strict=True):
        has_value = parameter.arg in values
        defaults.append(_literal(values.pop(parameter.arg)) if has_value else default)
    for place, parameter in enumerate(parameters.kwonlyargs):
        if parameter.arg in values:
            parameters.kw_defaults[place] = _literal(values.pop(parameter.arg))
    if values or None in defaults:
        return False
    parameters.defaults = [default for default in defaults if default is not None]
    return True


def _literal(value: Any) -> ast.expr:
    return ast.parse(repr(value), mode="eval").body


def _rename_global(tree: ast.Module, name: str, new: str) -> str:
    """Renames a global, and returns the free name that it got."""
    names = Names(tree)
    while new in names.scopes[MODULE].bound:
        new += "_"
    names.rename(lambda b: new if b == Binding(MODULE, name) else None)
    return new


def _script(tree: ast.Module, target: Target) -> ast.Module:
    """Moves the statements of a script into a function; definitions stay global.

    Its variables stay globals too, because the compiler guards on globals.
    """
    body: list[ast.stmt] = []
    outside: list[ast.stmt] = []
    tree = shake(_with_main_block(tree), Names(tree).scopes[MODULE].bound)
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    for node in tree.body:
        # A decorator may be `torch.compile`, or use a variable of the script.
        early = isinstance(node, definitions) and not getattr(
            node, "decorator_list", ()
        )
        (outside if early else body).append(node)
    names = sorted(
        {
            occurrence.name
            for node in body
            for occurrence in Names(ast.Module([node], [])).occurrences
            if occurrence.scope.number == MODULE and not _is_load(occurrence.node)
        }
    )
    if target.arguments or "sys.argv" in ast.unparse(tree):
        outside.insert(0, ast.Import([ast.alias("sys")]))
        argv = ["script.py", *target.arguments]
        body[:0] = ast.parse(f"sys.argv = {argv!r}").body
    if names:
        body.insert(0, ast.Global(names))
    run = ast.parse("def run():\n    pass").body[0]
    assert isinstance(run, ast.FunctionDef)
    run.body = body or [ast.Pass()]
    make = ast.parse("def make():\n    return run, [()]").body
    return ast.Module([*outside, run, *make], [])


def _with_main_block(tree: ast.Module) -> ast.Module:
    """Replaces `if __name__ == "__main__":` by its body."""
    body: list[ast.stmt] = []
    for node in tree.body:
        main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        body += node.body if main and isinstance(node, ast.If) else [node]
    return ast.Module(body, [])


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
