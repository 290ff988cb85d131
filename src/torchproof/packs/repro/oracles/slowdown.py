"""Compiled steps that take longer than eager's, or are no faster."""

from __future__ import annotations

import statistics
import time

import torch

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    call_all,
    compiled,
    failure_in_eager,
    made,
    otherwise,
)

ROUNDS, LEAST_S, WARM_UP, LIMIT_S = 21, 0.005, 3, 20.0
NOTICEABLE = 0.05  # slower by less is no slowdown


def run_oracle(make, settings, expected, before_call=None):
    """Expected: `what`, "slower" or "no gain", and the `ratio` that was seen."""
    own = failure_in_eager(make, settings, before_call)
    if own is not None:
        return OTHER, f"it fails in eager: {own}"
    try:
        arms = [arm(make, settings, before_call, wrap) for wrap in (False, True)]
        for run in arms:
            for _ in range(WARM_UP):
                run()
    except Exception as error:
        return otherwise(error, make, settings, before_call)
    ratios = measured(*arms)
    middle, low, high = interval(ratios)
    told = f"eager/compiled is {middle:.2f} ({low:.2f} to {high:.2f})"
    told += f" over {len(ratios)} rounds"
    if expected["what"] == "slower":
        if high < 1 and middle <= 1 - NOTICEABLE:
            return SAME, f"compiled is {1 / middle:.2f} times as slow: {told}"
        return NONE, f"compiled is not slower: {told}"
    if high < 1 + NOTICEABLE:
        return SAME, f"compiling gains nothing: {told}"
    return NONE, f"compiling gains, or may gain: {told}"


def arm(make, settings, before_call, wrap):
    """All calls of it as one function without arguments."""
    fn, calls = made(make, settings)
    called = compiled(fn, settings) if wrap else fn
    stance = "default" if wrap else "force_eager"

    def run():
        with torch.compiler.set_stance(stance):
            call_all(called, fn, calls, settings, before_call=before_call)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    return run


def measured(eager, other):
    """Eager's time over the other's, round by round, in turns."""
    began = time.perf_counter()
    eager()
    each = max(time.perf_counter() - began, 1e-6)
    repeats = max(1, int(LEAST_S / each))
    ratios: list[float] = []
    while len(ratios) < ROUNDS and time.perf_counter() - began < LIMIT_S:
        first = len(ratios) % 2
        times = {}
        for number in (first, 1 - first):
            times[number] = timed((eager, other)[number], repeats)
        ratios.append(times[0] / times[1])
    return ratios


def timed(run, repeats):
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    return time.perf_counter() - began


def interval(ratios):
    """The median, and its 95 % interval by order statistics."""
    ordered, count = sorted(ratios), len(ratios)
    cut = max(0, int((count - 1.96 * count**0.5) / 2))
    return statistics.median(ordered), ordered[cut], ordered[count - 1 - cut]
