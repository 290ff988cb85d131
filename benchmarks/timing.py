"""Whether `torchproof bench` measures work of known cost correctly, and what it adds.

    python -m benchmarks.timing [loop|equal|tenth ...] [--quick]

`loop` compares the loop that `bench` times steps with to a bare loop of the same work,
in turns in one process: as a whole, and by the times that it reports. Pairs in which
the process had to yield its core are left out. `equal` and `tenth` are real runs of
`bench`: compiled code that takes as long as eager, and that is 1.10 times as fast. Exit
code 1 when the interval of a ratio is not below its limit, or two verdicts are wrong.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from benchmarks.survey import ROOT, Options, Row, Survey, torchproof

# Of a step of 1 ms: as `bench` reports it, and with all that the loop does around it.
LIMITS = {"reported": 1.01, "whole": 1.02}
STEP_MS = 1.0
BATCH_S = 0.005  # of steps, timed as a whole; short, so that some are undisturbed
PATIENCE_S = 60.0
FEWEST, PAIRS = 20, 200
TRUTH = {"equal": 1.0, "tenth": 1.1}
FIELDS = ("vs_eager", "vs_eager_low", "vs_eager_high", "verdict", "samples", "notes")
# Of the targets, in eager: some 20 ms, of which calling the compiled function takes
# less than a hundredth. A fixed amount: all processes must do the same.
AMOUNT = 44_000

Ours = TypeVar("Ours")
Bare = TypeVar("Bare")


def spin(amount: int) -> None:
    """Takes time in proportion to the amount, in every process the same.

    Loops that make integers do not: whether Python's allocator finds a free block at
    once differs by 15 percent between processes.
    """
    hashlib.pbkdf2_hmac("sha256", b"spin", b"salt", amount)


def calibrate(step_ms: float) -> int:
    """The amount of work that takes so long here, when nothing interrupts it."""
    amount = 1
    while _best_ms(amount) < step_ms / 2:
        amount *= 2
    return max(1, round(amount * step_ms / _best_ms(amount)))


def _best_ms(amount: int) -> float:
    """The shortest of several times: interruptions only make them longer."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        spin(amount)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


# -- targets of bench ------------------------------------------------------------------


def equal() -> tuple[Any, list[tuple[Any, ...]]]:
    """Takes as long compiled as in eager."""
    return _target(compiled_amount=AMOUNT)


