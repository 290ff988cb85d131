"""What recording stalls adds to the latency of requests in a load test.

One process serves a model on the CPU, in short rounds of requests at a constant rate.
Every second round has a `StallRecorder`; pairs of rounds take turns in which comes
first. What disturbs the machine for longer than a pair (a tenth of a second) affects
both. A pair gives the ratio of their medians of latency, and the interval is that of
the median of all pairs.

    python benchmarks/load_overhead.py [--pairs 500] [--requests 10] [--write]

The verdict is `within` or `above` the limit if the whole interval is, else `undecided`:
then more pairs are needed. On a machine with other work, `chrt -f 10` before the
command gives the process the CPUs when it needs them. Exit code 1 if the verdict is
`above`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.serving import serve
from torchproof.measure.loadtest.stalls import StallRecorder
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import stats

LIMIT = 1.02
HERE = Path(__file__).resolve().parent
WIDTH = 512
LAYERS = 6
BUSY = 0.5  # share of the time in which the model runs


def build(layers: int) -> Callable[[int, int], None]:
    """A compiled model, warm; many small operations, so that Python runs often."""
    torch.manual_seed(0)
    parts = [
        part
        for _ in range(layers)
        for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
    ]
    model = torch.compile(torch.nn.Sequential(*parts).eval(), backend="eager")
    x = torch.randn(16, WIDTH)

    def answer(call: int, count: int) -> None:
        with torch.no_grad():
            model(x)

    for _ in range(20):
        answer(0, 1)
    return answer


def round_ms(
    answer: Callable[[int, int], None], table: Timetable, *, observed: bool
) -> float:
    """The median latency of one round of requests."""
    with tempfile.TemporaryDirectory() as folder:
        log = RequestLog(Path(folder) / "log", len(table), create=True)
        if observed:
            with StallRecorder() as recorder:
                serve(answer, table, log, observer=recorder)
        else:
            serve(answer, table, log)
        requests = log.requests(table)
    ends = zip(requests.arrival_s, requests.end_s, strict=True)
    return statistics.median((end - at) * 1e3 for at, end in ends if end is not None)


def measure(pairs: int, requests: int, layers: int) -> dict[str, list[float]]:
    """The median latency of each round, by arm."""
    answer = build(layers)
    once = Timetable((0.0,) * requests, (0,) * requests, 1.0)
    every_s = round_ms(answer, once, observed=False) * 2 / requests / 1e3 / BUSY
    arrivals = tuple(every_s * number for number in range(requests))
    table = Timetable(arrivals, (0,) * requests, every_s * requests)
    medians: dict[str, list[float]] = {"plain": [], "observed": []}
    for index in range(pairs):
        for arm in ("plain", "observed") if index % 2 == 0 else ("observed", "plain"):
            observed = arm == "observed"
            medians[arm].append(round_ms(answer, table, observed=observed))
    return medians


def verdict_of(low: float, high: float) -> str:
    """Where the interval of the ratio lies."""
    if high <= LIMIT:
        return "within"
    return "above" if low > LIMIT else "undecided"


def report(medians: dict[str, list[float]], requests: int) -> dict[str, object]:
    """The numbers, with the machine they belong to."""
    ratio = stats.compare(
        [[value] for value in medians["observed"]],
        [[value] for value in medians["plain"]],
        luck=0.0,  # both arms are in one process
    )
    assert ratio.low is not None and ratio.high is not None
    return {
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("torchproof", "torch")},
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "real_time": os.sched_getscheduler(0) == os.SCHED_FIFO,
        "pairs": len(medians["plain"]),
        "requests": requests,
        "p50_ms": {arm: statistics.median(each) for arm, each in medians.items()},
        "samples": medians,
        "ratio": {"median": ratio.value, "low": ratio.low, "high": ratio.high},
        "limit": LIMIT,
        "verdict": verdict_of(ratio.low, ratio.high),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    medians = measure(arguments.pairs, arguments.requests, arguments.layers)
    numbers = report(medians, arguments.requests)
    p50, ratio = numbers["p50_ms"], numbers["ratio"]
    assert isinstance(p50, dict) and isinstance(ratio, dict)
    print(
        f"p50 {p50['plain']:.3f} ms plain, {p50['observed']:.3f} ms observed; ratio"
        f" {ratio['median']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f}), limit"
        f" {LIMIT}: {numbers['verdict']}; {numbers['pairs']} pairs of"
        f" {arguments.requests} requests"
    )
    if arguments.write:
        path = HERE / "results" / f"load-overhead-{platform.machine()}.json"
        path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return 1 if numbers["verdict"] == "above" else 0


if __name__ == "__main__":
    sys.exit(main())
