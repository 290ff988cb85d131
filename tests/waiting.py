"""Waits for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

AGES_S = 300.0  # long enough for any machine
T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float = AGES_S) -> T:
    """The first value of the condition that is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)
    return value
