"""Torch's messages, which docs/index.md has word for word."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from torchproof.checking.rules import RULES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "index.md"
ROWS = re.findall(r"^\| `(.+?)` \|.*\| (.*?) \|$", PAGE.read_text(), re.M)
# Where torch keeps the messages of its compiler.
PARTS = ("_dynamo", "_functorch", "_inductor", "fx/experimental")


@pytest.fixture(scope="module")
def source() -> str:
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    torch = Path(found.origin).parent
    files = [file for part in PARTS for file in (torch / part).rglob("*.py")]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def test_page_has_a_table_of_messages() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize("message", [message for message, _ in ROWS])
def test_message_is_one_of_torch(message: str, source: str) -> None:
    assert message in source


def test_codes_of_the_page_exist() -> None:
    codes = set(re.findall(r"\b[A-Z]{2}\d{3}\b", PAGE.read_text()))
    assert codes <= {rule.code for rule in RULES}
