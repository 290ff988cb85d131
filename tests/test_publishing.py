"""What a public repository has besides code: one version, a citation, templates."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import torchproof

ROOT = Path(__file__).resolve().parent.parent
# The Citation File Format 1.2.0, https://github.com/citation-file-format, CC-BY-4.0.
CFF_SCHEMA = ROOT / "tests" / "data" / "cff-schema-1.2.0.json"
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def citation() -> dict[str, Any]:
    """Dates as text, as JSON has them."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.BaseLoader)


def released() -> list[tuple[str, str]]:
    """Versions and dates of the changelog, the newest first."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", text, re.M)


def test_the_citation_is_valid() -> None:
    schema = json.loads(CFF_SCHEMA.read_text())
    validator = jsonschema.Draft7Validator(schema)
    assert not [error.message for error in validator.iter_errors(citation())]
    broken = {**citation(), "authors": []}
    assert [*validator.iter_errors(broken)]


def test_there_is_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest, date = released()[0]
    assert project["version"] == torchproof.__version__ == newest
    assert citation()["version"] == newest
    assert citation()["license"] == project["license"]
    assert citation()["date-released"] == date
    page = (ROOT / "docs" / "man" / "torchproof.1").read_text()
    assert f'"{date}" "torchproof {newest}"' in page


def test_a_bug_report_begins_with_doctor() -> None:
    bug = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())
    first = bug["body"][0]
    assert "torchproof doctor --format md" in first["attributes"]["description"]
    assert first["validations"]["required"] is True


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_an_issue_template_has_the_fields_of_github(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(form)
    ids = [each["id"] for each in form["body"] if each["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    for each in form["body"]:
        kind, attributes = each["type"], each["attributes"]
        assert kind in {"textarea", "input", "dropdown", "checkboxes", "markdown"}
        assert attributes["value" if kind == "markdown" else "label"]


def test_security_leads_to_the_page_that_explains_it() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / link).exists()
    assert "docs/reference/security.md" in text
