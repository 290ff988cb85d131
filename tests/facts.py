"""What a text says, apart from how it says it: tests name facts, not sentences."""

from __future__ import annotations

import re


def missing(text: str, *facts: str) -> list[str]:
    """Those of the facts - numbers, names, flags - that the text does not mention."""
    return [fact for fact in facts if fact not in text]


def numbers(text: str) -> list[float]:
    """Every number of a text, in order."""
    return [float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)]
