"""The expectations of a plan, such as `speed >= 1.2`, and their verdicts.

An expectation is met, missed, not settled (the interval of the measurement contains the
bound) or not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torchproof.records import SEVERITIES, Measurement, Run, UserError
from torchproof.report import bench_sections, numbers, run_words

Verdict = Literal["met", "missed", "not settled", "not measured"]

COUNTS = (
    "graph_breaks",
    "recompiles",
    "graphs",
    "skipped_frames",
    "compiled_calls",
    "cudagraph_skips",
    "cudagraph_recordings",
)
FINDINGS = ("findings", *(f"findings.{severity}" for severity in SEVERITIES))
MEASURED = {
    "speed": "times as fast as eager, best strategy",
    "median_ms": "median time per call, best strategy",
    "first_call_s": "first call in seconds, best strategy",
    "peak_bytes": "peak memory, best strategy",
    "memory_mib": "peak memory in MiB, best strategy",
}
METRICS = (*COUNTS, *FINDINGS, *MEASURED)

_MIB = 2**20
_TERM = re.compile(r"([\w.]+)\s*(>=|<=|==|=|>|<)\s*([0-9]+(?:\.[0-9]*)?)")
_ITEM = re.compile(r"\s*[-*+]\s+(.*\S)\s*")


@dataclass(frozen=True)
class Expectation:
    """A metric and its bound; without a metric, text that only a person can judge."""

    text: str
    metric: str | None = None
    sign: str = ""
    bound: float = 0.0

    @property
    def line(self) -> str:
        """The line in the log, with the meaning of the metric if it needs one."""
        meaning = MEASURED.get(self.metric or "")
        return f"- {self.text} ({meaning})" if meaning else f"- {self.text}"


@dataclass(frozen=True)
class Value:
    """A run's value of a metric, with the interval if there is one."""

    value: float
    text: str
    low: float | None = None
    high: float | None = None


def parse(text: str) -> tuple[Expectation, ...]:
    """Parses the value of --expect: `speed>=1.2,graph_breaks=0`."""
    return tuple(_term(part.strip()) for part in text.split(",") if part.strip())


def _term(text: str) -> Expectation:
    match = _TERM.fullmatch(text)
    if match is None:
        raise UserError(
            f"--expect: {text!r} is not METRIC SIGN NUMBER, as in speed>=1.2"
        )
    metric, sign, bound = match[1], match[2].replace("==", "="), float(match[3])
    if metric not in METRICS:
        raise UserError(
            f"--expect: unknown metric {metric!r}; choose from {', '.join(METRICS)}"
        )
    if sign == "=" and metric in MEASURED:
        raise UserError(
            f"--expect: {metric} is measured and never exactly {match[3]}: use >= or <="
        )
    return Expectation(f"{metric} {sign} {match[3]}", metric, sign, bound)


def read(lines: Iterable[str]) -> tuple[Expectation, ...]:
    """The expectations of a plan in the log, including lines that a person wrote."""
    expected = []
    for line in lines:
        item = _ITEM.fullmatch(line)
        if item is None:
            continue
        term = _TERM.match(item[1])
        try:
            expected.append(_term(term[0]) if term else Expectation(item[1]))
        except UserError:  # a person's own metric
            expected.append(Expectation(item[1]))
    return tuple(expected)


def verdict(expected: Expectation, measured: Value | None) -> Verdict:
    if measured is None or not expected.metric:
        return "not measured"
    ends = (
        measured.value if measured.low is None else measured.low,
        measured.value if measured.high is None else measured.high,
    )
    outcomes = {_holds(end, expected) for end in ends}
    if len(outcomes) > 1:
        return "not settled"
    return "met" if outcomes == {True} else "missed"


def _holds(value: float, expected: Expectation) -> bool:
    bound = expected.bound
    if expected.sign == ">=":
        return value >= bound
    if expected.sign == "<=":
        return value <= bound
    if expected.sign == ">":
        return value > bound
    return value < bound if expected.sign == "<" else value == bound


# -- values of a run -------------------------------------------------------------------


def best(run: Run) -> Measurement | None:
    """The valid compiled strategy with the largest gain."""
    compiled = [row for row in bench_sections.ranked(run) if row.vs_eager is not None]
    rows = [row for row in compiled if row.strategy != "eager"]
    return max(rows, key=lambda row: row.vs_eager or 0.0, default=None)


def value(run: Run, metric: str) -> Value | None:
    """None if the run did not measure it, or is incomplete."""
    if run_words.incomplete(run):
        return None
    if metric in COUNTS:
        count = run.counts.get(metric)
        return None if count is None else Value(count, f"{count:g}")
    if metric in FINDINGS:
        return _findings(run, metric)
    row = best(run)
    return None if row is None else _measured(row, metric)


def _findings(run: Run, metric: str) -> Value | None:
    looked = run.parts.get("breaks")
    if run.verb != "check" or (looked and looked.status == "skipped"):
        return None
    severity = metric.partition(".")[2]
    count = sum(
        f.status == "open" and severity in ("", f.severity) for f in run.findings
    )
    return Value(count, str(count))


def _measured(row: Measurement, metric: str) -> Value | None:
    if metric == "speed" and row.vs_eager is not None:
        low, high = row.vs_eager_low, row.vs_eager_high
        text = f"{numbers.times(row.vs_eager, low, high)}, {row.strategy}"
        return Value(row.vs_eager, text, low, high)
    if metric == "median_ms" and row.median_ms is not None:
        text = f"{numbers.plain(row.median_ms)} ms"
        text += f" ({numbers.interval(row.low_ms, row.high_ms)})"
        return Value(row.median_ms, f"{text}, {row.strategy}", row.low_ms, row.high_ms)
    if metric == "first_call_s" and row.first_call_s is not None:
        text = f"{numbers.seconds(row.first_call_s)}, {row.strategy}"
        return Value(row.first_call_s, text)
    if metric in {"peak_bytes", "memory_mib"} and row.peak_bytes is not None:
        amount = row.peak_bytes / (_MIB if metric == "memory_mib" else 1)
        return Value(amount, f"{numbers.size(row.peak_bytes)}, {row.strategy}")
    return None
