"""docs/reference/json.md: the fields of a saved run.

Names and types come from the records, what they mean from json_fields.toml. A field
without a meaning, or a meaning without a field, raises an error.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import tables

from torchproof.records import fixes, load_test, run, schema, tuning

MEANINGS = Path(__file__).with_name("json_fields.toml")
RECORDS: dict[type[schema.Record], str] = {
    run.Run: "The document itself",
    run.RuleText: "A value of `rules`",
    run.Finding: "An entry of `findings`",
    fixes.Remedy: "`remedy` of a finding",
    run.Measurement: "An entry of `measurements`",
    run.Part: "A value of `parts`",
    run.Baseline: "`baseline`",
    tuning.Tuning: "`tuning`, of `tune`",
    tuning.Trial: "An entry of `tuning.trials`",
    fixes.Fix: "An entry of `fixes`",
    fixes.Receipt: "`receipt` of a fix",
    run.Fixing: "`fixing`, of `fix`",
    load_test.LoadTest: "`load_test`, of `loadtest`",
    load_test.LoadResult: "An entry of `load_test.results`",
}
HEAD = """\
# The JSON of a run

<!-- Written by scripts/docs/json_page.py from the records. -->

`--format json` prints exactly one document, and `.torchproof/runs/*/run.json` holds it.
Later versions may add fields and never rename them. null means "not known": an unknown
value is never 0. `torchproof.records.store.load(FILE)` reads it in Python.
"""


def page() -> str:
    meanings = tomllib.loads(MEANINGS.read_text(encoding="utf-8"))
    sections = [section(kind, meanings[kind.__name__]) for kind in RECORDS]
    return "\n".join([HEAD, "\n\n".join(sections)]) + "\n"


def section(kind: type[schema.Record], meanings: dict[str, str]) -> str:
    types, rows = schema.json_types(kind), []
    for group, meaning in meanings.items():
        names = group.split(", ")
        forms = dict.fromkeys(short(types.pop(name)) for name in names)
        rows.append((tables.codes(names), " / ".join(forms), meaning))
    if types:
        raise ValueError(f"{kind.__name__}: no meaning of {', '.join(sorted(types))}")
    shown = tables.plain("field | JSON | meaning", rows)
    return f"## {kind.__name__}\n\n{RECORDS[kind]}.\n\n{shown}"


def short(words: str) -> str:
    """Long lists of choices are in the text."""
    return "a text" if words.count(",") > 6 else words
