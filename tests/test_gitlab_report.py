"""The code-quality report: what GitLab requires of each entry, and where it links to.

GitLab's own schema (app/validators/json_schemas/codeclimate.json) requires description,
fingerprint, severity and location of an entry; its documentation, a relative path, a
line, and one of five severities.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import check_runs
import jsonschema
from check_runs import FULL, GONE, ITEM, NOWHERE, READ, SIZE
from hypothesis import HealthCheck, given, settings

from torchproof.records.run import Run
from torchproof.report import render, run_words

ENTRY = {
    "type": "object",
    "required": ["description", "check_name", "fingerprint", "severity", "location"],
    "additionalProperties": False,
    "properties": {
        "description": {"type": "string", "minLength": 1},
        "check_name": {"type": "string", "minLength": 1},
        "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
        "location": {
            "type": "object",
            "required": ["path", "lines"],
            "properties": {
                "path": {"type": "string", "minLength": 1},
                "lines": {
                    "type": "object",
                    "required": ["begin"],
                    "properties": {"begin": {"type": "integer", "minimum": 1}},
                },
            },
        },
    },
}
VALIDATOR = jsonschema.Draft7Validator({"type": "array", "items": ENTRY})


def entries(run: Run) -> list[dict[str, Any]]:
    """The entries, which the schema has passed, each with a fingerprint of its own."""
    text = render(run, "gitlab")
    text.encode()
    found: list[dict[str, Any]] = json.loads(text)
    errors = [f"{list(e.path)}: {e.message}" for e in VALIDATOR.iter_errors(found)]
    assert not errors, errors
    assert len({entry["fingerprint"] for entry in found}) == len(found)
    return found


def test_an_entry_says_what_where_and_fix() -> None:
    first = entries(FULL)[0]
    assert first["location"] == {"path": "model.py", "lines": {"begin": 42}}
    assert (first["check_name"], first["severity"]) == ("GB101", "critical")
    assert first["description"] == f"{ITEM.message}. Fix: {ITEM.fix}."


def test_worst_first_and_only_what_is_open() -> None:
    found = entries(check_runs.check(READ, SIZE, ITEM, GONE))
    levels = [entry["severity"] for entry in found]
    assert levels[0] == "critical" and len(found) == 3
    order = ["critical", "major", "minor", "info"]
    assert levels == sorted(levels, key=order.index)
    assert entries(check_runs.check(GONE)) == []


def test_a_fingerprint_stays_when_the_line_moves() -> None:
    one, moved = entries(check_runs.check(ITEM, replace(ITEM, line=43)))
    (other,) = entries(check_runs.check(replace(ITEM, line=99)))
    assert one["fingerprint"] == other["fingerprint"] != moved["fingerprint"]


def test_what_has_no_line_of_the_repository_is_on_the_target() -> None:
    library = replace(ITEM, file="/site-packages/lib/layer.py", line=7)
    packaged, nowhere = entries(check_runs.check(library, NOWHERE))
    for entry in (packaged, nowhere):
        assert entry["location"] == {"path": "model.py", "lines": {"begin": 1}}
    assert "(at /site-packages/lib/layer.py:7)" in packaged["description"]
    assert "(at " not in nowhere["description"]


def test_a_target_without_a_file_hides_no_finding() -> None:
    run = check_runs.check(NOWHERE, target="workload:gpt")
    assert [entry["location"]["path"] for entry in entries(run)] == ["workload:gpt"]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(check_runs.runs())
def test_any_run_has_one_entry_an_open_finding(run: Run) -> None:
    still_open = sum(f.status == "open" for f in run.findings)
    assert len(entries(run)) == still_open + len(run_words.failures(run))
