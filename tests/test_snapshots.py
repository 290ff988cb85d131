"""Every run of report_runs.py in every format, compared with tests/snapshots.

After a change of a report that is meant:

    pytest tests/test_snapshots.py --renew
    git diff tests/snapshots
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import report_runs
from command_line import FLAGS
from report_runs import RUNS

import torchproof
from torchproof.records import Run
from torchproof.report import render, render_cell, render_comparison

FOLDER = Path(__file__).parent / "snapshots"
Snapshot = Callable[[str, str], None]
LONG = 300  # characters of an attribute of HTML: the points of a chart


def page(text: str) -> str:
    """HTML without the parts that are data, code or style of every page."""
    text = re.sub(r"(<(style|script)\b[^>]*>).*?(</\2>)", r"\1\3", text, flags=re.S)
    text = re.sub(r"sha256-[^&']+", "sha256-...", text)
    text = re.sub(r'href="data:[^"]+"', 'href="data:..."', text)
    return re.sub(rf'"[^"<>]{{{LONG},}}"', _digest, text)


def _digest(found: re.Match[str]) -> str:
    digest = hashlib.sha256(found[0].encode()).hexdigest()
    return f'"{len(found[0])} characters, {digest[:12]}"'


def sarif(text: str) -> str:
    """SARIF without the documentation of rules, which the rules own."""
    document = json.loads(text)
    for run in document["runs"]:
        for rule in run["tool"]["driver"]["rules"]:
            for name in ("shortDescription", "fullDescription", "help"):
                rule.pop(name, None)
    return json.dumps(document, indent=1) + "\n"


def fields(value: Any, path: str = "") -> Iterator[str]:
    """The paths of a document's fields: its contract, without its values."""
    if isinstance(value, dict):
        for name, each in value.items():
            name = "CODE" if re.fullmatch(r"[A-Z]{2}\d{3}", name) else name
            yield from fields(each, f"{path}.{name}")
    elif isinstance(value, list) and value:
        for each in value:
            yield from fields(each, f"{path}[]")
    else:
        yield path.removeprefix(".")


def json_fields(run: Run) -> str:
    document = json.loads(render(run, "json"))
    return "\n".join(dict.fromkeys(fields(document))) + "\n"


SHOWN: dict[str, Callable[[Run], str]] = {
    "text.txt": lambda run: render(run, "text"),
    "verbose.txt": lambda run: render(run, "text", verbose=True, colour=True),
    "report.md": lambda run: render(run, "md"),
    "page.html": lambda run: page(render(run, "html")),
    "cell.html": lambda run: page(render_cell(run)).partition("<pre")[0] + "\n",
    "fields.txt": json_fields,
    "sarif.json": lambda run: sarif(render(run, "sarif")),
    "github.txt": lambda run: render(run, "github"),
    "gitlab.json": lambda run: render(run, "gitlab"),
    "agent.txt": lambda run: render(run, "agent"),
}
# Names of the hostile run are keys of its JSON; a run without findings has no page of
# them; a second search differs from the first in its decision alone.
LEFT_OUT = {
    *(("check-hostile", name) for name in ("fields.txt", "page.html", "verbose.txt")),
    *(
        (run, name)
        for run in ("bench", "bench-variants", "tune", "tune-eager", "check-clean")
        for name in ("sarif.json", "github.txt", "gitlab.json", "verbose.txt")
    ),
    *(("tune-eager", name) for name in ("page.html", "fields.txt", "report.md")),
    *((run, "cell.html") for run in RUNS if run not in ("check", "bench", "fix")),
}
CASES = [(run, name) for run in RUNS for name in SHOWN if (run, name) not in LEFT_OUT]


@pytest.mark.parametrize(("run", "name"), CASES)
def test_report_is_as_it_was(run: str, name: str, snapshot: Snapshot) -> None:
    snapshot(f"{run}/{name}", SHOWN[name](RUNS[run]))


@pytest.mark.parametrize("format", ["text", "md", "agent", "json"])
def test_comparison_is_as_it_was(format: str, snapshot: Snapshot) -> None:
    compared = report_runs.comparison()
    text = render_comparison(compared, format)
    if format == "json":
        text = "\n".join(dict.fromkeys(fields(json.loads(text)))) + "\n"
    snapshot(f"compare/{format}.txt", text)


def test_page_contains_its_comparison(snapshot: Snapshot) -> None:
    compared = report_runs.comparison()
    text = page(render(RUNS["bench"], "html", compared=compared))
    snapshot("compare/page.html", text)


def test_command_line_is_as_it_was(snapshot: Snapshot) -> None:
    lines = [f"{verb} {flag}".strip() for verb in FLAGS for flag in sorted(FLAGS[verb])]
    snapshot("commands.txt", "\n".join(lines) + "\n")


def test_public_names_are_as_they_were(snapshot: Snapshot) -> None:
    snapshot("public_names.txt", "\n".join(torchproof.__all__) + "\n")


def test_no_snapshot_is_left_over(renew: bool) -> None:
    found = {path for path in FOLDER.glob("*/*") if path.parent.name in RUNS}
    left_over = found - {FOLDER / run / name for run, name in CASES}
    for path in left_over if renew else ():
        path.unlink()
    assert renew or not left_over
