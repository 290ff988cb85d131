"""Whole steps in CUDA graphs against torch.compile's own modes, row by row.

    python -m benchmarks.whole_step [--rows NAME,...] [--plates plain,modes]
        [--out FOLDER] [--seconds N] [--slots N] [--tuned] [--again] [--list]

A plate is a set of arms that are timed side by side: `plain` has eager,
reduce-overhead and the strategies with a graph; `modes` has the other modes of
torch.compile, and `eager+graph` again, by which drift between the two shows. Each ends
as one run, FOLDER/ROW.json and FOLDER/ROW-modes.json; one that is there is not
measured again, so that a second start goes on where the first ended.

First calls go on in several slots at once, each with cores of its own; so all are as
cold and as crowded, and longer than with the whole machine. When all arms of a few
rows have begun, they are timed one after the other while nothing else runs. Answers
are judged after that.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.side_by_side import Arms, Step

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "h200" / "whole-step"
TUNED = "full+graph:max-autotune-no-cudagraphs"
GRAPHS = ("full+graph", "regional+graph", TUNED)
MODES = ("full", "full:reduce-overhead", "full:max-autotune")
PLATES = {
    "plain": ("eager", "full:reduce-overhead", "eager+graph", *GRAPHS[:2]),
    "modes": ("eager", "eager+graph", "full", "full:max-autotune"),
}
# The most telling first. Seconds as plain torch takes them on an H200.
STEPS = (
    Step("gpt2-training", "GPT-2 124M, training 8x128", True, 160),
    Step("gpt2-inference", "GPT-2 124M, inference 1x128", False, 110),
    Step("decoder-training-small", "decoder 24x512, training 1x64", True, 130),
    Step("llama-inference", "Llama 16x1024, inference 1x128", False, 125),
    Step("arrcoc-inference", "ARR-COC, inference, 1 image", False, 110),
    Step("vit-inference", "ViT-B/16, inference 8x224", False, 120),
    Step("decoder-training", "decoder 24x512, training 8x512", True, 130),
    Step("bert-training", "BERT base, training 8x128", True, 160),
    Step("arrcoc-scorers", "ARR-COC scorers, inference, 32 images", False, 80),
    Step("decoder-inference-small", "decoder 24x512, inference 1x64", False, 80),
    Step("nanovlm-training", "nanovlm large, training 4x128", True, 170),
    Step("nanovlm-inference", "nanovlm large, inference 4x128", False, 130),
    Step("decoder-inference", "decoder 24x512, inference 8x512", False, 80),
    Step("megacontext-training", "megacontext base, training 1x2048", True, 160),
)
TOGETHER = 4  # rows that wait in memory for each other
TIMING_S = 2.0  # of an arm
WEIGHT = {"plain": 1.0, "modes": 1.3}  # of the seconds to begin
# Longest first, so that slots end together.
LONGEST = ("full:max-autotune", TUNED, "full+graph", "full:reduce-overhead", "full")


class Work(NamedTuple):
    step: Step
    plate: str

    def path(self, folder: Path) -> Path:
        more = "" if self.plate == "plain" else f"-{self.plate}"
        return folder / f"{self.step.name}{more}.json"


# -- slots -----------------------------------------------------------------------------


class Slots:
    """Threads that start processes, each thread on cores of its own."""

    def __init__(self, count: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.count, self.cores_each = count, max(1, (len(cores) - 1) // count)
        places = range(count * self.cores_each)
        taken = [cores[place % len(cores)] for place in places]
        self._shares = itertools.cycle(
            set(taken[first : first + self.cores_each])
            for first in places[:: self.cores_each]
        )
        self._rest = set(cores) - set(taken) or set(cores)

    def pool(self) -> ThreadPoolExecutor:
        def take_cores() -> None:
            os.sched_setaffinity(0, next(self._shares))

        return ThreadPoolExecutor(self.count, initializer=take_cores)

    def rest(self) -> ThreadPoolExecutor:
        """Threads whose processes keep off the slots' cores."""
        return ThreadPoolExecutor(
            TOGETHER, initializer=lambda: os.sched_setaffinity(0, self._rest)
        )


# -- a few rows at a time --------------------------------------------------------------


