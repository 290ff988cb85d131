"""Examples made by hand: a check in the formats of docs/show.md, and a load test."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import load_runs
from check_runs import FULL, ITEM, SIZE, check

from torchproof.report import finding_section, render


def finding() -> str:
    """Indented, since it has blocks of code of its own."""
    return textwrap.indent(finding_section.entry(ITEM, FULL), "    ")


def sarif() -> str:
    result = json.loads(render(FULL, "sarif"))["runs"][0]["results"][0]
    physical = result["locations"][0]["physicalLocation"]
    del physical["contextRegion"], result["properties"]
    result["message"]["text"] = result["message"]["text"].partition(". ")[0] + ". ..."
    return f"```json\n{json.dumps(result, indent=1)}\n```"


def github() -> str:
    return f"```text\n{render(check(ITEM, SIZE), 'github').rstrip()}\n```"


def agent() -> str:
    return f"```text\n{render(check(ITEM, SIZE), 'agent').rstrip()}\n```"


def load_test() -> str:
    return f"```text\n{render(load_runs.run(), 'text').rstrip()}\n```"


TABLES: dict[str, Callable[[], str]] = {
    "finding": finding,
    "sarif": sarif,
    "github": github,
    "agent": agent,
}
