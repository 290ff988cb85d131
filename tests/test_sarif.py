"""SARIF: valid by the standard's own schema, and as GitHub's code scanning wants it.

tests/data/sarif-schema-2.1.0.json is the schema that OASIS publishes with the standard,
as the source package sarif-pydantic 0.6.2 (MIT) carries it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_runs
import check_runs
import jsonschema
import pytest
from check_runs import BEFORE, FULL, GONE, ITEM, NOWHERE, READ, SIZE, WANTED
from hypothesis import HealthCheck, given, settings

from torchproof import __version__
from torchproof.checking import rules
from torchproof.records.run import Finding, Run
from torchproof.report import render, sarif

SCHEMA = Path(__file__).parent / "data" / "sarif-schema-2.1.0.json"


@functools.cache
def validator() -> Any:
    return jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))


def document(run: Run) -> dict[str, Any]:
    """The document, which the schema has passed."""
    found: dict[str, Any] = json.loads(render(run, "sarif"))
    errors = [f"{list(e.path)}: {e.message}" for e in validator().iter_errors(found)]
    assert not errors, errors
    return found


def shown(run: Run) -> dict[str, Any]:
    (only,) = document(run)["runs"]
    return dict(only)


def notifications(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shown(run)["invocations"][0].get(
        "toolExecutionNotifications", []
    )
    return found


def test_the_document_is_of_the_version_that_github_takes() -> None:
    found = document(FULL)
    assert found["$schema"] == "https://json.schemastore.org/sarif-2.1.0.json"
    assert found["version"] == "2.1.0"
    driver = found["runs"][0]["tool"]["driver"]
    assert (driver["name"], driver["semanticVersion"]) == ("torchproof", __version__)
    category = found["runs"][0]["automationDetails"]["id"].rpartition("/")[0]
    assert category == "torchproof/model.py:make"


def test_the_schema_refuses_what_is_wrong() -> None:
    found = document(FULL)
    found["runs"][0]["results"][0]["level"] = "high"
    assert list(validator().iter_errors(found))


def test_rules_are_described_from_their_own_documentation() -> None:
    found = {rule["id"]: rule for rule in shown(FULL)["tool"]["driver"]["rules"]}
    assert set(found) == {"GB101", "GB102", "GB106", "NC806", "RC201"}
    item, rule = found["GB101"], rules.by_code("GB101")
    assert item["name"] == "TensorToPython"
    assert item["shortDescription"]["text"] == rule.summary()
    why = " ".join(rule.section("Why").split())
    assert " ".join(item["fullDescription"]["text"].split()) == why
    assert item["help"] == dict.fromkeys(("text", "markdown"), rule.documentation())
    assert item["helpUri"] == rule.reference
    assert item["defaultConfiguration"] == {"level": "warning"}
    assert item["properties"]["problem.severity"] == "warning"
    assert item["properties"]["precision"] == "high"
    assert "graph_break" in item["properties"]["tags"]


def test_every_rule_fits_what_github_requires() -> None:
    findings = [replace(ITEM, code=rule.code) for rule in rules.RULES]
    found = shown(check_runs.check(*findings))["tool"]["driver"]["rules"]
    assert [item["id"] for item in found] == [rule.code for rule in rules.RULES]
    for item in found:
        assert 0 < len(item["name"]) <= 255
        for name in ("shortDescription", "fullDescription"):
            assert 0 < len(item[name]["text"]) <= 1024
        assert item["help"]["text"]


def test_a_result_points_at_its_line() -> None:
    results = shown(FULL)["results"]
    first = results[0]
    assert (first["ruleId"], first["level"]) == ("GB101", "error")
    assert shown(FULL)["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "GB101"
    (place,) = first["locations"]
    physical = place["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "model.py", "uriBaseId": "%SRCROOT%"}
    region = {"startLine": 42, "endLine": 42, "startColumn": 16, "endColumn": 27}
    assert physical["region"] == {**region, "snippet": {"text": ITEM.source}}
    assert physical["contextRegion"]["startLine"] == 41
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "Net.forward"
    assert first["message"]["text"].startswith(f"{ITEM.message}. ")
    assert first["partialFingerprints"] == {"torchproofIdentity/v2": ITEM.identity}
    assert first["properties"]["cost_us"] == 180.5


def test_without_columns_the_whole_line_is_meant() -> None:
    def region(finding: Finding) -> dict[str, Any]:
        (result,) = shown(check_runs.check(finding))["results"]
        place = result["locations"][0]["physicalLocation"]
        return {k: v for k, v in place["region"].items() if "Column" in k}

    assert region(SIZE) == {"startColumn": 5, "endColumn": 31}
    assert region(replace(SIZE, source=None)) == {"startColumn": 1}


def test_worst_first_and_what_is_wanted_is_suppressed() -> None:
    results = shown(FULL)["results"]
    levels = [result["level"] for result in results]
    assert levels == ["error", "warning", "note", "note", "note"]
    quiet = [result for result in results if "suppressions" in result]
    assert [result["ruleId"] for result in quiet] == [WANTED.code]
    assert quiet[0]["suppressions"][0]["kind"] == "inSource"


def test_resolved_findings_are_left_out_and_counted() -> None:
    found = shown(FULL)
    assert GONE.code not in {result["ruleId"] for result in found["results"]}
    assert found["properties"]["resolved"] == 1


def test_what_the_earlier_run_had_is_said_where_it_is_known() -> None:
    states = [result["baselineState"] for result in shown(FULL)["results"]]
    assert states == ["unchanged", "new", "new", "new", "new"]
    short = replace(BEFORE, identities=None)
    for unknown in (None, short):
        (result,) = shown(check_runs.check(ITEM, baseline=unknown))["results"]
        assert "baselineState" not in result


def test_without_source_there_are_no_snippets() -> None:
    text = render(FULL, "sarif", source=False)
    assert "snippet" not in text and "for block" not in text
    assert json.loads(text)["runs"][0]["results"]


def test_without_a_line_the_file_of_the_target_is_the_place() -> None:
    (result,) = shown(check_runs.check(NOWHERE))["results"]
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "model.py"
    assert physical["region"] == {"startLine": 1, "endLine": 1, "startColumn": 1}


@pytest.mark.parametrize("target", ["workload:gpt", "package.module:make"])
def test_without_any_file_it_is_a_notification(target: str) -> None:
    run = check_runs.check(NOWHERE, target=target)
    assert shown(run)["results"] == []
    (told,) = notifications(run)
    assert told["level"] == "note" and NOWHERE.message in told["message"]["text"]
    assert told["associatedRule"] == {"id": "NC806", "index": 0}


@pytest.mark.parametrize(
    ("file", "uri", "relative"),
    [
        ("./a b/model#1.py", "a%20b/model%231.py", True),
        ("/env/lib/x.py", "file:///env/lib/x.py", False),
        ("m\u00f6del.py", "m%C3%B6del.py", True),
    ],
)
def test_files_are_addresses(file: str, uri: str, relative: bool) -> None:
    found = sarif.artifact(file)
    assert found["uri"] == uri and ("uriBaseId" in found) is relative


def test_what_is_too_much_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sarif.MOST == 5000
    monkeypatch.setattr(sarif, "MOST", 20)
    low = [replace(READ, line=number + 1) for number in range(20)]
    run = check_runs.check(*low, SIZE, ITEM)
    results = shown(run)["results"]
    assert len(results) == 20
    assert [r["level"] for r in results[:3]] == ["error", "warning", "note"]
    (told,) = notifications(run)
    assert told["message"]["text"].startswith("2 of 22 findings")


def test_a_run_that_failed_says_so() -> None:
    run = check_runs.check(error="code 3")
    assert shown(run)["invocations"][0]["executionSuccessful"] is False
    assert notifications(run)[0]["message"]["text"] == run.error


def test_a_bench_has_no_results() -> None:
    run = bench_runs.bench([bench_runs.row("eager", 1.0)])
    assert shown(run)["results"] == []


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(check_runs.runs())
def test_any_run_is_valid(run: Run) -> None:
    for result in shown(run)["results"]:
        assert result["locations"] and result["message"]["text"]
    render(run, "sarif").encode()
