"""The options of `loadtest`.

Every wrong value raises a `UserError` that names the flag, before anything runs.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from torchproof.records import option_values as values
from torchproof.records.load_test import (
    LatencyMetric,
    LatencyObjective,
    LoadTest,
    TextLoad,
)
from torchproof.records.option import nested, option
from torchproof.records.schema import Record
from torchproof.records.user_error import UserError

POISSON, CONSTANT, GAMMA = "poisson", "constant", "gamma"
DEFAULT_DURATION_S = 30.0
MOST_REQUESTS = 1_000_000
MOST_WORKERS = 256
RISK = 0.01  # that a bound of a percentile is wrong, on each side
LONGEST_TOKENS = 1_000_000
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")
_OBJECTIVE = re.compile(r"(?:(\w+):)?p(\d+(?:\.\d+)?)\s*=\s*(\S.*)")
_ABOVE_0, _LARGEST = sys.float_info.min, sys.float_info.max
# Of each number: the least, the most, and what a message says is expected.
_LIMITS: Mapping[str, tuple[float, float, str]] = {
    "rate": (_ABOVE_0, _LARGEST, "requests per second above 0"),
    "requests": (1, MOST_REQUESTS, f"1 to {MOST_REQUESTS}"),
    "duration_s": (_ABOVE_0, _LARGEST, "a time above 0, such as 30s"),
    "seed": (0, _LARGEST, "0 or more"),
    "workers": (1, MOST_WORKERS, f"1 to {MOST_WORKERS}"),
    "max_batch": (2, _LARGEST, "2 or more"),
    "batch_window_s": (0, _LARGEST, "a time, such as 5ms"),
    "temperature": (0, _LARGEST, "0 or more"),
    "queue_limit": (0, _LARGEST, "0 or more"),
    "price": (_ABOVE_0, _LARGEST, "a price per hour above 0"),
}


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def _assert_within_limits(options: TextOptions | LoadOptions) -> None:
    for name, (least, most, expected) in _LIMITS.items():
        value = getattr(options, name, None)
        if value is not None and not least <= value <= most:
            raise UserError(f"{_flag(name)} {value}: expected {expected}")


def read_objective(text: str) -> LatencyObjective:
    """Parses `p99=50ms` or `first_token:p99=200ms`."""
    match = _OBJECTIVE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r}: expected an objective such as p99=50ms")
    metric, percent = match[1] or "latency", float(match[2])
    if metric not in get_args(LatencyMetric):
        choices = ", ".join(get_args(LatencyMetric))
        raise ValueError(f"{text!r}: {metric!r} is unknown: choose from {choices}")
    if not 0 < percent < 100:
        raise ValueError(f"{text!r}: the percentile is between p0 and p100")
    limit_s = values.time_limit(match[3])
    return LatencyObjective(percent, limit_s * 1e3, metric)  # type: ignore[arg-type]


def token_range(text: str) -> tuple[int, int]:
    """Parses `16-128`, or `64` for one length."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r}: expected a range of lengths such as 16-128")
    return int(match[1]), int(match[2] or match[1])


def requests_needed(percent: float) -> int:
    """The fewest requests of which one exceeds the percentile, almost surely."""
    return math.ceil(math.log(RISK) / math.log(percent / 100))


_load = partial(option, group="the load")
_serving = partial(option, group="how to serve")
_text = partial(
    option,
    group="text models\n--prompt-tokens or --output-tokens serves the target as"
    " prefill and decode.",
)


@dataclass(frozen=True)
class TextOptions(Record):
    """How text is requested and served.

    A `temperature` of 0 takes the most likely token. A request that arrives while
    `queue_limit` others wait is rejected. `price` is per hour, in any currency.
    """

    prompt_tokens: tuple[int, ...] = _text(  # from, to
        (16, 128), "lengths of prompts (16-128)", "MIN-MAX", read=token_range
    )
    output_tokens: tuple[int, ...] = _text(
        (16, 64), "lengths of answers (16-64)", "MIN-MAX", read=token_range
    )
    temperature: float = _text(
        0.0, "of sampling (0: most likely)", "T", read=values.number
    )
    queue_limit: int | None = _text(
        None, "reject a request if N are waiting", "N", read=values.whole
    )
    price: float | None = _text(
        None, "of the machine per hour, for the cost", "P", read=values.number
    )

    @property
    def load(self) -> TextLoad:
        """What is asked of the model, for the record."""
        lengths = self.prompt_tokens, self.output_tokens
        return TextLoad(*lengths, self.temperature, self.queue_limit)

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= LONGEST_TOKENS:
                raise UserError(
                    f"{_flag(name)} {low}-{high}: expected two numbers of"
                    f" tokens from 1 to {LONGEST_TOKENS}, the smaller first"
                )
        _assert_within_limits(self)


