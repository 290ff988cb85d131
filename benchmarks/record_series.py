"""Records timings of work of known cost, sampled as `torchproof bench` samples.

Every repeat starts four processes that do the same work and samples them side by side,
in rounds. Whatever else runs on the machine meanwhile is part of the recording.

    python -m benchmarks.record_series --repeats 30 -o tests/data/series.json

Times are kept as whole tenths of a microsecond.
"""

import argparse
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.spin import KINDS, Work, calibrate
from torchproof.records import stats

ARMS = 4
STEPS_MS = (
    ("compute", 1.0),
    ("interpret", 1.0),
    ("stream", 1.0),
    ("compute", 0.1),
    ("compute", 5.0),
    ("layers", 1.0),
)
COMMAND = "python -m benchmarks.record_series"


def serve(kind: str, amount: int) -> None:
    """One arm: warms up, then answers each line on stdin with a round of times."""
    work = KINDS[kind]
    times: list[float] = []
    while not stats.steady(times) and sum(times) < 5e3:
        times += timed(work, amount, 10.0)[0]
    print("ready", flush=True)
    for line in sys.stdin:
        work(amount)  # waking up is not timed
        gc.disable()
        kept = stats.kept(*timed(work, amount, float(line)))
        gc.enable()
        print(json.dumps([round(time_ms * 1e4) for time_ms in kept]), flush=True)


def timed(
    work: Work, amount: int, duration_ms: float
) -> tuple[list[float], list[bool]]:
    """Times, and of each whether the process had to yield its core in it."""
    times: list[float] = []
    interrupted: list[bool] = []
    clock, before = time.perf_counter, yielded()
    begin = clock()
    while not times or not stats.round_is_over(
        (clock() - begin) * 1e3, interrupted.count(False), duration_ms
    ):
        start = clock()
        work(amount)
        times.append((clock() - start) * 1e3)
        after = yielded()
        interrupted.append(after > before)
        before = after
    return times, interrupted


def yielded() -> int:
    """How often the process was made to yield its core so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class Arm:
    """A process that runs `serve`."""

    def __init__(self, kind: str, amount: int, layout: int) -> None:
        command = ["torchproof.process.aslr", str(layout), __spec__.name, "--serve"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command, kind, str(amount)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def sample(self) -> list[int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{stats.ROUND_MS}\n")
        self._process.stdin.flush()
        times: list[int] = json.loads(self._process.stdout.readline())
        return times

    def close(self) -> None:
        self._process.communicate()


def repeat(kind: str, amount: int, number: int) -> list[list[list[int]]]:
    """The rounds of each arm; the arms take turns in going first."""
    arms = [Arm(kind, amount, layout=number) for _ in range(ARMS)]
    for arm in arms:
        arm.wait_until_ready()
    rounds: list[list[list[int]]] = [[] for _ in arms]
    for number in range(stats.ROUNDS):
        forth = number % 2 == 0
        for index in range(ARMS) if forth else reversed(range(ARMS)):
            rounds[index].append(arms[index].sample())
    for arm in arms:
        arm.close()
    return rounds


def record(count: int, pause_s: float) -> list[dict[str, object]]:
    amounts = {step: calibrate(*step) for step in STEPS_MS}
    recorded: list[dict[str, object]] = []
    for number in range(count):
        kind, step_ms = step = STEPS_MS[number % len(STEPS_MS)]
        load = os.getloadavg()[0]
        print(f"{number + 1} of {count}: {kind} {step_ms} ms, load {load:.1f}")
        recorded.append(
            {
                "kind": kind,
                "step_ms": step_ms,
                "load": round(load, 1),
                "arms": repeat(kind, amounts[step], number),
            }
        )
        time.sleep(pause_s)
    return recorded


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds in between")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("-o", type=Path, help="the file to write")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve[0], int(arguments.serve[1]))
        return 0
    if arguments.o is None:
        parser.error("-o is missing")
    series = {
        "command": f"{COMMAND} --repeats {arguments.repeats}",
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "unit_ms": 1e-4,
        "repeats": record(arguments.repeats, arguments.pause),
    }
    arguments.o.write_text(json.dumps(series, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
