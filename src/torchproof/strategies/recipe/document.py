"""Writes a recipe as a TOML document that people read and edit, and reads it.

`read` checks every key; an error names the key and what is expected.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, NotRequired, TypedDict

from torchproof.records import Mismatch, UserError, schema, shapes
from torchproof.records.mappings import JsonObject, TorchConfig
from torchproof.strategies.plan import Plan, Site
from torchproof.strategies.recipe import FILE, SCHEMA, Recipe, toml
from torchproof.strategies.strategy import Strategy, parse, records_graphs

_TEXTS = ("target", "run", "objective", "lines")
_TABLES = ("dynamo", "gain", "measured", "numerics", "environment", "model")


class _Compile(TypedDict, total=False):
    backend: str
    mode: str
    dynamic: bool
    fullgraph: bool
    options: TorchConfig


class _Region(TypedDict):
    name: NotRequired[str]
    place: str
    paths: tuple[str, ...]


class _Mark(TypedDict):
    place: str
    argument: tuple[str | int, ...]
    sizes: tuple[int, ...]


class _Buckets(TypedDict):
    pad: JsonObject
    sizes: NotRequired[tuple[Any, ...]]


class _Needed(TypedDict):
    schema: int
    strategy: str


class _Document(_Needed, total=False):
    train: bool
    note: str
    places: tuple[str, ...]
    target: str
    run: str
    objective: str
    lines: str
    compile: _Compile
    regions: tuple[_Region, ...]
    marks: tuple[_Mark, ...]
    buckets: _Buckets
    dynamo: TorchConfig
    gain: JsonObject
    measured: JsonObject
    numerics: JsonObject
    environment: JsonObject
    model: shapes.Fingerprint


# Sections in which an unknown key is a mistake, not a key of a later torchproof.
_CLOSED = {"compile": _Compile, "regions": _Region, "marks": _Mark, "buckets": _Buckets}

_TUNED = "The fastest safe way to run this model, measured by torchproof tune."
_FIXED = "The settings that torchproof fix proved for this model."
_APPLY = """\
# {what} To apply it:
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
    what = _TUNED if recipe.gain or not recipe.dynamo else _FIXED
    return f"{_APPLY.format(what=what, call=call)}\n{toml.dumps(_document(recipe))}"


def _document(recipe: Recipe) -> JsonObject:
    sites = recipe.plan.sites
    plain: JsonObject = {
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
    _check(plain)
    return Recipe(
        strategy=_strategy(plain),
        plan=_plan(plain),
        train=plain.get("train", False),
        target=plain.get("target") or None,
        run=plain.get("run") or None,
        objective=plain.get("objective") or None,
        lines=plain.get("lines", ""),
        **{name: plain.get(name, {}) for name in _TABLES},
        buckets=_swapped(plain["buckets"], "", None) if "buckets" in plain else None,
        other={k: v for k, v in plain.items() if k not in _Document.__annotations__},
    )


def _check(plain: JsonObject) -> None:
    if "schema" not in plain:
        raise UserError(f"not a recipe: it has no schema number (schema = {SCHEMA})")
    for key, section in _CLOSED.items():
        sections = plain.get(key, [])
        if not isinstance(sections, list):
            _check_keys(sections, key, section.__annotations__)
            continue
        for index, each in enumerate(sections):
            _check_keys(each, f"{key}[{index}]", section.__annotations__)
    try:
        schema.check(_Document, plain)
    except Mismatch as error:
        raise UserError(str(error)) from None
    if not _can_be_written(plain):
        raise UserError(f"an integer has more than {schema.DIGITS} digits")
    for name, value in plain.get("dynamo", {}).items():
        names = value if isinstance(value, list) else []
        if not isinstance(value, bool | int | list) or not all(
            isinstance(each, str) for each in names
        ):
            raise UserError(
                f"dynamo.{name}: expected true, false, an integer or a list of names of"
                " functions"
            )
    if plain["schema"] < 1:
        raise UserError(f"schema = {plain['schema']}: the first schema is 1")
    if plain["schema"] > SCHEMA:
        raise UserError(
            f"the recipe has schema {plain['schema']}, this torchproof reads up to"
            f" {SCHEMA}: install a newer torchproof"
        )


def _can_be_written(value: Any) -> bool:
    """Whether no integer is too long: tomllib reads any number of digits as hex."""
    if isinstance(value, int):
        return abs(value) < 10**schema.DIGITS
    if isinstance(value, dict):
        return all(map(_can_be_written, value.values()))
    return not isinstance(value, list) or all(map(_can_be_written, value))


def _check_keys(section: Any, where: str, names: Iterable[str]) -> None:
    """Rejects keys that are unknown, and lists that are empty."""
    if not isinstance(section, dict):
        return  # the schema rejects it
    for key, value in section.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
            raise UserError(f"{where} has no key {key!r}: {hint}")
        if value == [] and where != "buckets":
            raise UserError(f"{where}.{key} is empty")


def _strategy(plain: JsonObject) -> Strategy:
    strategy = parse(plain["strategy"])
    if "compile" not in plain:
        return strategy
    arguments = plain["compile"]
    if arguments and not strategy.compiles:
        raise UserError(f"compile: {strategy.name} has no arguments for torch.compile")
    if "mode" in arguments and "options" in arguments:
        raise UserError("compile: torch.compile takes a mode or options, not both")
    if strategy.graph and records_graphs(arguments):
        raise UserError(
            f"compile: these arguments record CUDA graphs, and so does {strategy.name}"
        )
    return dataclasses.replace(strategy, arguments=arguments)


def _plan(plain: JsonObject) -> Plan:
    varying: dict[str, dict[tuple[int | str, ...], tuple[int, ...]]] = {}
    for mark in plain.get("marks", ()):
        of_place = varying.setdefault(mark["place"], {})
        of_place[tuple(mark["argument"])] = tuple(mark["sizes"])
    sites = [
        Site(
            place=region["place"],
            name=region.get("name", ""),
            paths=tuple(region["paths"]),
            varying=varying.get(region["place"], {}),
        )
        for region in plain.get("regions", ())
    ]
    # After the blocks: the whole model is compiled with its blocks in place.
    places = plain.get("places", ())
    sites += [Site(place, varying=varying.get(place, {})) for place in places]
    stray = set(varying) - {site.place for site in sites}
    if stray:
        raise UserError(f"marks: {min(stray)!r} is neither a region nor a place")
    plan = Plan(tuple(sites), plain.get("note"))
    if problem := plan.path_problem():
        raise UserError(f"regions: {problem}")
    return plan


def _swapped(value: Any, one: Any, other: Any) -> Any:
    """Replaces one value by another: a dimension without a name is "" in TOML."""
    if isinstance(value, Mapping):
        return {str(key): _swapped(each, one, other) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_swapped(each, one, other) for each in value]
    return other if value == one else value
