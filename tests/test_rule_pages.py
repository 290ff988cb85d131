"""What a rule says of itself: its sections, and the page of PyTorch it refers to."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from torchproof.checking import rules
from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import SECTIONS, Rule

KNOWN = {page for page in vars(torch_pages).values() if isinstance(page, str)}
HOMES = ("https://docs.pytorch.org/docs/stable/", "https://docs.pytorch.org/tutorials/")


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda r: r.code)
def test_rule_refers_to_a_page(rule: Rule) -> None:
    page = rule.reference
    assert page.startswith((*HOMES, *torch_pages.BREAK_SITES)) and page.endswith(
        ".html"
    )
    assert page in KNOWN
    assert rule.documentation().endswith(f"\n\n## Reference\n{page}")


def test_no_page_is_kept_that_nothing_refers_to() -> None:
    used = {rule.reference for rule in rules.RULES}
    kept = {page for page in KNOWN if page.endswith(".html")}
    assert kept == used


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda r: r.code)
def test_sections_can_be_taken_out(rule: Rule) -> None:
    for name in SECTIONS:
        text = rule.section(name)
        assert text and "## " not in text
    for name in ("Bad", "Good"):
        assert not rule.section(name).startswith(" ")
    assert rule.section("Elsewhere") == ""


def test_examples_are_python_with_the_indent_taken_off() -> None:
    good = rules.by_code("GB102").section("Good")
    assert ast.parse(good).body and "torch.where" in good


@pytest.mark.parametrize("code, program", [("GB117", "bad_4"), ("GB105", "bad_6")])
def test_the_fix_names_the_torch_that_traces_this(
    code: str, program: str, observe: Any
) -> None:
    path = Path(__file__).parent / "rules" / f"{code}.py"
    found = rules.check(observe(f"{path}:{program}"))
    fixes = [finding.fix for finding in found if finding.code == code]
    if torch.__version__ < "2.14":
        assert [fix.endswith("; torch 2.14.1 traces this") for fix in fixes] == [True]
    else:
        assert not fixes
    assert "\n\n## Versions\n" in rules.by_code(code).documentation()
