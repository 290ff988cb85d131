"""The first call of a service: compiled cold, against from a deploy pack.

    python -m benchmarks.warm_start [--rows NAME,...] [--repeat N] [--out FOLDER]
        [--packs FOLDER] [--list]

Every start is a fresh process with empty caches. Its clock runs from a model that is
built, on its device, to the end of the first call: for `cold` that is torch.compile and
the call, for `torchproof` torchproof.compile and the call, for `pack` torchproof.load,
which warms every shape of the pack, and the call. Imports of torch and building the
model are in none of them; what is imported to compile is in all, and `imports` is that
alone.

Each row ends as FOLDER/ROW.json. Starts that are in it are not repeated, so that a
second run goes on where the first ended; packs are kept likewise.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "warm-start"
ARMS = ("cold", "pack", "imports", "torchproof")
_STEPS = "benchmarks/step_targets.py"


@dataclass(frozen=True)
class Row:
    """A target, how it runs, and what share of a cold start is asked for at most."""

    name: str
    target: str
    size: str | None = None
    train: bool = False
    at_most: float = 0.15


ROWS = (
    Row("nanovlm-tiny", "workload:nanovlm", "tiny", at_most=0.25),
    Row("nanovlm-large", "workload:nanovlm", "large"),
    Row("gpt2-inference", f"{_STEPS}:gpt2_inference"),
    Row("gpt2-training", f"{_STEPS}:gpt2_training", train=True),
    Row("nanovlm-large-training", "workload:nanovlm", "large", train=True),
)


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "--start":
        print(json.dumps(start(json.loads(arguments[1]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="nanovlm-tiny")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--packs", type=Path, help="where packs are kept (OUT/packs)")
    parser.add_argument("--arms", default=",".join(ARMS), help="which starts to make")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(row.name for row in ROWS))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.packs or options.out / "packs"
    kept.mkdir(parents=True, exist_ok=True)
    known = {row.name: row for row in ROWS}
    for name in options.rows.split(","):
        file = options.out / f"{name}.json"
        arms = [arm for arm in ARMS if arm in options.arms.split(",")]
        measure(known[name], file, kept / name, options.repeat, arms=arms)
        print(told(json.loads(file.read_text())), flush=True)
    return 0


def measure(
    row: Row, file: Path, pack: Path, repeat: int, *, arms: Sequence[str] = ARMS
) -> None:
    """Makes the pack if there is none, and the starts that are missing."""
    found: dict[str, Any] = {"row": row.name, "at_most": row.at_most, "starts": []}
    if file.exists():
        found = json.loads(file.read_text())
    if "pack" in arms and not pack.exists():
        found["pack_seconds"] = _packed(row, pack)
    for number in range(repeat):
        for arm in arms:
            if any((s["arm"], s["number"]) == (arm, number) for s in found["starts"]):
                continue
            print(f"{row.name}: {arm} {number + 1} of {repeat}", file=sys.stderr)
            begun = _begun(row, pack, arm)
            found["starts"].append({"arm": arm, "number": number, **begun})
            found["ratio"] = ratio(found["starts"], "cold")
            found["ratio_to_torchproof"] = ratio(found["starts"], "torchproof")
            found["ratio_without_imports"] = beyond_imports(found["starts"])
            file.write_text(json.dumps(found, indent=1) + "\n")


def ratio(starts: Sequence[dict[str, Any]], base: str) -> float | None:
    """Of the medians; None before both are measured."""
    times: list[list[float]] = [
        [start["seconds"] for start in starts if start["arm"] == arm]
        for arm in ("pack", base)
    ]
    if not all(times):
        return None
    return statistics.median(times[0]) / statistics.median(times[1])


def beyond_imports(starts: Sequence[dict[str, Any]]) -> float | None:
    """The ratio to cold of what starts take beside importing the compiler."""
    middle = {
        arm: statistics.median(times)
        for arm in ARMS
        if (times := [s["seconds"] for s in starts if s["arm"] == arm])
    }
    if not {"cold", "pack", "imports"} <= middle.keys():
        return None
    pack, cold = (middle[arm] - middle["imports"] for arm in ("pack", "cold"))
    return float(pack / cold)


def told(found: dict[str, Any]) -> str:
    lines = []
    for arm in ARMS:
        starts = [start for start in found["starts"] if start["arm"] == arm]
        seconds = sorted(start["seconds"] for start in starts)
        if seconds:
            graphs = {f"{s['graphs']} of {s['of']} graphs" for s in starts if "of" in s}
            lines.append(
                f"{found['row']:24}{arm:12}{statistics.median(seconds):8.2f} s"
                f" ({seconds[0]:.2f} to {seconds[-1]:.2f}, {len(seconds)} starts)"
                f"  {', '.join(sorted(graphs))}".rstrip()
            )
    share = "-" if found["ratio"] is None else f"{found['ratio']:.3f}"
    lines.append(f"{found['row']:24}pack / cold {share}, at most {found['at_most']}")
    rest = found.get("ratio_without_imports")
    if rest is not None:
        lines.append(f"{found['row']:24}pack / cold {rest:.3f} without the imports")
    return "\n".join(lines)


# -- processes -------------------------------------------------------------------------


def _environment(cache: str) -> dict[str, str]:
    """Empty caches, of torch, of Triton and of the driver."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT)]))
    told = {
        "PYTHONPATH": path,
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "CUDA_CACHE_PATH": f"{cache}/cuda",
    }
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_CACHE_DIR"}
    return {**kept, **told}


