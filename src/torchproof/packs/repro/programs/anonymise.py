"""Replaces the names and strings of a program by neutral ones.

Words that the failure depends on stay, and `Candidate.about` lists them.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
import time
from collections.abc import Collection, Iterator, Mapping

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.program_reducer import Fails, with_source
from torchproof.packs.repro.programs.scopes import Names, bound_by, mentioned_names

ANONYMISED = "reduced code of your program; names and strings are replaced"
_COMMON_ALIASES = {"nn", "F", "np", "dist", "optim"}  # they reveal nothing
_POOLS: dict[str, tuple[str, ...]] = {
    "class": ("Model", "Block", "Part", "Data", "Unit"),
    "function": ("f", "g", "h", "p", "q"),
    "attribute": ("a", "b", "c", "d", "e"),
    "variable": ("x", "y", "z", "u", "v", "w"),
}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
# Names that a repro needs, words of torch and Python, and the neutral names.
_WORDS = """
make before_call run self cls forward backward __init__ _
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
DEF IMPL FRAGMENT CPU CUDA Meta Autograd CompositeExplicitAutograd
CompositeImplicitAutograd aten prims Tensor
float16 float32 float64 int8 int16 int32 int64 uint8 complex64 complex128
none mean batchmean zeros reflect replicate circular constant bilinear nearest
"""
_RESERVED = frozenset(_WORDS.split())
# The name of an operator, `shop::sell`, or its schema, `sell(Tensor x) -> Tensor`.
_SCHEMA = re.compile(r"\w+::\w+$|(?:\w+::)?\w+\(.*\) -> ")


def anonymise(
    candidate: Candidate, fails: Fails, deadline: float | None = None
) -> Candidate:
    """Replaces names and strings as far as the candidate still fails.

    After `deadline` (`time.monotonic`; by default in a minute) it keeps the rest.
    """
    deadline = time.monotonic() + 60.0 if deadline is None else deadline
    names = _own_names(ast.parse(candidate.source))
    candidate, kept_names = _replace(candidate, names, fails, deadline)
    strings = _strings(candidate.source)
    words = {text: f"text{n or ''}" for n, text in enumerate(strings)}
    candidate, kept_strings = _replace(candidate, words, fails, deadline)
    about = ANONYMISED
    if kept_names or kept_strings:
        kept = ", ".join(sorted({*kept_names, *map(repr, kept_strings)}))
        about += f", except those that the failure depends on: {kept}"
    return dataclasses.replace(candidate, about=about)


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
    """Replaces all occurrences of the words, except names that torch defines."""
    tree = ast.parse(source)
    imported = _imported(tree)
    names = Names(tree)
    for occurrence in names.occurrences:
        bound = names.binding(occurrence) is not None
        if bound and occurrence.name in words and occurrence.name not in imported:
            occurrence.write(words[occurrence.name])
    for node in ast.walk(tree):
        match node:
            case ast.Call() if _is_own(node.func, words, imported):
                for keyword in node.keywords:
                    if keyword.arg:
                        keyword.arg = words.get(keyword.arg, keyword.arg)
            case ast.Attribute() if _root(node) not in imported or _is_operator(node):
                node.attr = words.get(node.attr, node.attr)
            case ast.Constant(value=str(text)) if _SCHEMA.match(text):
                node.value = re.sub(r"\w+", lambda m: words.get(m[0], m[0]), text)
            case ast.Constant(value=str(text)):
                node.value = words.get(text, text)
            case ast.Constant(value=bytes(data)):
                text = data.decode("latin-1")
                node.value = words.get(text, text).encode("latin-1")
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _is_operator(node: ast.Attribute) -> bool:
    """Whether it is `torch.ops.shop`, or `sell` of `torch.ops.shop.sell`."""
    text = ast.unparse(node)
    return text.startswith("torch.ops.") and text.split(".")[2] not in _RESERVED


def _is_own(
    node: ast.expr, words: Mapping[str, str], imported: Collection[str]
) -> bool:
    """Whether a call is one of the program's own functions, renamed or not."""
    called = ast.unparse(node).rpartition(".")[2]
    own = {*words, *words.values(), *_POOLS["class"], "forward", "__init__", "fn"}
    return called in own and _root(node) not in imported


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.AST) -> set[str]:
    """Returns imported names, without aliases that the program chose itself."""
    return {
        bound_by(alias)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.asname is None or alias.asname in _COMMON_ALIASES
    }


# -- the names of the user -------------------------------------------------------------


def _own_names(tree: ast.Module) -> dict[str, str]:
    """Maps the names that the program defines to their replacements."""
    fixed = _RESERVED | _imported(tree)
    roles: dict[str, str] = {}
    for name, role in _defined(tree):
        special = name.startswith("__") and name.endswith("__")
        if name not in fixed and not special:
            roles.setdefault(name, role)
    taken = {*mentioned_names(tree), *roles, *_imported(tree), "make", "run"}
    pools = {role: _fresh(names, taken) for role, names in _POOLS.items()}
    return {name: next(pools[role]) for name, role in roles.items()}


def _defined(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the names that a program defines, each with its role."""
    nodes = list(ast.walk(tree))
    yield from ((n.name, "class") for n in nodes if isinstance(n, ast.ClassDef))
    yield from ((n.name, "function") for n in nodes if isinstance(n, _Definition))
    for node in nodes:
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, "attribute"
            case ast.Attribute(attr=name) if _is_operator(node):
                yield name, "function"
            case ast.Constant(value=str(text)) if "::" in text and _SCHEMA.match(text):
                yield from ((name, "function") for name in text.split("::"))
            case ast.Call(func=ast.Name(), keywords=keywords):
                yield from ((k.arg, "attribute") for k in keywords if k.arg)
    for occurrence in Names(tree).occurrences:
        if occurrence.binds:
            in_class = occurrence.scope.kind == "class"
            yield occurrence.name, "attribute" if in_class else "variable"


def _fresh(names: tuple[str, ...], taken: Collection[str]) -> Iterator[str]:
    """Yields free names: those of the pool, then the same with numbers."""
    for number in itertools.count(1):
        for name in names:
            numbered = name if number == 1 else f"{name}{number}"
            if numbered not in taken:
                yield numbered


def _strings(source: str) -> list[str]:
    """Returns the strings of a program that are not words of torch or Python."""
    strings: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            value = node.value
            text = value if isinstance(value, str) else value.decode("latin-1")
            is_kept = text in _RESERVED or _SCHEMA.match(text) or _is_number(text)
            if len(text) > 1 and not is_kept:
                strings[text] = None
    return list(strings)


def _is_number(text: str) -> bool:
    """Whether a string is a number such as `inf`, which cannot be replaced."""
    try:
        float(text)
    except ValueError:
        return False
    return True
