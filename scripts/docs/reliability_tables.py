"""The tables of docs/reference/reliability.md, read from benchmarks/results."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchproof.report import markdown

KEPT = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def faults() -> str:
    return _faults("reliability-cpu.json")


def gpu_faults() -> str:
    return _faults("reliability-cuda.json")


def _faults(name: str) -> str:
    """A row for each fault, a column for each situation."""
    kept = _kept(name)
    cells = kept["cells"]
    columns = list(dict.fromkeys(cell["situation"] for cell in cells))
    found = {(cell["fault"], cell["situation"]): _cell(cell) for cell in cells}
    rows = (
        (fault, *(found.get((fault, column), "-") for column in columns))
        for fault in dict.fromkeys(cell["fault"] for cell in cells)
    )
    counts = Counter(cell["commit"] for cell in cells if cell["wrong"] is not None)
    commits = ", ".join(f"{count} at {commit}" for commit, count in counts.items())
    passed = sum(cell["wrong"] == [] for cell in cells)
    failed = sum(bool(cell["wrong"]) for cell in cells)
    machine = kept["machine"]
    said = (
        f"Of {len(cells)} fault/scenario pairs, {passed} pass, {failed} fail,"
        f" {sum(cell['wrong'] is None for cell in cells)} were not run. Commits:"
        f" {commits} (torch {kept['torch']}, {_device(machine)}, {machine['arch']})."
        " Seconds are those of the call with the fault."
    )
    table = markdown.table(["fault", *columns], rows)
    return "\n\n".join([said, table, *_failures(cells)])


def _failures(cells: list[dict[str, Any]]) -> list[str]:
    """What each pair that fails recorded."""
    wrong = [
        f"- {cell['fault']} / {cell['situation']}: {first_line(reason)}"
        for cell in cells
        for reason in cell["wrong"] or ()
    ]
    return ["Recorded of the pairs that fail:", "\n".join(wrong)] if wrong else []


def first_line(text: str) -> str:
    """The start of a recorded reason; the rest of it is the whole status."""
    return text.partition("\n")[0].partition(": Model: ")[0]


def _cell(cell: dict[str, Any]) -> str:
    if cell["wrong"] is None:
        return "not run"
    seconds = cell["seconds"]
    took = "" if seconds is None else f" {seconds:.1f} s"
    if "the fault was never reached" in cell["wrong"]:
        return f"**not reached**{took}"
    return f"**fails**{took}" if cell["wrong"] else f"ok{took}"


def _device(machine: dict[str, Any]) -> str:
    return str(machine.get("gpu") or "CPU")


def soak() -> str:
    return _soak_table("soak-cpu.json")


def gpu_soak() -> str:
    return _soak_table("soak-cuda.json")


def _soak_table(name: str) -> str:
    kept = _kept(name)
    machine = kept["machine"]
    said = (
        f"Commit {kept['commit']} (torch {kept['torch']}, {_device(machine)},"
        f" {machine['arch']}, {machine['cores']} cores)."
    )
    if not kept.get("ended", True):
        said += " The run was stopped early."
    table = markdown.table(["", *kept["soaks"]], _soak(list(kept["soaks"].values())))
    return f"{said}\n\n{table}"


def _soak(soaks: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield "calls", *(f"{one['calls']:,}" for one in soaks)
    yield "wrong answers", *(str(len(one["wrong"])) for one in soaks)
    yield "compiled calls", *(f"{one['compiled_calls']:,}" for one in soaks)
    yield "compilations", *(f"{one['compilations']:,}" for one in soaks)
    for what in ("changes", "faults", "fallbacks"):
        yield what, *(_counts(one[what]) for one in soaks)
    halves = [one["held"] for one in soaks]
    yield (
        "memory, MiB",
        *(
            " -> ".join(f"{half['memory_bytes'] / 2**20:.0f}" for half in both)
            for both in halves
        ),
    )
    if all(half.get("device_bytes") is not None for both in halves for half in both):
        yield (
            "device memory, MiB",
            *(
                " -> ".join(f"{half['device_bytes'] / 2**20:.0f}" for half in both)
                for both in halves
            ),
        )
    for what in ("threads", "processes", "files"):
        yield what, *(" -> ".join(str(half[what]) for half in both) for both in halves)
    yield "seconds", *(f"{one['seconds']:.0f}" for one in soaks)


def state() -> str:
    """A row for each way to run a program; what became of its calls."""
    kept = _kept("fuzz-state-cpu.json")
    header = ["run by", "programs", "calls", "changes", "replayed or compiled"]
    header += ["recordings or compilations", "differ from eager"]
    rows = (_state(name, row) for name, row in kept["subjects"].items())
    return markdown.table(header, rows)


def _state(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    counts = row["counts"]
    fast = counts.get("replays", counts.get("compiled", 0))
    made = counts.get("recordings", counts.get("compilations", 0))
    numbers = (row["programs"], row["calls"], row["changes"])
    share = f"{fast / row['calls']:.0%}"
    shown = (f"{number:,}" for number in numbers)
    return f"`{name}`", *shown, share, f"{made:,}", str(len(row["failures"]))


def state_limits() -> str:
    """What random programs leave out, since it is known to differ."""
    path = KEPT.parent.parent / "tests" / "state_fuzz" / "limits.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = (
        (name, f"`torchproof.{subject}`", why)
        for subject in ("compile", "graph")
        for name, why in table[subject].items()
    )
    return markdown.table(["the step reads", "under", "why the result differs"], rows)


def calls() -> str:
    """What a call adds, by what is called and by backend."""
    header = ["call", "torch.compile, us", "added, us (processes)"]
    header += ["added per compiled callable, us", "pairs"]
    rows = (row for path in KEPT.glob("call-overhead-*.json") for row in _calls(path))
    return markdown.table(header, rows)


def _calls(path: Path) -> Iterator[tuple[str, ...]]:
    for name, row in _kept(path.name)["calls"].items():
        added = row["added_us"]
        spread = f"{added['low_process']:.1f} to {added['high_process']:.1f}"
        yield (
            name,
            f"{row['bare_us']:.1f}",
            f"{added['quiet']:.1f} ({spread})",
            f"{row['per_callable_us']:.1f}",
            str(row["pairs"]),
        )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _kept(name: str) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((KEPT / name).read_text())
    return kept


def files() -> str:
    """What a fuzzer of file formats tried, and what it found."""
    kept = _kept("fuzz-files.json")
    limits = kept["limits"]
    said = (
        f"Limits of a case: {limits['cpu_s']:g} s of CPU time,"
        f" {limits['blocked_s']:g} s without any, {limits['memory'] >> 20} MiB of"
        f" memory, {limits['file'] >> 20} MiB per file. Python {kept['python']},"
        f" {kept['machine']['arch']}."
    )
    header = ["format", "mutated files", "calls", "accepted", "refused", "findings"]
    keys = ("files", "calls", "accepted", "refused", "findings")
    rows = [
        (name, *(f"{one[key]:,}" for key in keys), one["commit"])
        for name, one in kept["formats"].items()
    ]
    return f"{said}\n\n{markdown.table([*header, 'commit'], rows)}"


TABLES: dict[str, Callable[[], str]] = {
    "faults": faults,
    "GPU faults": gpu_faults,
    "soak": soak,
    "GPU soak": gpu_soak,
    "files": files,
    "state": state,
    "state limits": state_limits,
    "calls": calls,
}
