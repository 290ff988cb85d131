"""The tables of docs/reference/results.md, from what is kept under benchmarks/results.

In come runs that `torchproof bench` wrote, and the numbers of the programs under
benchmarks/. Out go Markdown tables, by the name of the part they fill.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from test_stats import REPLAYS, SLICE_MS, read, replay

from torchproof.measure.comparison.metrics import ratio_text
from torchproof.measure.comparison.ratios import side_by_side
from torchproof.records import store
from torchproof.records.run import Measurement, Run
from torchproof.report import bench_sections, markdown, numbers

KEPT = ROOT / "benchmarks" / "results"
# Of the machine with the GPU, and what stands in the tables for it.
ON_GPU = {
    "gpt2-inference": "GPT-2 124M, inference 1x128",
    "gpt2-training": "GPT-2 124M, training 8x128",
    "decoder-inference": "decoder 24x512, inference 8x512",
    "nanovlm-debug": "nanovlm debug, inference, batch 8",
    "arrcoc-scorers": "ARR-COC scorers, inference",
}
NEAR = 0.15  # of a published figure
PHASES = ("dynamo", "aot_autograd", "inductor", "triton")


def gpu_run(name: str) -> Run:
    return store.read(KEPT / "h200" / f"{name}.json")


def table(header: str, rows: Iterator[tuple[str, ...]]) -> str:
    """`header` names the columns, separated by bars."""
    return markdown.table([name.strip() for name in header.split("|")], rows)


def commands() -> str:
    return table("what | command", _commands())


def command_of(run: Run) -> str:
    """The command that repeats a run; older runs name a flag that has been renamed."""
    return run.command.partition(" --format")[0].replace("--sittings", "--repeats")


def _commands() -> Iterator[tuple[str, ...]]:
    for name, title in ON_GPU.items():
        yield title, f"`{command_of(gpu_run(name))}`"


# -- eager against compiled ------------------------------------------------------------


def speed() -> str:
    """Every strategy of the runs on the GPU that changes nothing else."""
    header = "what | strategy | step | interval | vs eager | first call | break-even"
    return table(f"{header} | numerics", _speed())


def _speed() -> Iterator[tuple[str, ...]]:
    for name, title in ON_GPU.items():
        for row in _plain(gpu_run(name)):
            gain = numbers.times(row.vs_eager, row.vs_eager_low, row.vs_eager_high)
            yield (
                title,
                row.strategy,
                numbers.milliseconds(row.median_ms),
                numbers.interval(row.low_ms, row.high_ms),
                "reference" if row.strategy == "eager" else gain,
                numbers.seconds(row.first_call_s),
                row.break_even or numbers.UNKNOWN,
                bench_sections.numerics(row),
            )


def _plain(run: Run) -> list[Measurement]:
    """The rows of whole strategies, with all their guards."""
    return [row for row in run.measurements if "guards" not in row.variant]


def memory() -> str:
    header = "what | strategy | allocated | reserved | of the process | kernels a step"
    return table(f"{header} | share of the step they fill", _memory())


def _memory() -> Iterator[tuple[str, ...]]:
    for name, title in ON_GPU.items():
        for row in _plain(gpu_run(name)):
            held, kernels = row.memory or {}, row.kernels or {}
            share = kernels.get("busy_share")
            yield (
                title,
                row.strategy,
                numbers.size(held.get("cuda_allocated")),
                numbers.size(held.get("cuda_reserved")),
                numbers.size(held.get("cuda_process")),
                numbers.count(kernels.get("per_step")),
                numbers.UNKNOWN if share is None else f"{share:.0%}",
            )


# -- published figures -----------------------------------------------------------------


def published() -> str:
    header = "what | strategy | published | here | here / published"
    return table(f"{header} | within {NEAR:.0%}", _published())


def _published() -> Iterator[tuple[str, ...]]:
    told = _told()
    for name, title in ON_GPU.items():
        known = told.get(name, {}).get("step_ms", {})
        for row in _plain(gpu_run(name)):
            if row.strategy in known and row.median_ms:
                yield title, row.strategy, *_beside(row.median_ms, known[row.strategy])


def _beside(here_ms: float, told: float | list[float]) -> tuple[str, ...]:
    """Against the nearer end of a range, 1 within it."""
    low, high = told if isinstance(told, list) else (told, told)
    ratio = here_ms / min(max(here_ms, low), high)
    shown = f"{low:g} ms" if low == high else f"{low:g} to {high:g} ms"
    near = 1 - NEAR <= ratio <= 1 + NEAR
    here = numbers.milliseconds(here_ms)
    return shown, here, f"{ratio:.2f}", "yes" if near else "no"


def kernels() -> str:
    """What the device does in a step, whatever the host."""
    header = "what | strategy | kernels, published | here | they take, published"
    return table(f"{header} | here", _kernels())


def _kernels() -> Iterator[tuple[str, ...]]:
    told = _told()
    for name, title in ON_GPU.items():
        known = told.get(name, {}).get("kernels", {})
        for row in _plain(gpu_run(name)):
            if row.strategy in known and row.kernels:
                count, ms = known[row.strategy]
                here = numbers.count(row.kernels["per_step"])
                took = numbers.milliseconds(row.kernels["kernel_ms"])
                yield title, row.strategy, str(count), here, f"{ms:g} ms", took


def _told() -> dict[str, Any]:
    path = KEPT / "h200" / "published.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


# -- first calls, guards, modes, settings ----------------------------------------------


def latency() -> str:
    """Full against regional, in the same mode."""
    header = "strategy | first call | against full | Dynamo | AOTAutograd | Inductor"
    return table(f"{header} | Triton | hits, misses | artifacts", _latency())


def _latency() -> Iterator[tuple[str, ...]]:
    found = {row.strategy: row for row in gpu_run("gpt2-inference").measurements}
    full = found["full"]
    for row in (full, found["regional"]):
        start, spent = row.start or {}, row.compile_s or {}
        assert row.first_call_s and full.first_call_s and row.counts
        ratio = ratio_text(full.first_call_s / row.first_call_s, "sooner", "later")
        yield (
            row.strategy,
            numbers.seconds(row.first_call_s),
            "reference" if row is full else ratio,
            *(numbers.seconds(spent.get(phase)) for phase in PHASES),
            f"{start['hits']}, {start['misses']}",
            numbers.count(row.counts["artifacts"]),
        )


def guards() -> str:
    """All ways to check guards, from all of them to almost none."""
    header = "method | guards a call | of the step | whole step | stops checking"
    return table(header, _guards())


def _guards() -> Iterator[tuple[str, ...]]:
    rows = [r for r in gpu_run("nanovlm-debug").measurements if r.strategy == "full"]
    base = next(row for row in rows if "guards" not in row.variant)
    for row in rows:
        cost, ratio = row.guards or {}, side_by_side(base, row)
        assert ratio is not None
        clear = ratio.verdict != "not significant"
        told = ratio_text(ratio.value) if clear else ratio.verdict
        yield (
            "all guards" if row is base else f"`{row.variant['guards']}`",
            f"{numbers.plain(cost.get('lookup_us'))} us",
            f"{cost['share']:.1%}",
            "reference" if row is base else told,
            _stops(row, cost.get("not_checked")),
        )


def _stops(row: Measurement, not_checked: dict[str, int] | None) -> str:
    from torchproof.measure.guard_filters import METHODS, STANCE

    if "guards" not in row.variant:
        return "nothing"
    method = str(row.variant["guards"])
    if method == STANCE or not not_checked:
        return METHODS[method]
    return f"{METHODS[method]}: {sum(not_checked.values())} guards"


def settings() -> str:
    """Each setting of Inductor by itself, all together, and the control."""
    [found] = [
        part
        for part in bench_sections.variants(store.read(KEPT / "ablation-cpu.json"))
        if "setting" in part.header
    ]
    return markdown.table(found.header, found.rows)


# -- what the measuring itself is worth ------------------------------------------------


def harness() -> str:
    rows = [json.loads((KEPT / "harness-cpu.json").read_text(encoding="utf-8"))]
    header = "machine | bare step | pairs | loop as a whole | as reported | limit"
    return table(header, map(_harness, rows))


def _harness(kept: dict[str, Any]) -> tuple[str, ...]:
    ratios = [
        f"{each['value']:.4f} ({each['low']:.4f} to {each['high']:.4f})"
        for each in (kept["ratio"]["whole"], kept["ratio"]["reported"])
    ]
    step = numbers.milliseconds(kept["step_ms"])
    return _machine(kept), step, str(kept["pairs"]), *ratios, f"{kept['limit']:g}"


def _machine(kept: dict[str, Any]) -> str:
    return f"{kept['machine']['arch']}, {kept['machine']['cores']} cores"


def replays() -> str:
    """Recorded timings, replayed: how often a verdict is right."""
    header = "truth | replays | faster | slower | not significant"
    return table(header, _replays())


def _replays() -> Iterator[tuple[str, ...]]:
    recorded = read(lambda step_ms: step_ms < SLICE_MS)
    for truth, factor in (("equal", 1.0), ("1.10x slower", 1.1)):
        said = [replay(recorded, n, slower=factor).verdict for n in range(REPLAYS)]
        counts = [said.count(word) for word in ("faster", "slower", "not significant")]
        yield truth, str(REPLAYS), *map(str, counts)


def known_costs() -> str:
    header = "machine | work | truth | measured | verdict"
    return table(header, _known_costs())


def _known_costs() -> Iterator[tuple[str, ...]]:
    for path in sorted(KEPT.glob("known-costs-*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        for name, row in kept["rows"].items():
            measured = (row["vs_eager"], row["vs_eager_low"], row["vs_eager_high"])
            told = numbers.times(*measured)
            yield _machine(kept), name, f"{row['truth']:.2f}x", told, row["verdict"]


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "speed": speed,
    "memory": memory,
    "published": published,
    "kernels": kernels,
    "latency": latency,
    "guards": guards,
    "settings": settings,
    "harness": harness,
    "replays": replays,
    "known costs": known_costs,
}
