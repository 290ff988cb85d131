"""Recognises compiled calls that are slower than eager, or no faster."""

from __future__ import annotations

import statistics
import time

import torch

from torchproof.packs.repro.oracles.prelude import NONE, SAME

ROUNDS = 21
ROUND_S = 0.005  # at least this long, by repeating the calls
WARM_UP = 3
LIMIT_S = 20.0
NOTICEABLE = 0.05  # a smaller difference is no slowdown


def run_oracle(program, expected):
    """Expects `what`, "slower" or "no gain", and the `ratio` that was seen."""
    eager = timed_function(program, wrap=False)
    compiled = timed_function(program, wrap=True)
    for run in (eager, compiled):
        for _ in range(WARM_UP):
            run()
    ratios = measure(eager, compiled)
    middle, low, high = interval(ratios)
    numbers = f"eager/compiled is {middle:.2f} ({low:.2f} to {high:.2f})"
    numbers += f" over {len(ratios)} rounds"
    if expected["what"] == "slower":
        if high < 1 and middle <= 1 - NOTICEABLE:
            return SAME, f"compiled code is {1 / middle:.2f} times as slow: {numbers}"
        return NONE, f"compiled code is not slower: {numbers}"
    if high < 1 + NOTICEABLE:
        return SAME, f"compiled code is not faster: {numbers}"
    return NONE, f"compiled code is faster, or may be: {numbers}"


def timed_function(program, *, wrap):
    """Returns a function without arguments that makes all calls."""
    fn, calls = program.build()
    compiled = program.compile(fn) if wrap else fn
    stance = "default" if wrap else "force_eager"

    def run():
        with torch.compiler.set_stance(stance):
            program.call_all(compiled, fn, calls)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    return run


def measure(eager, compiled):
    """Returns eager's time over compiled time per round, taking turns."""
    start = time.perf_counter()
    eager()
    seconds = max(time.perf_counter() - start, 1e-6)
    repeats = max(1, int(ROUND_S / seconds))
    ratios: list[float] = []
    while len(ratios) < ROUNDS and time.perf_counter() - start < LIMIT_S:
        first = len(ratios) % 2
        times = {}
        for number in (first, 1 - first):
            times[number] = seconds_of((eager, compiled)[number], repeats)
        ratios.append(times[0] / times[1])
    return ratios


def seconds_of(run, repeats):
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return time.perf_counter() - start


def interval(ratios):
    """Returns the median and its 95 % interval by order statistics."""
    ordered, count = sorted(ratios), len(ratios)
    cut = max(0, int((count - 1.96 * count**0.5) / 2))
    return statistics.median(ordered), ordered[cut], ordered[count - 1 - cut]