@dataclass(frozen=True)
class LoadOptions(Record):
    """What to ask of the strategies.

    `arrivals` is poisson, constant, gamma:K or a file with one request per line. The
    timetable has `requests` requests or lasts `duration_s`. With a batch window,
    requests of the same call that arrive within it are answered together, at most
    `max_batch` of them. Without `cold`, every call is answered before the timetable.
    """

    rate: float | None = _load(
        None, "requests per second, on average", "R", read=values.number
    )
    arrivals: str = _load(
        POISSON,
        "poisson, constant, gamma:K (K below 1: bursts), or a file with one request"
        " per line: TIME,CALL or JSON (default: poisson)",
        "KIND",
    )
    duration_s: float | None = _load(
        None,
        "length of the test: 30s, 5m (default: 30s)",
        "TIME",
        flag="--duration",
        read=values.duration,
        exclusive=True,
    )
    requests: int | None = _load(
        None, "number of requests, instead", "N", read=values.whole, exclusive=True
    )
    objective: LatencyObjective | None = _load(
        None,
        "exit 1 if every strategy misses it: p99=50ms, p99.9=0.2s; of text also"
        " first_token:p99=200ms and token:p99=30ms",
        "OBJECTIVE",
        flag="--slo",
        read=read_objective,
    )
    strategies: tuple[str, ...] = _serving(
        (),
        "those of bench, and compile (torchproof.compile), compile:nowait,"
        " full+graph:nowait, graph:nowait, recipe:FILE, pack:DIR (default:"
        " eager,full,compile:nowait)",
        "NAMES",
        read=values.names,
    )
    find_rate: bool = _load(
        False, "search the highest rate that meets --slo, beginning with --rate"
    )
    batch_window_s: float | None = _serving(
        None,
        "answer requests that arrive within TIME together, if they make one call",
        "TIME",
        flag="--batch-window",
        read=values.duration,
    )
    max_batch: int | None = _serving(
        None, "requests of a batch at most", "N", read=values.whole
    )
    workers: int = _serving(
        1, "threads that take requests (default: 1)", "N", read=values.whole
    )
    seed: int = _load(0, "of the timetable (default: 0)", "S", read=values.whole)
    cold: bool = _serving(
        True,
        "answer every call before the test, so that it begins warm",
        flag="--no-cold",
    )
    text: TextOptions | None = nested(TextOptions)  # serve it as prefill and decode

    def __post_init__(self) -> None:
        self.gamma_shape  # noqa: B018
        _assert_within_limits(self)
        for is_wrong, message in (*self._load_faults(), *self._serving_faults()):
            if is_wrong:
                raise UserError(message)

    @property
    def from_file(self) -> bool:
        """Whether the arrival times come from a file."""
        kind = self.arrivals.partition(":")[0]
        return self.arrivals not in (POISSON, CONSTANT) and kind != GAMMA

    @property
    def gamma_shape(self) -> float:
        """The shape of the gamma distribution of gaps; 1 is a Poisson process."""
        kind, _, shape = self.arrivals.partition(":")
        try:
            value = float(shape) if kind == GAMMA else 1.0
        except ValueError:
            value = math.nan
        if not 0.01 <= value <= 1000:
            raise UserError(
                f"--arrivals {self.arrivals}: K of gamma:K is a number from 0.01"
                " (bursts) to 1000 (almost constant); 1 is poisson"
            )
        return value

    def asked(self, **known: Any) -> LoadTest:
        """The record of what is asked, and what is `known` beside it."""
        window_s = self.batch_window_s
        return LoadTest(
            rate=self.rate,
            arrivals=self.arrivals,
            seed=self.seed,
            workers=self.workers,
            objective=self.objective,
            batch_window_ms=None if window_s is None else window_s * 1e3,
            max_batch=self.max_batch,
            text=self.text.load if self.text else None,
            **{"planned": 0, **known},
        )

    def _load_faults(self) -> Iterator[tuple[bool, str]]:
        """What may be wrong, each with whether it is."""
        if self.from_file:
            flag = f"--arrivals {self.arrivals}"
            times = f"{flag} has the times of arrival: leave out --rate"
            yield self.rate is not None, times
            yield (
                self.find_rate,
                "--find-rate draws a timetable for every rate: use --arrivals poisson,"
                " constant or gamma:K",
            )
        else:
            yield (
                self.rate is None,
                "loadtest needs --rate, the requests per second, or --arrivals FILE",
            )
        both = None not in (self.requests, self.duration_s)
        yield both, "--requests and --duration: give one of them"
        seconds = self.duration_s or DEFAULT_DURATION_S
        yield (
            self.requests is None and (self.rate or 0) * seconds > MOST_REQUESTS,
            f"--rate {self.rate} for {seconds:g} s are more than {MOST_REQUESTS}"
            " requests: choose a shorter --duration",
        )

    def _serving_faults(self) -> Iterator[tuple[bool, str]]:
        yield (
            (self.batch_window_s is None) != (self.max_batch is None),
            "--batch-window and --max-batch belong together: give both",
        )
        metric = self.objective.metric if self.objective else "latency"
        if self.text is not None:
            why = "text is generated one request at a time"
            yield self.workers != 1, f"--workers: {why}"
            yield self.max_batch is not None, f"--max-batch: {why}"
        yield (
            self.text is None and metric != "latency",
            f"--slo {metric}:...: only generated text has tokens: add --output-tokens",
        )
        if not self.find_rate:
            return
        yield (
            self.objective is None,
            "--find-rate needs an objective, such as --slo p99=50ms",
        )
        if self.objective is not None:
            percent = self.objective.percent
            needed = requests_needed(percent)
            yield (
                needed > MOST_REQUESTS,
                f"--find-rate: p{percent:.12g} needs {needed} requests at each rate, of"
                f" at most {MOST_REQUESTS}: choose a lower percentile",
            )