def _packed(row: Row, pack: Path) -> float:
    """Seconds that the pack took to be made and tried."""
    given = ["--for", "deploy", "--strategy", "full", "-o", str(pack), "-q"]
    given += ["--size", row.size] if row.size else []
    given += ["--train"] if row.train else []
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "torchproof", "pack", row.target, *given]
        subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(cache),
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return time.perf_counter() - begin


def _begun(row: Row, pack: Path, arm: str) -> dict[str, Any]:
    told = json.dumps({"arm": arm, "pack": str(pack), **vars(row)})
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.warm_start", "--start", told],
            cwd=ROOT,
            env=_environment(cache),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def start(told: dict[str, Any]) -> dict[str, Any]:
    """One start, in this process."""
    import torch

    from torchproof.targets import Job, calls, parse
    from torchproof.torch_private import environment

    target = parse(told["target"])
    job = calls.resolved(Job(target, size=told["size"], train=told["train"]))
    loaded = calls.fresh(job)
    call, train = loaded.calls[0], told["train"]
    if told["arm"] == "imports":
        found = {"seconds": imported(), "size": job.size}
        return found | {"environment": environment.describe(job)}
    with torch.set_grad_enabled(train):
        begin = time.perf_counter()
        model = _prepared(told, loaded.fn)
        ready = time.perf_counter() - begin
        calls.invoke(model, call, train=train)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    found = {"seconds": seconds, "ready_s": ready, "size": job.size}
    if told["arm"] == "pack":
        import torchproof

        report = torchproof.status(model).pack or {}
        found |= {k: report.get(k) for k in ("graphs", "of", "misses", "why_not")}
    return found | {"environment": environment.describe(job)}


def imported() -> float:
    """Seconds that torch.compile takes to import itself and Inductor."""
    import torch

    begin = time.perf_counter()
    torch.compile(torch.relu)
    importlib.import_module("torch._inductor.compile_fx")
    return time.perf_counter() - begin


def _prepared(told: dict[str, Any], fn: Any) -> Any:
    import torch

    if told["arm"] == "cold":
        return torch.compile(fn)
    import torchproof

    if told["arm"] == "torchproof":
        return torchproof.compile(fn, strategy="full")
    return torchproof.load(told["pack"], fn)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
