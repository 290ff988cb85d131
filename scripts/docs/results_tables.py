"""The tables of docs/reference/results.md, from what is kept under benchmarks/results.

In come the numbers of the programs under benchmarks/. Out go Markdown tables, by the
name of the part they fill. `published_tables` has those of step times.
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

from torchproof.records.run import Run
from torchproof.report import markdown, numbers

KEPT = ROOT / "benchmarks" / "results"


def table(header: str, rows: Iterator[tuple[str, ...]]) -> str:
    """`header` names the columns, separated by bars."""
    return markdown.table([name.strip() for name in header.split("|")], rows)


def command_of(run: Run) -> str:
    """The command that repeats a run; older runs name a flag that has been renamed."""
    return run.command.partition(" --format")[0].replace("--sittings", "--repeats")


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


def graph_replays() -> str:
    """Ten thousand replays: how many answers were compared, and how many were stale."""
    header = "step | calls | replays | recordings | answers compared"
    header += " | kept and compared later | stale | largest error"
    return table(header, _graphs())


def _graphs() -> Iterator[tuple[str, ...]]:
    path = KEPT / "h200" / "replays.json"
    for part in json.loads(path.read_text(encoding="utf-8"))["parts"]:
        counts = ("calls", "replays", "recordings", "compared", "kept", "stale")
        yield (
            "training" if part["train"] else "inference",
            *(str(part[name]) for name in counts),
            f"{part['largest_error']:.1e}",
        )


TABLES: dict[str, Callable[[], str]] = {
    "stale answers": graph_replays,
    "harness": harness,
    "replays": replays,
    "known costs": known_costs,
}