def tenth() -> tuple[Any, list[tuple[Any, ...]]]:
    """Is 1.10 times as fast compiled as in eager."""
    return _target(compiled_amount=AMOUNT * 10 // 11)


def _target(compiled_amount: int) -> tuple[Any, list[tuple[Any, ...]]]:
    import torch

    @torch.library.custom_op("torchproof_spin::work", mutates_args=())
    def worked(x: torch.Tensor, amount: int) -> torch.Tensor:
        spin(amount)
        return x.clone()

    @worked.register_fake
    def _(x: torch.Tensor, amount: int) -> torch.Tensor:
        return torch.empty_like(x)

    def step(x: torch.Tensor) -> torch.Tensor:
        amount = compiled_amount if torch.compiler.is_compiling() else AMOUNT
        done: torch.Tensor = worked(x, amount)
        return done

    return step, [(torch.ones(8),)]


# -- rows ------------------------------------------------------------------------------


def measure(name: str, options: Options) -> Row:
    if name == "loop":
        return loop(PAIRS // 2 if options.quick else PAIRS)
    target = f"{ROOT / 'benchmarks' / 'timing.py'}:{name}"
    # One interval in twenty misses the truth: two in a row are a defect.
    runs = 0
    while runs < 2:
        runs += 1
        run, error = torchproof("bench", target, "--strategies", "eager,full")
        if run is None:
            return {"error": error}
        rows = {row["strategy"]: row for row in run["measurements"]}
        row = {key: rows["full"][key] for key in FIELDS} | {"truth": TRUTH[name]}
        if is_right(row):
            break
    return row | {"right": is_right(row), "runs": runs}


def is_right(row: Row) -> bool:
    """The interval holds the truth, and the verdict says so."""
    if row["vs_eager_low"] is None:
        return False
    inside: bool = row["vs_eager_low"] <= row["truth"] <= row["vs_eager_high"]
    expected = "not significant" if row["truth"] == 1.0 else "faster"
    return inside and expected in row["verdict"]


def in_turns(
    ours: Callable[[], Ours], bare: Callable[[], Bare], count: int, patience_s: float
) -> list[tuple[Ours, Bare]]:
    """Pairs of timings in which the process did not have to yield its core.

    They are fewer on a machine that stays busy for as long as `patience_s`.
    """
    from torchproof.measure import profiling

    pairs: list[tuple[Ours, Bare]] = []
    end = time.monotonic() + patience_s
    while len(pairs) < count and time.monotonic() < end:
        before = profiling.context_switches()
        if len(pairs) % 2:
            pair = ours(), bare()
        else:
            bare_first = bare()
            pair = ours(), bare_first
        if profiling.context_switches() == before:
            pairs.append(pair)
    return pairs


def is_open(ratio: Any, limit: float) -> bool:
    """Whether the interval has the limit in it, so that more pairs can decide."""
    return ratio.low is None or ratio.low <= limit < ratio.high


def loop(pairs: int) -> Row:
    """Ratios of undisturbed pairs, of more if an interval has its limit in it."""
    from torchproof.records import stats

    amount = calibrate(STEP_MS)
    worker = _worker(amount)
    count = _timed(worker)[2]
    both: list[tuple[tuple[float, float], float]] = []
    end = time.monotonic() + PATIENCE_S
    while (left_s := end - time.monotonic()) > 0:
        both += in_turns(
            lambda: _timed(worker)[:2], lambda: _bare(amount, count), pairs, left_s
        )
        if len(both) < FEWEST:
            return {"error": f"{len(both)} undisturbed pairs: too few"}
        found = {
            "whole": [[whole_ms] for (whole_ms, _), _ in both],
            "reported": [[reported_ms] for (_, reported_ms), _ in both],
            "bare": [[bare_ms] for _, bare_ms in both],
        }
        ratios = {
            key: stats.compare(found[key], found["bare"], variation=0.0)
            for key in LIMITS
        }
        # A disturbed machine needs more pairs until an interval leaves its limit out.
        if not any(is_open(ratio, LIMITS[key]) for key, ratio in ratios.items()):
            break
    return {
        "pairs": len(found["bare"]),
        "step_ms": stats.summarise(found["bare"]).median,
        "ratio": {
            key: {"value": r.value, "low": r.low, "high": r.high}
            for key, r in ratios.items()
        },
        "limits": LIMITS,
    }


def _worker(amount: int) -> Any:
    """A strategy's process in eager, whose one call is the work."""
    from torchproof.measure import profiling
    from torchproof.measure.specs import EAGER, StrategyJob
    from torchproof.measure.strategy_worker import StrategyWorker
    from torchproof.records.run import Frame
    from torchproof.targets.target import Loaded

    worker = StrategyWorker(StrategyJob(EAGER))
    place = Frame(__file__, 1, "spin")
    worker.loaded = Loaded(spin, [(amount,)], before_call=None, place=place)
    worker.fn, worker.train, worker.device = worker.loaded.fn, False, "cpu"
    worker.clock = profiling.Clock(worker.device)
    return worker


def _timed(worker: Any) -> tuple[float, float, int]:
    """Milliseconds a step, as the whole loop took and as it reports; steps done."""
    begin = time.perf_counter_ns()
    times, _ = worker.timed(BATCH_S)
    whole_ms = (time.perf_counter_ns() - begin) / 1e6
    return whole_ms / len(times), sum(times) / len(times), len(times)


def _bare(amount: int, count: int) -> float:
    """Milliseconds a step of a loop that does nothing else."""
    begin = time.perf_counter_ns()
    for _ in range(count):
        spin(amount)
    return (time.perf_counter_ns() - begin) / 1e6 / count


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        if name == "loop":
            for what, ratio in row["ratio"].items():
                if ratio["high"] > LIMITS[what]:
                    times = f"{ratio['value']:.4f} (up to {ratio['high']:.4f}) times"
                    yield f"a step takes {times} as long ({what})"
        elif not row["right"]:
            yield f"{name}: measured {row['vs_eager']}, truth {row['truth']}"


SURVEY = Survey("timing", lambda options: ("loop", *TRUTH), measure, failures)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
