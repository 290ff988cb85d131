"""When requests arrive, and which call each of them makes.

A timetable is absolute and drawn from a seed, so every strategy answers the same
requests. The gaps between arrivals are drawn for a rate of one and then scaled: two
rates of one seed have the same bursts, which makes them comparable.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchproof.records import Record, UserError, files
from torchproof.records.load_options import (
    CONSTANT,
    DEFAULT_DURATION_S,
    MOST_REQUESTS,
    LoadOptions,
)

SIZES = ("batch", "sequence")  # the keywords of a factory that a file may set
_ARRIVALS, _CALLS = 0, 1  # two streams of one seed
_CHUNK = 1024
_MOST_BYTES = 1 << 28  # of a file with requests
_LATEST_S = 1e12  # dates as seconds since 1970 are far below it


@dataclass(frozen=True)
class CallKind(Record):
    """What a request calls: a call of the target, or of its factory with sizes."""

    index: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Timetable:
    """Arrivals in seconds from the start, in order, and the kind of call of each."""

    arrival_s: tuple[float, ...]
    call: tuple[int, ...]
    length_s: float  # of the whole timetable: the last request may arrive earlier
    # Of text models only: the lengths of each request.
    prompt_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    def until(self, moment_s: float) -> Timetable:
        """What of it had arrived by then."""
        count = bisect.bisect_right(self.arrival_s, moment_s)
        return self._first(count, min(moment_s, self.length_s))

    def before(self, number: int) -> Timetable:
        """What of it arrives before the request of this number, if there is one."""
        if number >= len(self):
            return self
        return self._first(number, self.arrival_s[number])

    def _first(self, count: int, length_s: float) -> Timetable:
        return Timetable(
            self.arrival_s[:count],
            self.call[:count],
            length_s,
            prompt_tokens=self.prompt_tokens[:count],
            output_tokens=self.output_tokens[:count],
        )


@dataclass(frozen=True)
class Trace:
    """The requests of a file, one entry per request."""

    arrival_s: tuple[float, ...]
    kinds: tuple[CallKind, ...]
    lines: tuple[int, ...]
    file: str

    @property
    def sized(self) -> tuple[CallKind, ...]:
        """The calls that the factory has to make with other sizes, each one once."""
        return tuple(dict.fromkeys(kind for kind in self.kinds if kind.sizes))

    def assert_only_times(self) -> None:
        """Raises `UserError` if a line says more than when a request arrives."""
        self._refuse(
            lambda kind: bool(kind.index or kind.sizes),
            "requests for text have no calls or sizes: write times alone, lengths are"
            " drawn from --prompt-tokens and --output-tokens",
        )

    def assert_fits(self, calls: int) -> None:
        """Raises `UserError` if a line names a call that the target does not have."""
        self._refuse(
            lambda kind: not kind.sizes and kind.index >= calls,
            f"call {{index}}, but the target has {calls} calls, from 0 to {calls - 1}",
        )

    def _refuse(self, is_wrong: Callable[[CallKind], bool], why: str) -> None:
        for kind, line in zip(self.kinds, self.lines, strict=True):
            if is_wrong(kind):
                why = why.format(index=kind.index)
                raise UserError(f"{self.file}:{line}: {why}")


def draw(
    options: LoadOptions,
    weights: Sequence[float],
    *,
    rate: float | None = None,
    requests: int | None = None,
) -> Timetable:
    """Draws the timetable of the options, or that of another rate and length."""
    rate = rate or options.rate
    assert rate is not None
    requests = requests or options.requests
    if requests is None:
        length_s = options.duration_s or DEFAULT_DURATION_S
        arrivals = _within(options, rate, length_s)
    else:
        arrivals = _arrivals(options, requests) / rate
        # The gap after the last request belongs to the timetable, as after the others.
        length_s = float(arrivals[-1]) + 1 / rate
    if not len(arrivals):
        raise UserError(
            f"no request arrives within {length_s:g} s at a rate of {rate:g}: choose a"
            " longer --duration, or --requests"
        )
    calls = _draw_calls(options.seed, weights, len(arrivals))
    return Timetable(tuple(arrivals.tolist()), tuple(calls), length_s)


def from_trace(trace: Trace, options: LoadOptions, calls: int) -> Timetable:
    """The requests of a file, as far as `requests` or `duration_s` allow.

    The calls of the target have their index; those with sizes follow them.
    """
    trace.assert_fits(calls)
    arrivals = np.array(trace.arrival_s)
    count = len(arrivals)
    if options.duration_s is not None:
        count = int(np.searchsorted(arrivals, options.duration_s))
    if options.requests is not None:
        count = min(count, options.requests)
    if not count:
        raise UserError(f"{trace.file}: no request arrives within the --duration")
    last_s = trace.arrival_s[count - 1]
    length_s = options.duration_s or last_s + last_s / max(1, count - 1)
    sized = {kind: calls + number for number, kind in enumerate(trace.sized)}
    chosen = tuple(sized.get(kind, kind.index) for kind in trace.kinds[:count])
    return Timetable(trace.arrival_s[:count], chosen, length_s)


def _arrivals(options: LoadOptions, count: int) -> Any:
    """The first arrivals at a rate of one per second."""
    if options.arrivals == CONSTANT:
        return np.arange(count, dtype=float)
    shape = options.gamma_shape
    generator = np.random.default_rng([options.seed, _ARRIVALS])
    gaps = generator.standard_gamma(shape, count) / shape
    return np.cumsum(gaps)


def _within(options: LoadOptions, rate: float, length_s: float) -> Any:
    """All arrivals before the end; a longer draw begins with the shorter one."""
    count = _CHUNK
    while True:
        arrivals = _arrivals(options, count) / rate
        if arrivals[-1] >= length_s:
            return arrivals[: np.searchsorted(arrivals, length_s)]
        if count > MOST_REQUESTS:
            raise UserError(f"more than {MOST_REQUESTS} requests: lower the --rate")
        count *= 2


def _draw_calls(seed: int, weights: Sequence[float], count: int) -> list[int]:
    generator = np.random.default_rng([seed, _CALLS])
    limits = np.cumsum(weights) / np.sum(weights)
    drawn = np.searchsorted(limits, generator.random(count), side="right")
    chosen: list[int] = np.minimum(drawn, len(weights) - 1).tolist()
    return chosen


# -- files -----------------------------------------------------------------------------


def read_trace(path: str) -> Trace:
    """Reads one request per line: `TIME,CALL`, or JSON with `time` and more.

    `{"time": 0.25, "call": 2}` names a call of the target by its index, and
    `{"time": 0.25, "sizes": {"batch": 4}}` the first call that the factory makes with
    these sizes. Times are seconds, in order; the first one becomes 0.
    """
    try:
        text = files.read_bytes(path, _MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(
            f"--arrivals {path}: expected poisson, constant, gamma:K or a file with one"
            " request per line"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--arrivals {path}: cannot read it: {why}") from None
    requests = list(_requests_of(path, text))
    if not requests:
        raise UserError(f"{path} has no requests: write one per line, as 0.25,0")
    lines, times, kinds = zip(*requests, strict=True)
    for line, before, time_s in zip(lines[1:], times, times[1:], strict=False):
        if time_s < before:
            raise UserError(f"{path}:{line}: the time goes back: sort the lines")
    return Trace(tuple(time_s - times[0] for time_s in times), kinds, lines, path)


def _requests_of(path: str, text: str) -> Iterator[tuple[int, float, CallKind]]:
    """Each request with the number of its line; comments and a heading are skipped."""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if number == 1 and line.replace(" ", "") == "time,call":
            continue
        try:
            yield number, *_request(line)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else ""
            raise UserError(
                f"{path}:{number}: not a request: {why or error}; write 0.25,0 or"
                ' {"time": 0.25, "call": 0}'
            ) from None


def _request(line: str) -> tuple[float, CallKind]:
    if not line.startswith("{"):
        time_text, comma, call = line.partition(",")
        return _time(float(time_text)), CallKind(_count(int(call) if comma else 0))
    plain = json.loads(line)
    unknown = plain.keys() - {"time", "call", "sizes"}
    if unknown:
        raise ValueError(f"{sorted(unknown)[0]!r} is unknown")
    sizes = plain.get("sizes", {})
    if not isinstance(sizes, dict) or not sizes.keys() <= {*SIZES}:
        raise ValueError(f"sizes are {' and '.join(SIZES)}")
    for value in sizes.values():
        if _count(value) < 1:
            raise ValueError(f"a size of {value}")
    return _time(plain["time"]), CallKind(_count(plain.get("call", 0)), sizes)


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("the time is not a number")
    if not 0 <= value <= _LATEST_S:
        raise ValueError(f"the time {value} is not a number of seconds from 0")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not an integer from 0")
    return value
