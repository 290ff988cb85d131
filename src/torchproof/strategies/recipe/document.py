"""A recipe as a TOML document that people read and edit, and back.

What is read is checked key by key: an error names the key and what it has to be.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from torchproof.records import UserError, is_deep
from torchproof.strategies.plan import Plan, Site, Varying
from torchproof.strategies.recipe import FILE, SCHEMA, Recipe, toml
from torchproof.strategies.strategy import Strategy, parse, records_graphs

_TEXTS = ("target", "run", "objective", "lines")
_TABLES = ("gain", "measured", "numerics", "environment", "model")
_ARGUMENTS = {
    "backend": str,
    "mode": str,
    "dynamic": bool,
    "fullgraph": bool,
    "options": dict,
}
_BUCKETS = {"pad": dict, "unpad": dict, "sizes": list}
_REGION = {"name": str, "place": str, "paths": list}
_MARK = {"place": str, "argument": list, "sizes": list}
_KNOWN = {"schema", "strategy", "train", "note", "places", "compile", "regions"}
_KNOWN |= {"marks", "buckets", *_TEXTS, *_TABLES}
_MODEL = {"class": str, "parameters": int, "structure": str, "code": dict}
_WORDS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    dict: "a section",
    list: "a list",
}

_APPLY = """\
# How to run this model, found and measured by torchproof tune. To apply it:
#
#     import torchproof
#     {call}
#
# The model runs eager, and torchproof.status says why, where torch, the GPU or the
# model is another than those below.
"""
_COMPILE = 'model = torchproof.compile(model, recipe="{file}")'
_GRAPH = 'step = torchproof.graph(model, recipe="{file}")  # forward, loss and backward'


# -- written ---------------------------------------------------------------------------


def written(recipe: Recipe) -> str:
    whole_step = recipe.strategy.graph and recipe.train
    call = (_GRAPH if whole_step else _COMPILE).format(file=FILE)
    return f"{_APPLY.format(call=call)}\n{toml.dumps(_document(recipe))}"


def _document(recipe: Recipe) -> dict[str, Any]:
    sites = recipe.plan.sites
    plain: dict[str, Any] = {
        "schema": SCHEMA,
        "strategy": recipe.strategy.name,
        "train": recipe.train,
        "note": recipe.plan.note,
        "places": [site.place for site in sites if not site.paths] or None,
    }
    plain |= {name: getattr(recipe, name) for name in _TEXTS if getattr(recipe, name)}
    if recipe.strategy.arguments != parse(recipe.strategy.name).arguments:
        plain["compile"] = recipe.strategy.arguments
    plain |= {name: getattr(recipe, name) for name in _TABLES if getattr(recipe, name)}
    plain["buckets"] = recipe.buckets and _swapped(recipe.buckets, None, "")
    plain["regions"] = [
        {"name": site.name or None, "place": site.place, "paths": [*site.paths]}
        for site in recipe.plan.regions
    ]
    plain["marks"] = [
        {"place": site.place, "argument": [*way], "sizes": [*sizes]}
        for site in sites
        for way, sizes in site.varying.items()
    ]
    plain = {k: v for k, v in plain.items() if k not in ("regions", "marks") or v}
    return plain | dict(recipe.other)


# -- read ------------------------------------------------------------------------------


def read(text: str) -> Recipe:
    """A `UserError` that says what is wrong, and at which key or line."""
    try:
        plain = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        told = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"not TOML: {told}") from None
    if is_deep(plain):
        raise UserError("nested too deeply for a recipe")
    _check_schema(plain)
    _check_model(_typed(plain, "model", dict, {}))
    return Recipe(
        _strategy(plain),
        _plan(plain),
        _typed(plain, "train", bool, False),
        **{name: _typed(plain, name, str, None) for name in _TEXTS[:3]},
        lines=_typed(plain, "lines", str, ""),
        **{name: _typed(plain, name, dict, {}) for name in _TABLES},
        buckets=_buckets(plain),
        other={key: value for key, value in plain.items() if key not in _KNOWN},
    )


def _check_schema(plain: Mapping[str, Any]) -> None:
    if "schema" not in plain:
        raise UserError(f"not a recipe: it has no schema number (schema = {SCHEMA})")
    schema = _typed(plain, "schema", int, None)
    if schema < 1:
        raise UserError(f"schema = {schema}: the first schema is 1")
    if schema > SCHEMA:
        raise UserError(
            f"the recipe has schema {schema}, this torchproof reads up to {SCHEMA}:"
            " install a newer torchproof"
        )


def _check_model(model: Mapping[str, Any]) -> None:
    for name, kind in _MODEL.items():
        if name in model and not _is(model[name], kind):
            told = f"must be {_WORDS[kind]}, not {_shown(model[name])}"
            raise UserError(f"model.{name} {told}")
    for name, code in model.get("code", {}).items():
        if not isinstance(code, str):
            raise UserError(f"model.code.{name} must be a text, not {_shown(code)}")


def _strategy(plain: Mapping[str, Any]) -> Strategy:
    name = _typed(plain, "strategy", str, None)
    if name is None:
        raise UserError('strategy is missing: strategy = "full", for example')
    strategy = parse(name)
    if "compile" not in plain:
        return strategy
    given = _table(plain["compile"], "compile", _ARGUMENTS)
    if given and not strategy.compiles:
        raise UserError(f"compile: {name} has no arguments for torch.compile")
    if "mode" in given and "options" in given:
        raise UserError("compile: torch.compile takes a mode or options, not both")
    if strategy.graph and records_graphs(given):
        raise UserError(
            f"compile: these arguments record CUDA graphs, and so does {name}"
        )
    return dataclasses.replace(strategy, arguments=given)


def _plan(plain: Mapping[str, Any]) -> Plan:
    note = _typed(plain, "note", str, None)
    marks = [_mark(each, f"marks[{i}]") for i, each in enumerate(_list(plain, "marks"))]
    varying: dict[str, dict[tuple[int | str, ...], tuple[int, ...]]] = {}
    for place, way, sizes in marks:
        varying.setdefault(place, {})[way] = sizes
    sites = [
        _region(each, f"regions[{i}]", varying)
        for i, each in enumerate(_list(plain, "regions"))
    ]
    # After the blocks: what is compiled around them takes them in.
    places = _items(_list(plain, "places"), "places", str)
    sites += [Site(place, varying=varying.get(place, {})) for place in places]
    stray = set(varying) - {site.place for site in sites}
    if stray:
        raise UserError(f"marks: no region and no place is {min(stray)!r}")
    plan = Plan(tuple(sites), note)
    if wrong := plan.path_problem():
        raise UserError(f"regions: {wrong}")
    return plan


def _region(plain: Any, where: str, varying: Mapping[str, Varying]) -> Site:
    given = _table(plain, where, _REGION, needed=("place", "paths"))
    paths = tuple(_items(given["paths"], f"{where}.paths", str))
    if not paths:
        raise UserError(f"{where}.paths is empty: name the blocks")
    place = given["place"]
    return Site(place, given.get("name", ""), paths, varying.get(place, {}))


def _mark(plain: Any, where: str) -> tuple[str, tuple[int | str, ...], tuple[int, ...]]:
    given = _table(plain, where, _MARK, needed=("place", "argument", "sizes"))
    way = tuple(given["argument"])
    if not way or not all(isinstance(step, str) or _is_count(step) for step in way):
        raise UserError(f"{where}.argument must be a list of names and positions")
    sizes = given["sizes"]
    if not sizes or not all(map(_is_count, sizes)):
        raise UserError(f"{where}.sizes must be a list of dimensions")
    return given["place"], way, tuple(sizes)


def _buckets(plain: Mapping[str, Any]) -> dict[str, Any] | None:
    if "buckets" not in plain:
        return None
    given = _table(plain["buckets"], "buckets", _BUCKETS, needed=("pad",))
    return {key: _swapped(value, "", None) for key, value in given.items()}


def _swapped(value: Any, one: Any, other: Any) -> Any:
    """With one thing for another: a dimension without a name is "" in TOML."""
    if isinstance(value, Mapping):
        return {str(key): _swapped(each, one, other) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_swapped(each, one, other) for each in value]
    return other if value == one else value


# -- one value -------------------------------------------------------------------------


def _typed(plain: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = plain.get(key, default)
    if key in plain and not _is(value, kind):
        raise UserError(f"{key} must be {_WORDS[kind]}, not {_shown(value)}")
    return value


def _table(
    value: Any, where: str, known: Mapping[str, type], needed: Iterable[str] = ()
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a section, not {_shown(value)}")
    for key, inner in value.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise UserError(f"{where} has no key {key!r}: {hint}")
        if not _is(inner, known[key]):
            told = f"must be {_WORDS[known[key]]}, not {_shown(inner)}"
            raise UserError(f"{where}.{key} {told}")
    for key in needed:
        if key not in value:
            raise UserError(f"{where}.{key} is missing")
    return value


def _list(plain: Mapping[str, Any], key: str) -> list[Any]:
    found: list[Any] = _typed(plain, key, list, [])
    return found


def _items(values: list[Any], where: str, kind: type) -> list[Any]:
    for i, value in enumerate(values):
        if not _is(value, kind):
            told = f"must be {_WORDS[kind]}, not {_shown(value)}"
            raise UserError(f"{where}[{i}] {told}")
    return values


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


def _is_count(value: Any) -> bool:
    return _is(value, int) and value >= 0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:36] + " ..."
