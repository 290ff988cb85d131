"""How bad a finding is, the worst first."""

from typing import Literal

Severity = Literal["high", "medium", "low"]

SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")
