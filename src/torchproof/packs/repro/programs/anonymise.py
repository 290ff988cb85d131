"""A program without its author's words: names and texts that say nothing.

What the failure needs is kept as it is, and listed.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import keyword
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.program_reducer import Fails, tidied, with_source
from torchproof.packs.repro.programs.reserved_words import PLAIN
from torchproof.packs.repro.programs.scopes import Names, spelled

DISTILLED = "code distilled from your program; names and texts are replaced"
_KEPT = {"make", "before_call", "run", "self", "cls", "forward", "backward", "index"}
_USUAL = {"nn", "F", "np", "dist", "optim"}  # what everybody calls an import
_POOLS: dict[str, tuple[str, ...]] = {
    "class": ("Model", "Block", "Part", "Data", "Unit"),
    "function": ("f", "g", "h", "p", "q"),
    "attribute": ("a", "b", "c", "d", "e"),
    "variable": ("x", "y", "z", "u", "v", "w"),
}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef


def anonymise(
    candidate: Candidate, fails: Fails, deadline: float | None = None
) -> Candidate:
    """The candidate without names and texts of the user's, as far as it still fails.

    Past `deadline` (of `time.monotonic`; a minute from now unless told) words are kept.
    """
    deadline = time.monotonic() + 60.0 if deadline is None else deadline
    tree = ast.parse(candidate.source)
    candidate = _first(candidate, [tidied(tree)], fails)
    names = _own_names(ast.parse(candidate.source))
    candidate, left = _replaced(candidate, names, fails, deadline)
    texts = {text: f"text{n or ''}" for n, text in enumerate(_texts(candidate.source))}
    candidate, kept = _replaced(candidate, texts, fails, deadline)
    candidate = _rounded(candidate, fails, deadline)
    about = DISTILLED
    if left or kept:
        words = ", ".join(sorted({*left, *map(repr, kept)}))
        about += f", but for what the failure needs: {words}"
    return dataclasses.replace(candidate, about=about)


def _first(candidate: Candidate, sources: list[str | None], fails: Fails) -> Candidate:
    """The first of some rewritings that fails in the same way, else the candidate."""
    for source in sources:
        if source is not None and source != candidate.source:
            rewritten = with_source(candidate, source)
            if fails(rewritten):
                return rewritten
    return candidate


def _replaced(
    candidate: Candidate, words: Mapping[str, str], fails: Fails, deadline: float
) -> tuple[Candidate, list[str]]:
    """With as many of the words replaced as can be, and those that were kept.

    All at once, then halves of what is left: few words matter.
    """
    kept: list[str] = []
    waiting = [list(words)] if words else []
    while waiting:
        some = waiting.pop()
        source = _rewritten(candidate.source, {word: words[word] for word in some})
        rewritten = with_source(candidate, source)
        # Once the time is over nothing more is tried; what was not stays, and is told.
        late = time.monotonic() >= deadline and len(some) < len(words)
        if source == candidate.source or (not late and fails(rewritten)):
            candidate = rewritten
        elif len(some) == 1 or late:
            kept += some
        else:
            middle = len(some) // 2
            waiting += [some[middle:], some[:middle]]
    return candidate, kept


def _rewritten(source: str, words: Mapping[str, str]) -> str:
    tree = ast.parse(source)
    _rename(tree, words)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _rename(tree: ast.Module, words: Mapping[str, str]) -> None:
    """Every place that spells one of the words; what torch defines is left alone."""
    imports = _imported(tree)
    names = Names(tree)
    for spelling in names.spellings:
        bound = names.binding(spelling) is not None
        if bound and spelling.name in words and spelling.name not in imports:
            spelling.write(words[spelling.name])
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            _rename_keywords(node, words, imports)
        elif isinstance(node, ast.Attribute) and node.attr in words:
            if _root(node) not in imports:
                node.attr = words[node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = words.get(node.value, node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            text = node.value.decode("latin-1")
            node.value = words.get(text, text).encode("latin-1")


def _rename_keywords(
    node: ast.Call, words: Mapping[str, str], imports: Collection[str]
) -> None:
    """Of calls to what the program defines itself; it may be renamed already."""
    called = ast.unparse(node.func).rpartition(".")[2]
    own = called in {*words, *words.values(), "forward", "__init__", "fn"}
    own = own or called in _POOLS["class"]
    if own and _root(node.func) not in imports:
        for each in node.keywords:
            each.arg = words.get(each.arg, each.arg) if each.arg else None


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.AST) -> set[str]:
    """Names of imports, but for those that the program chose itself."""
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.asname is None or alias.asname in _USUAL
    }


# -- which names are the user's --------------------------------------------------------


def _own_names(tree: ast.Module) -> dict[str, str]:
    """What the program names itself, and what it shall be called."""
    roles: dict[str, str] = {}
    for role in _POOLS:
        for name in _of_role(tree, role):
            fixed = name in _KEPT | _imported(tree) or name in PLAIN
            special = name.startswith("__") and name.endswith("__")
            if not fixed and not special:
                roles.setdefault(name, role)
    taken = set(spelled(tree)) | set(roles) | _imported(tree) | _KEPT
    pools = {role: _fresh(names, taken) for role, names in _POOLS.items()}
    return {name: next(pools[role]) for name, role in roles.items()}


def _of_role(tree: ast.Module, role: str) -> Iterator[str]:
    names = Names(tree)
    definitions: dict[str, Any] = {"class": ast.ClassDef, "function": _Definition}
    for node in ast.walk(tree):
        if role in definitions and isinstance(node, definitions[role]):
            yield node.name
        elif role == "attribute":
            yield from _stored(node)
    if role == "variable":
        for spelling in names.spellings:
            if names.binding(spelling) is not None:
                yield spelling.name


def _stored(node: ast.AST) -> Iterator[str]:
    """Attributes that the program sets, by assignment, in a class or by a keyword."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.ClassDef):
        for member in node.body:
            targets = getattr(member, "targets", None) or [
                getattr(member, "target", None)
            ]
            yield from (t.id for t in targets if isinstance(t, ast.Name))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield from (each.arg for each in node.keywords if each.arg)


def _fresh(names: tuple[str, ...], taken: Collection[str]) -> Iterator[str]:
    """A pool's names, then the same with numbers; none that means something else."""
    for number in itertools.count(1):
        for name in names:
            wanted = name if number == 1 else f"{name}{number}"
            if wanted not in taken and not keyword.iskeyword(wanted):
                yield wanted


def _texts(source: str) -> list[str]:
    """The texts of a program that are no words of torch or Python."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            value = node.value
            text = value if isinstance(value, str) else value.decode("latin-1")
            if text not in PLAIN and len(text) > 1 and not _is_number(text):
                found[text] = None
    return list(found)


def _is_number(text: str) -> bool:
    """`inf` says nothing of its author, and what reads it takes no other word."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rounded(candidate: Candidate, fails: Fails, deadline: float) -> Candidate:
    """Fractions that say nothing, where they all can be: 2.0 in their place."""
    tree = ast.parse(candidate.source)
    plain = {0.0, 1.0, 2.0, 0.5, -1.0}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            node.value = node.value if node.value in plain else 2.0
    late = time.monotonic() >= deadline
    return candidate if late else _first(candidate, [ast.unparse(tree) + "\n"], fails)
