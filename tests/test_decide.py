"""docs/decide.md: its tables are the measurements, its links and strategies exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "docs"))

import torch_parts  # noqa: E402

PAGES = [ROOT / "docs" / "decide.md", ROOT / "docs" / "reference" / "limitations.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_pages_lead_to_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([\w.]*)#([^)]+)\)", page.read_text())
    assert links
    for name, anchor in links:
        text = (page.parent / name if name else page).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.M)
        assert anchor in {torch_parts.anchor(heading) for heading in headings}, anchor


def test_codes_of_the_page_exist() -> None:
    from torchproof.checking.rules import RULES

    known = {rule.code for rule in RULES}
    named = set(re.findall(r"\b[A-Z]{2}\d{3}\b", PAGES[0].read_text()))
    assert named and named <= known
