"""The load test section of the page: tables, charts and the causes of slow requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from torchproof.records import Run, TailCause
from torchproof.report import load_sections, numbers
from torchproof.report.html import load_charts
from torchproof.report.load_sections import is_notable

_MOST_NUMBERS = 200  # of victims that the page lists
# A trial of a rate by its verdict.
_SHAPES = {
    "met": Markup('<circle r="5"/>'),
    "missed": Markup('<path d="M-5 -5L5 5M5 -5L-5 5"/>'),
    "undecided": Markup('<circle r="5"/>'),
}


@dataclass(frozen=True)
class Cause:
    """A cause of slow requests; the length of its bar is in percent."""

    code: str
    text: str
    share: str
    length: float
    involved: str
    remedy: str
    victims: str


def content(run: Run) -> dict[str, Any]:
    """The variables of load.html."""
    test = load_sections.load_test_of(run)
    tables = [
        load_sections.latencies(test, intervals=True),
        load_sections.outcomes(test),
        load_sections.generation(test),
    ]
    return {
        "load": test,
        "question": load_sections.question(test),
        "load_tables": [table for table in tables if table and table.rows],
        "remarks": list(load_sections.remarks(test)),
        "timelines": load_charts.timelines(test),
        "distribution": load_charts.distribution(test),
        "rates": load_charts.rates(test),
        "trial_shape": _SHAPES.__getitem__,
        "slow": [
            (
                section.title,
                [_cause(cause) for cause in section.causes if is_notable(cause)],
                [_cause(cause) for cause in section.causes if not is_notable(cause)],
                section.rest,
            )
            for section in load_sections.slow_requests(test)
        ],
        "not_slow": load_sections.without_slow_requests(test),
        "unobserved": list(load_sections.missing(test)),
        "next_steps": list(load_sections.more_to_ask(test)),
    }


def sections(values: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Anchor, name and content of each section, for the list of contents."""
    return {
        "load": ("Strategies", values["load_tables"]),
        "timeline": ("Over time", values["timelines"]),
        "distribution": ("Distribution", values["distribution"]),
        "rates": ("Rates", values["rates"]),
        "slow": ("Slow requests", values["slow"]),
    }


def _cause(cause: TailCause) -> Cause:
    return Cause(
        code=cause.code,
        text=cause.text,
        share=load_sections.share(cause.share),
        length=round(min(1.0, max(0.0, cause.share or 0.0)) * 100, 2),
        involved=load_sections.involved(cause),
        remedy=cause.remedy,
        victims=_numbers(cause.victims),
    )


def _numbers(members: Sequence[int]) -> str:
    """`3, 4, 5`; empty if there are none."""
    listed = ", ".join(map(str, members[:_MOST_NUMBERS]))
    more = len(members) - _MOST_NUMBERS
    return f"{listed} and {numbers.count(more)} more" if more > 0 else listed
