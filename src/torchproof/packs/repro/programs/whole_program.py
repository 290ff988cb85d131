"""A target's own program as a candidate, without importing or running anything of it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.file_merger import Merged, Unsuitable, merged
from torchproof.packs.repro.programs.scopes import MODULE, Binding, Names
from torchproof.packs.repro.programs.tree_shaking import foreign, shaken, statements
from torchproof.targets import Target, own_file

ABOUT = "source of your own program, cut to what the failure needs"


def program_candidate(
    target: Target, arguments: Mapping[str, Any] | None = None
) -> Candidate:
    """The program of a factory or a script, or `Unsuitable` with the reason.

    `arguments` are the keywords that the factory is called with.
    """
    path = own_file(target)
    if path is None or target.kind not in {"factory", "workload", "script"}:
        raise Unsuitable(f"{target.text} has no program that could be cut out")
    whole = merged(path)
    if target.kind == "script":
        tree = _script(whole.tree, target)
    else:
        tree = _factory(whole, target, arguments or {})
    needed = foreign(tree)
    if needed:
        raise Unsuitable(f"the program needs {', '.join(needed)}, which is not torch")
    return program_from_tree(tree, origin=str(path))


def unmodified_program(
    target: Target, arguments: Mapping[str, Any] | None = None
) -> Candidate:
    """The program with its comments, if one file is all of it."""
    path = own_file(target)
    candidate = program_candidate(target, arguments)
    if path is None or target.kind == "script" or arguments:
        return candidate
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    local = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    alone = len(merged(path).files) == 1 and target.factory in local
    if not alone or foreign(tree):
        return candidate
    if target.factory != "make":
        text += f"\n\nmake = {target.factory}\n"
    return Candidate(
        "program", text, "all of your program", candidate.size, origin=str(path)
    )


def program_from_tree(
    tree: ast.Module, origin: str = "", about: str = ABOUT
) -> Candidate:
    """A candidate of form program of a module."""
    source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return Candidate("program", source, about, size_of(tree), origin=origin)


def size_of(tree: ast.AST) -> int:
    return sum(1 for _ in statements(tree))


def _factory(whole: Merged, target: Target, arguments: Mapping[str, Any]) -> ast.Module:
    factory = whole.name(target.factory)
    hook = whole.name("before_call") if whole.defines("before_call") else None
    tree = shaken(whole.tree, {factory, *filter(None, [hook])})
    lines = f"before_call = {hook}\n" if hook not in {None, "before_call"} else ""
    if not _takes(tree, factory, arguments):
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        factory = _renamed(tree, factory, "build")
        lines += f"def make():\n    return {factory}({given})\n"
    elif factory != "make":
        _renamed(tree, "make", "build")
        _renamed(tree, factory, "make")
    tree.body += ast.parse(lines).body
    return tree


def _takes(tree: ast.Module, factory: str, arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments could be made the factory's defaults, and were."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == factory:
            break
    else:
        return not arguments and factory == "make"
    given, values = node.args, dict(arguments)
    usual = [None] * (len(given.args) - len(given.defaults)) + [*given.defaults]
    found: list[ast.expr | None] = []
    for argument, default in zip(given.args, usual, strict=True):
        known = argument.arg in values
        found.append(_literal(values.pop(argument.arg)) if known else default)
    for place, argument in enumerate(given.kwonlyargs):
        if argument.arg in values:
            given.kw_defaults[place] = _literal(values.pop(argument.arg))
    if values or None in found:
        return False
    given.defaults = [default for default in found if default is not None]
    return True


def _literal(value: Any) -> ast.expr:
    return ast.parse(repr(value), mode="eval").body


def _renamed(tree: ast.Module, name: str, wanted: str) -> str:
    """A global under another name that is free; what it is called then."""
    names = Names(tree)
    while wanted in names.scopes[MODULE].bound:
        wanted += "_"
    names.rename(lambda b: wanted if b == Binding(MODULE, name) else None)
    return wanted


def _script(tree: ast.Module, target: Target) -> ast.Module:
    """Definitions stay where they are; what the script does becomes a function.

    Its variables stay globals, since that is how the compiler sees them.
    """
    body: list[ast.stmt] = []
    outside: list[ast.stmt] = []
    tree = shaken(_opened(tree), Names(tree).scopes[MODULE].bound)
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    for node in tree.body:
        # A decorator may be `torch.compile`, or need what the script made before it.
        early = isinstance(node, kept) and not getattr(node, "decorator_list", ())
        (outside if early else body).append(node)
    names = sorted(
        {
            spelling.name
            for node in body
            for spelling in Names(ast.Module([node], [])).spellings
            if spelling.scope.number == MODULE and not _is_load(spelling.node)
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


def _opened(tree: ast.Module) -> ast.Module:
    """`if __name__ == "__main__":` is what runs."""
    body: list[ast.stmt] = []
    for node in tree.body:
        main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        body += node.body if main and isinstance(node, ast.If) else [node]
    return ast.Module(body, [])


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
