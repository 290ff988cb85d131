"""What a rule says of itself: its sections, and the page of PyTorch it refers to."""

from __future__ import annotations

import ast

import pytest

from torchproof.checking import rules
from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import SECTIONS
from torchproof.observe.trace_log import read_reason
from torchproof.records.run import Event, Frame, Observation

KNOWN = {page for page in vars(torch_pages).values() if isinstance(page, str)}
HOMES = ("https://docs.pytorch.org/docs/stable/", "https://docs.pytorch.org/tutorials/")


def test_every_rule_has_its_sections_and_refers_to_a_page() -> None:
    for rule in rules.RULES:
        assert rule.summary().endswith("."), rule.code
        for name in SECTIONS:
            text = rule.text().section(name)
            assert text and "## " not in text, (rule.code, name)
        for name in ("Bad", "Good"):
            assert not rule.text().section(name).startswith(" "), (rule.code, name)
        assert rule.text().section("Elsewhere") == ""
        page = rule.reference
        assert page in KNOWN and page.endswith(".html"), rule.code
        assert page.startswith(HOMES), rule.code
        assert rule.documentation().endswith(f"\n\n## Reference\n{page}"), rule.code


def test_no_page_is_kept_that_nothing_refers_to() -> None:
    used = {rule.reference for rule in rules.RULES}
    kept = {page for page in KNOWN if page.endswith(".html")}
    assert kept == used


def test_examples_are_python_with_the_indent_taken_off() -> None:
    good = rules.by_code("GB102").text().section("Good")
    assert ast.parse(good).body and "torch.where" in good


@pytest.mark.parametrize(("torch", "named"), [("2.13.0+cpu", True), ("2.15.0", False)])
def test_the_fix_names_the_torch_that_traces_this(torch: str, named: bool) -> None:
    here = Frame("/home/me/model.py", 7, "forward", "states.rotate(1)", (0, 16))
    reason = {**read_reason("Unsupported deque"), "skips": False}
    event = Event("graph_break", "0/0", (here,), here, reason)
    [found] = rules.check(Observation((event,), {"torch": torch}))
    assert found.code == "GB117" and ("torch 2.14.1" in found.fix) is named
    assert "\n\n## Versions\n" in rules.by_code("GB117").documentation()
