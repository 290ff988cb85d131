"""What a rule says of itself: its sections, and the page of PyTorch it refers to."""

from __future__ import annotations

import ast
from typing import Any

import torch
from rule_programs import programs

from torchproof.checking import rules
from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import SECTIONS

KNOWN = {page for page in vars(torch_pages).values() if isinstance(page, str)}
HOMES = ("https://docs.pytorch.org/docs/stable/", "https://docs.pytorch.org/tutorials/")


def test_every_rule_has_its_sections_and_refers_to_a_page() -> None:
    for rule in rules.RULES:
        assert rule.summary().endswith("."), rule.code
        for name in SECTIONS:
            text = rule.section(name)
            assert text and "## " not in text, (rule.code, name)
        for name in ("Bad", "Good"):
            assert not rule.section(name).startswith(" "), (rule.code, name)
        assert rule.section("Elsewhere") == ""
        page = rule.reference
        assert page in KNOWN and page.endswith(".html"), rule.code
        assert page.startswith((*HOMES, *torch_pages.BREAK_SITES)), rule.code
        assert rule.documentation().endswith(f"\n\n## Reference\n{page}"), rule.code


def test_no_page_is_kept_that_nothing_refers_to() -> None:
    used = {rule.reference for rule in rules.RULES}
    kept = {page for page in KNOWN if page.endswith(".html")}
    assert kept == used


def test_examples_are_python_with_the_indent_taken_off() -> None:
    good = rules.by_code("GB102").section("Good")
    assert ast.parse(good).body and "torch.where" in good


def test_the_fix_names_the_torch_that_traces_this(observe_all: Any) -> None:
    known = {("GB117", "bad_4"), ("GB105", "bad_6")}
    chosen = [p for p in programs() if (p.rule, p.factory) in known]
    observed = observe_all([(each.target, each.options) for each in chosen])
    for program, observation in zip(chosen, observed, strict=True):
        found = rules.check(observation)
        fixes = [finding.fix for finding in found if finding.code == program.rule]
        newer = [fix.endswith("; torch 2.14.1 traces this") for fix in fixes]
        assert newer == [True] * (torch.__version__ < "2.14")
        page = rules.by_code(program.rule).documentation()
        assert "\n\n## Versions\n" in page
