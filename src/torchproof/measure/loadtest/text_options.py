"""The options of a load test of a text model, and how their texts are parsed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchproof.records import Record, TextLoad, UserError

LONGEST = 1_000_000
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")


@dataclass(frozen=True)
class TextOptions(Record):
    """How text is requested and served.

    A `temperature` of 0 takes the most likely token. A request that arrives while
    `queue_limit` others wait is rejected. `price` is per hour, in any currency.
    """

    prompt_tokens: tuple[int, ...] = (16, 128)  # from, to
    output_tokens: tuple[int, ...] = (16, 64)
    temperature: float = 0.0
    queue_limit: int | None = None
    price: float | None = None

    @property
    def load(self) -> TextLoad:
        """What is asked of the model, for the record."""
        return TextLoad(
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            temperature=self.temperature,
            queue_limit=self.queue_limit,
        )

    def __post_init__(self) -> None:
        _check_range(self.prompt_tokens, "--prompt-tokens")
        _check_range(self.output_tokens, "--output-tokens")
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"--temperature {self.temperature:g}: expected 0 or more")
        if self.queue_limit is not None and self.queue_limit < 0:
            raise UserError(f"--queue-limit {self.queue_limit}: expected 0 or more")
        if self.price is not None and not 0 < self.price < math.inf:
            raise UserError(
                f"--price {self.price:g}: expected a price per hour above 0"
            )


def read_range(text: str, flag: str) -> tuple[int, int]:
    """Parses `16-128`, or `64` for one length."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UserError(f"{flag} {text!r}: expected a range of lengths such as 16-128")
    limits = int(match[1]), int(match[2] or match[1])
    _check_range(limits, flag)
    return limits


def _check_range(limits: Sequence[int], flag: str) -> None:
    low, high = limits
    if not 0 < low <= high <= LONGEST:
        raise UserError(
            f"{flag} {low}-{high}: expected two numbers of tokens from 1 to {LONGEST},"
            " the smaller first"
        )
