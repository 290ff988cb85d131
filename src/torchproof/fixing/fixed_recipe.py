"""Stores settings of verified fixes in a recipe, which `torchproof.compile` follows.

A recipe that exists keeps its text and its comments; the settings are added to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchproof.records import Fix, JsonObject, Run, TorchConfig, UserError
from torchproof.strategies import Recipe, loads, matching, parse, with_arguments
from torchproof.strategies import recipe as recipes

Tables = dict[str, JsonObject]


def settings_of(fixes: Iterable[Fix]) -> Tables:
    """The settings by table of a recipe: `dynamo` and `compile`."""
    tables: Tables = {"dynamo": {}, "compile": {}}
    for setting in (setting for fix in fixes for setting in fix.settings):
        group, _, name = setting.name.partition(".")
        if group not in tables or not name.isidentifier():
            raise UserError(f"a fix has the unknown setting {setting.name!r:.80}")
        if isinstance(setting.value, str) and group == "dynamo":
            names = tables[group].setdefault(name, [])
            if setting.value not in names:
                names.append(setting.value)
        else:
            tables[group][name] = setting.value
    return {group: values for group, values in tables.items() if values}


def new_recipe(run: Run, fixes: Iterable[Fix]) -> str:
    """The text of a recipe that compiles the whole model with these settings."""
    tables = settings_of(fixes)
    strategy = with_arguments(parse("full"), **tables.get("compile", {}))
    recipe = Recipe(
        strategy,
        train=bool(run.options.get("train")),
        target=run.target,
        environment=matching.environment_of(run.environment),
        dynamo=tables.get("dynamo", {}),
    )
    return recipe.dumps()


def extended(text: str, run: Run, fixes: Iterable[Fix]) -> str:
    """A recipe of the same target, with the settings added.

    Raises `UserError` if the text is not such a recipe.
    """
    recipe = loads(text)
    if recipe.target not in (None, run.target):
        raise UserError(f"it is the recipe of {recipe.target}")
    if bool(run.options.get("train")) != recipe.train:
        raise UserError(f"it was measured with train={recipe.train}")
    known = {"dynamo": recipe.dynamo, "compile": recipe.strategy.arguments}
    for table, values in settings_of(fixes).items():
        text = _with_values(text, table, _joined(values, known[table]))
    loads(text)  # a strategy may not take the arguments
    return text


def _joined(values: JsonObject, known: TorchConfig) -> JsonObject:
    """The values that the recipe does not have; lists are joined."""
    joined = {}
    for name, value in values.items():
        if isinstance(value, list):
            value = list(dict.fromkeys([*known.get(name, ()), *value]))
        if known.get(name) != value:
            joined[name] = value
    return joined


def _with_values(text: str, table: str, values: JsonObject) -> str:
    """Adds lines to a table of a TOML document, or replaces those of the same key."""
    if not values:
        return text
    written = recipes.toml.dumps({table: values}).splitlines()[1:]
    header = re.search(rf"^\[{table}\][^\n]*\n", text, re.MULTILINE)
    if header is None:
        return f"{text.rstrip()}\n\n[{table}]\n" + "\n".join(written) + "\n"
    end = re.search(r"^\[", text[header.end() :], re.MULTILINE)
    stop = header.end() + end.start() if end else len(text)
    body = text[header.end() : stop]
    for name in values:
        body = re.sub(rf"^{re.escape(name)}\s*=[^\n]*\n", "", body, flags=re.MULTILINE)
    return text[: header.end()] + "\n".join(written) + "\n" + body + text[stop:]