class Group:
    """Some rows, from their first processes to their files."""

    def __init__(self, works: Sequence[Work], options: argparse.Namespace) -> None:
        self.options, self.works = options, works
        self._scratch = tempfile.TemporaryDirectory(prefix="whole-step-")
        folder = Path(self._scratch.name)
        self.arms = [
            Arms(w.step, arms_of(w.plate, options), folder, limit_s=options.limit)
            for w in works
        ]

    def begin(
        self, pool: ThreadPoolExecutor, rest: ThreadPoolExecutor
    ) -> list[Future[None]]:
        """First calls, side by side with others; and what to judge answers by."""
        begun = [rest.submit(arms.refer) for arms in self.arms]
        pairs = [(state, arms) for arms in self.arms for state in arms.states]
        pairs.sort(key=lambda pair: _place(pair[0].spec.strategy.name))
        return begun + [pool.submit(arms.begin, state) for state, arms in pairs]

    def time(self) -> None:
        """Every arm alone."""
        for arms in self.arms:
            say(f"{arms.step.name}: timing")
            arms.time()
            for kind in (MODES, GRAPHS):
                if state := arms.fastest(kind):
                    arms.examine(state, alone=True)

    def finish(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """What needs no quiet."""
        pairs = [(state, arms) for arms in self.arms for state in arms.running]
        return [pool.submit(arms.finish, state) for state, arms in pairs]

    def write(self, slots: Slots) -> None:
        for work, arms in zip(self.works, self.arms, strict=True):
            _write(work.path(self.options.out), arms, slots)

    def close(self) -> None:
        for arms in self.arms:
            arms.close()
        self._scratch.cleanup()


def _place(strategy: str) -> int:
    return LONGEST.index(strategy) if strategy in LONGEST else len(LONGEST)


def measure(every: Iterable[Sequence[Work]], options: argparse.Namespace) -> None:
    """One group is finished while the next one begins."""
    slots = Slots(options.slots)
    with contextlib.ExitStack() as stack, slots.pool() as pool, slots.rest() as rest:
        last: Group | None = None
        for works in every:
            group = Group(works, options)
            stack.callback(group.close)
            ending = last.finish(pool) if last else []
            begun = group.begin(pool, rest)
            _end(last, ending, slots)
            _await(begun)
            group.time()
            group.write(slots)  # what comes later only adds to it
            last = group
        _end(last, last.finish(pool) if last else [], slots)


def _end(group: Group | None, ending: list[Future[None]], slots: Slots) -> None:
    if group is not None:
        _await(ending)
        group.write(slots)
        group.close()


def _await(waiting: Iterable[Future[None]]) -> None:
    for future in waiting:
        future.result()


def _write(path: Path, arms: Arms, slots: Slots) -> None:
    told = {
        "first_call": "cold; others began at the same time, on other cores",
        "slots": slots.count,
        "cores_each": slots.cores_each,
        "timing": "alone on the machine, arms of a plate in turn",
    }
    found = arms.run(" ".join(["python -m benchmarks.whole_step", *sys.argv[1:]]), told)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found.to_json(), indent=1, default=str) + "\n")
    for row in found.measurements:
        took = "-" if row.median_ms is None else f"{row.median_ms:.3f} ms"
        first = "-" if row.first_call_s is None else f"{row.first_call_s:.1f} s"
        judged = (row.numerics or {}).get("verdict", "-")
        why = row.error or "; ".join(row.notes)
        say(f"{path.stem:26} {row.strategy:28} {took:>10} {first:>8} {judged} {why}")


def arms_of(plate: str, options: argparse.Namespace) -> tuple[str, ...]:
    if options.arms:
        return tuple(options.arms.split(","))
    return (
        (*PLATES[plate], TUNED) if plate == "modes" and options.tuned else PLATES[plate]
    )


# -- the order of things ---------------------------------------------------------------


def groups(wanted: Sequence[Work]) -> Iterator[list[Work]]:
    """A few rows of one plate each."""
    for _, plate in itertools.groupby(wanted, lambda work: work.plate):
        rows = list(plate)
        for first in range(0, len(rows), TOGETHER):
            yield rows[first : first + TOGETHER]


def expected_s(group: Sequence[Work], slots: int) -> float:
    """Beginning in the slots, then some seconds of timing for each arm."""
    begin = sum(work.step.slot_s * WEIGHT[work.plate] for work in group) / slots
    return begin + TIMING_S * sum(len(PLATES[work.plate]) for work in group)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = [step.name for step in STEPS]
    parser.add_argument("--rows", default=",".join(names), help="names, with commas")
    parser.add_argument("--plates", default=",".join(PLATES))
    parser.add_argument("--arms", help="strategies, instead of a plate's own")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a folder")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--limit", type=float, default=150.0, help="s, of one answer")
    parser.add_argument("--slots", type=int, default=7)
    parser.add_argument("--tuned", action="store_true", help=f"with {TUNED}")
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--list", action="store_true", help="what would be measured")
    options = parser.parse_args(arguments)
    for chosen, known in ((options.rows, names), (options.plates, list(PLATES))):
        if unknown := set(chosen.split(",")) - set(known):
            parser.error(
                f"no {', '.join(sorted(unknown))}: there are {', '.join(known)}"
            )
    return options


def wanted(options: argparse.Namespace) -> list[Work]:
    """Every row of every plate, but for what is there."""
    rows, plates = options.rows.split(","), options.plates.split(",")
    every = [
        Work(step, plate)
        for plate in PLATES
        for step in STEPS
        if plate in plates and step.name in rows
    ]
    return [w for w in every if options.again or not w.path(options.out).exists()]


def in_time(options: argparse.Namespace) -> Iterator[list[Work]]:
    """Groups as long as there is time for the next one."""
    begin = time.monotonic()
    for group in groups(wanted(options)):
        names = ", ".join(f"{work.step.name} ({work.plate})" for work in group)
        expected = expected_s(group, options.slots)
        left = options.seconds - (time.monotonic() - begin)
        say(f"{names}: about {expected:.0f} s")
        if expected > left:
            say(f"{left:.0f} s are left: it ends here")
            return
        yield group


def main() -> int:
    options = options_of()
    os.chdir(ROOT)
    if options.list:
        list(in_time(options))
    else:
        measure(in_time(options), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
