"""Replaces the names and strings of a program by neutral ones.

Words that the failure depends on stay, and `Candidate.about` lists them.
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
from torchproof.packs.repro.programs.program_reducer import Fails, tidy, with_source
from torchproof.packs.repro.programs.scopes import Names, mentioned_names

ANONYMISED = "reduced code of your program; names and strings are replaced"
_FIXED_NAMES = {
    "make",
    "before_call",
    "run",
    "self",
    "cls",
    "forward",
    "backward",
    "index",
}
_COMMON_ALIASES = {"nn", "F", "np", "dist", "optim"}  # they reveal nothing
_POOLS: dict[str, tuple[str, ...]] = {
    "class": ("Model", "Block", "Part", "Data", "Unit"),
    "function": ("f", "g", "h", "p", "q"),
    "attribute": ("a", "b", "c", "d", "e"),
    "variable": ("x", "y", "z", "u", "v", "w"),
}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
# Words of torch and Python, and the neutral names: a program may keep them.
_WORDS = """
Model Block Part Data Unit f g h p q a b c d e x y z u v w
training weight bias data grad shape dtype device size dim ndim numel stride item
tolist mean std var sum min max abs sin cos tanh exp log sqrt relu sigmoid softmax
view reshape permute transpose flatten unsqueeze squeeze expand repeat contiguous
clone detach float half bfloat16 long int bool double to cpu cuda type values keys
items append extend pop get update copy index count split join format strip lower
in_features out_features input output inputs outputs args kwargs name names key
value query head heads mask loss logits step steps zero_grad param_groups lr params
train eval parameters buffers modules children register_buffer register_parameter call
register_forward_hook state_dict apply log info warning debug error write read
print close result real imag T mT H requires_grad grad_fn is_leaf layout
setup_context ctx save_for_backward saved_tensors mark_dirty extra_repr
inductor eager aot_eager cudagraphs default reduce-overhead max-autotune
float16 float32 float64 int8 int16 int32 int64 uint8 complex64 complex128
none mean batchmean zeros reflect replicate circular constant bilinear nearest
"""
_RESERVED = frozenset(_WORDS.split())


def anonymise(
    candidate: Candidate, fails: Fails, deadline: float | None = None
) -> Candidate:
    """Replaces names and strings as far as the candidate still fails.

    After `deadline` (`time.monotonic`; by default in a minute) it keeps the rest.
    """
    deadline = time.monotonic() + 60.0 if deadline is None else deadline
    tree = ast.parse(candidate.source)
    candidate = _first_failing(candidate, [tidy(tree)], fails)
    names = _own_names(ast.parse(candidate.source))
    candidate, kept_names = _replace(candidate, names, fails, deadline)
    strings = _strings(candidate.source)
    words = {text: f"text{n or ''}" for n, text in enumerate(strings)}
    candidate, kept_strings = _replace(candidate, words, fails, deadline)
    candidate = _replace_floats(candidate, fails, deadline)
    about = ANONYMISED
    if kept_names or kept_strings:
        kept = ", ".join(sorted({*kept_names, *map(repr, kept_strings)}))
        about += f", except those that the failure depends on: {kept}"
    return dataclasses.replace(candidate, about=about)


def _first_failing(
    candidate: Candidate, sources: list[str | None], fails: Fails
) -> Candidate:
    """Returns the first rewritten source that fails, or else the candidate."""
    for source in sources:
        if source is not None and source != candidate.source:
            rewritten = with_source(candidate, source)
            if fails(rewritten):
                return rewritten
    return candidate


def _replace(
    candidate: Candidate, words: Mapping[str, str], fails: Fails, deadline: float
) -> tuple[Candidate, list[str]]:
    """Replaces as many words as possible; returns the words that had to stay.

    It tries all at once, then bisects: few words matter.
    """
    kept: list[str] = []
    groups = [list(words)] if words else []
    while groups:
        group = groups.pop()
        source = _rewritten(candidate.source, {word: words[word] for word in group})
        rewritten = with_source(candidate, source)
        # After the deadline, words that were not tried stay and are listed as kept.
        late = time.monotonic() >= deadline and len(group) < len(words)
        if source == candidate.source or (not late and fails(rewritten)):
            candidate = rewritten
        elif len(group) == 1 or late:
            kept += group
        else:
            middle = len(group) // 2
            groups += [group[middle:], group[:middle]]
    return candidate, kept


def _rewritten(source: str, words: Mapping[str, str]) -> str:
    tree = ast.parse(source)
    _rename(tree, words)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _rename(tree: ast.Module, words: Mapping[str, str]) -> None:
    """Renames all occurrences of the words, except names that torch defines."""
    imports = _imported(tree)
    names = Names(tree)
    for occurrence in names.occurrences:
        bound = names.binding(occurrence) is not None
        if bound and occurrence.name in words and occurrence.name not in imports:
            occurrence.write(words[occurrence.name])
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
    """Renames keywords in calls of the program's own functions, renamed or not."""
    called = ast.unparse(node.func).rpartition(".")[2]
    is_own = called in {*words, *words.values(), "forward", "__init__", "fn"}
    is_own = is_own or called in _POOLS["class"]
    if is_own and _root(node.func) not in imports:
        for each in node.keywords:
            each.arg = words.get(each.arg, each.arg) if each.arg else None


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.AST) -> set[str]:
    """Returns imported names, without aliases that the program chose itself."""
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.asname is None or alias.asname in _COMMON_ALIASES
    }


# -- the names of the user -------------------------------------------------------------


def _own_names(tree: ast.Module) -> dict[str, str]:
    """Maps the names that the program defines to their replacements."""
    roles: dict[str, str] = {}
    for role in _POOLS:
        for name in _of_role(tree, role):
            fixed = name in _FIXED_NAMES | _imported(tree) or name in _RESERVED
            special = name.startswith("__") and name.endswith("__")
            if not fixed and not special:
                roles.setdefault(name, role)
    taken = set(mentioned_names(tree)) | set(roles) | _imported(tree) | _FIXED_NAMES
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
        for occurrence in names.occurrences:
            if names.binding(occurrence) is not None:
                yield occurrence.name


def _stored(node: ast.AST) -> Iterator[str]:
    """Yields attributes that an assignment, a class body or a keyword sets."""
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
    """Yields free names: those of the pool, then the same with numbers."""
    for number in itertools.count(1):
        for name in names:
            numbered = name if number == 1 else f"{name}{number}"
            if numbered not in taken and not keyword.iskeyword(numbered):
                yield numbered


def _strings(source: str) -> list[str]:
    """Returns the strings of a program that are not words of torch or Python."""
    strings: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            value = node.value
            text = value if isinstance(value, str) else value.decode("latin-1")
            if text not in _RESERVED and len(text) > 1 and not _is_number(text):
                strings[text] = None
    return list(strings)


def _is_number(text: str) -> bool:
    """Whether a string is a number such as `inf`, which cannot be replaced."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _replace_floats(candidate: Candidate, fails: Fails, deadline: float) -> Candidate:
    """Replaces all unusual floats by 2.0, if the candidate still fails."""
    tree = ast.parse(candidate.source)
    plain = {0.0, 1.0, 2.0, 0.5, -1.0}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            node.value = node.value if node.value in plain else 2.0
    late = time.monotonic() >= deadline
    return (
        candidate
        if late
        else _first_failing(candidate, [ast.unparse(tree) + "\n"], fails)
    )
