"""Writes a recipe as a TOML document that people read and edit, and reads it.

`read` checks every key; an error names the key and what is expected.
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
_KEYS = {
    "schema",
    "strategy",
    "train",
    "note",
    "places",
    "compile",
    "regions",
    "marks",
    "buckets",
    *_TEXTS,
    *_TABLES,
}
_MODEL = {"class": str, "parameters": int, "structure": str, "code": dict}
_WORDS = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    dict: "a section",
    list: "a list",
}

_APPLY = """\
# The fastest safe way to run this model, measured by torchproof tune. To apply it:
#
#     import torchproof
#     {call}
#
# If torch, the GPU or the model differs from those below, the model runs eager, and
# torchproof.status has the reason.
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
        {"place": site.place, "argument": [*path], "sizes": [*sizes]}
        for site in sites
        for path, sizes in site.varying.items()
    ]
    plain = {k: v for k, v in plain.items() if k not in ("regions", "marks") or v}
    return plain | dict(recipe.other)


# -- read ------------------------------------------------------------------------------


def read(text: str) -> Recipe:
    """Reads a recipe; raises a `UserError` that names the invalid key or line."""
    try:
        plain = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"not TOML: {why}") from None
    if is_deep(plain):
        raise UserError("nested too deeply for a recipe")
    _check_schema(plain)
    _check_model(_typed(plain, "model", dict, {}))
    return Recipe(
        strategy=_strategy(plain),
        plan=_plan(plain),
        train=_typed(plain, "train", bool, False),
        target=_typed(plain, "target", str, None),
        run=_typed(plain, "run", str, None),
        objective=_typed(plain, "objective", str, None),
        lines=_typed(plain, "lines", str, ""),
        **{name: _typed(plain, name, dict, {}) for name in _TABLES},
        buckets=_buckets(plain),
        other={key: value for key, value in plain.items() if key not in _KEYS},
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
            problem = f"must be {_WORDS[kind]}, not {_shown(model[name])}"
            raise UserError(f"model.{name} {problem}")
    for name, code in model.get("code", {}).items():
        if not isinstance(code, str):
            raise UserError(f"model.code.{name} must be a string, not {_shown(code)}")


def _strategy(plain: Mapping[str, Any]) -> Strategy:
    name = _typed(plain, "strategy", str, None)
    if name is None:
        raise UserError('strategy is missing: strategy = "full", for example')
    strategy = parse(name)
    if "compile" not in plain:
        return strategy
    arguments = _table(plain["compile"], "compile", _ARGUMENTS)
    if arguments and not strategy.compiles:
        raise UserError(f"compile: {name} has no arguments for torch.compile")
    if "mode" in arguments and "options" in arguments:
        raise UserError("compile: torch.compile takes a mode or options, not both")
    if strategy.graph and records_graphs(arguments):
        raise UserError(
            f"compile: these arguments record CUDA graphs, and so does {name}"
        )
    return dataclasses.replace(strategy, arguments=arguments)


def _plan(plain: Mapping[str, Any]) -> Plan:
    note = _typed(plain, "note", str, None)
    marks = [_mark(each, f"marks[{i}]") for i, each in enumerate(_list(plain, "marks"))]
    varying: dict[str, dict[tuple[int | str, ...], tuple[int, ...]]] = {}
    for place, path, sizes in marks:
        varying.setdefault(place, {})[path] = sizes
    sites = [
        _region(each, f"regions[{i}]", varying)
        for i, each in enumerate(_list(plain, "regions"))
    ]
    # After the blocks: the whole model is compiled with its blocks in place.
    places = _items(_list(plain, "places"), "places", str)
    sites += [Site(place, varying=varying.get(place, {})) for place in places]
    stray = set(varying) - {site.place for site in sites}
    if stray:
        raise UserError(f"marks: {min(stray)!r} is neither a region nor a place")
    plan = Plan(tuple(sites), note)
    if problem := plan.path_problem():
        raise UserError(f"regions: {problem}")
    return plan


def _region(plain: Any, where: str, varying: Mapping[str, Varying]) -> Site:
    table = _table(plain, where, _REGION, needed=("place", "paths"))
    paths = tuple(_items(table["paths"], f"{where}.paths", str))
    if not paths:
        raise UserError(f"{where}.paths is empty: name the blocks")
    place = table["place"]
    return Site(place, table.get("name", ""), paths, varying.get(place, {}))


def _mark(plain: Any, where: str) -> tuple[str, tuple[int | str, ...], tuple[int, ...]]:
    table = _table(plain, where, _MARK, needed=("place", "argument", "sizes"))
    path = tuple(table["argument"])
    if not path or not all(isinstance(step, str) or _is_count(step) for step in path):
        raise UserError(f"{where}.argument must be a list of names and positions")
    sizes = table["sizes"]
    if not sizes or not all(map(_is_count, sizes)):
        raise UserError(f"{where}.sizes must be a list of dimensions")
    return table["place"], path, tuple(sizes)


def _buckets(plain: Mapping[str, Any]) -> dict[str, Any] | None:
    if "buckets" not in plain:
        return None
    table = _table(plain["buckets"], "buckets", _BUCKETS, needed=("pad",))
    return {key: _swapped(value, "", None) for key, value in table.items()}


def _swapped(value: Any, one: Any, other: Any) -> Any:
    """Replaces one value by another: a dimension without a name is "" in TOML."""
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
    value: Any, where: str, types: Mapping[str, type], needed: Iterable[str] = ()
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a section, not {_shown(value)}")
    for key, inner in value.items():
        if key not in types:
            near = difflib.get_close_matches(key, types, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(types)}"
            raise UserError(f"{where} has no key {key!r}: {hint}")
        if not _is(inner, types[key]):
            problem = f"must be {_WORDS[types[key]]}, not {_shown(inner)}"
            raise UserError(f"{where}.{key} {problem}")
    for key in needed:
        if key not in value:
            raise UserError(f"{where}.{key} is missing")
    return value


def _list(plain: Mapping[str, Any], key: str) -> list[Any]:
    values: list[Any] = _typed(plain, key, list, [])
    return values


def _items(values: list[Any], where: str, kind: type) -> list[Any]:
    for i, value in enumerate(values):
        if not _is(value, kind):
            problem = f"must be {_WORDS[kind]}, not {_shown(value)}"
            raise UserError(f"{where}[{i}] {problem}")
    return values


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


def _is_count(value: Any) -> bool:
    return _is(value, int) and value >= 0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:36] + " ..."
