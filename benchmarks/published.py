"""Measures the rows that are published, each with one `torchproof bench`.

    python -m benchmarks.published [--rows NAME,...] [--out FOLDER] [--kept FOLDER]
        [--seconds N] [--again] [--list]

Every strategy of a row runs in five processes. A row ends as FOLDER/ROW.json, the run
as `bench` saved it. A row whose run lies in FOLDER or in `--kept` is not measured
again, so that a second start continues where the first one stopped. The most important
rows come first. A row begins only if `--seconds` leave time for it, and one that does
not end in time is stopped and leaves no file.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "published"
PROCESSES = 5  # of each strategy; fewer are not published
_TARGETS = "benchmarks/step_targets.py"
_MODES = ("full", "full:reduce-overhead")
_END_S = 10.0  # to stop a run that does not end in time


@dataclass(frozen=True)
class Row:
    """A step of the published tables. `expected_s`: what its run takes."""

    name: str
    title: str
    expected_s: float
    strategies: tuple[str, ...] = (*_MODES, "full+graph")
    train: bool = False
    device: str = "cuda"
    target: str = ""  # default: the factory of this name

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of torchproof."""
        factory = self.name.replace("-", "_")
        return (
            *("bench", self.target or f"{_TARGETS}:{factory}"),
            *("--device", self.device) * bool(self.target),
            *("--strategies", ",".join(self.strategies)),
            *("--train",) * self.train,
            *("--repeats", str(PROCESSES), "--steps-only"),
        )


# On one H200 with 16 cores; the last one runs on the CPU of any machine.
ROWS = (
    Row("llama-inference", "Llama 16x1024, inference 1x128", 180),
    Row("gpt2-training", "GPT-2 124M, training 8x128", 280, train=True),
    Row("vit-inference", "ViT-B/16, inference 8x224", 165),
    Row("gpt2-inference", "GPT-2 124M, inference 1x128", 170),
    Row("nanovlm-inference", "nanovlm large, inference 4x128", 200),
    Row("decoder-training-small", "decoder 24x512, training 1x64", 200, train=True),
    Row(
        "gpt-cpu",
        "gpt tiny, inference",
        100,
        strategies=_MODES[:1],
        device="cpu",
        target="workload:gpt",
    ),
)


def measure(row: Row, folder: Path, limit_s: float) -> bool:
    """Whether the run ended well, and in time."""
    part, path = folder / f"{row.name}.part", folder / f"{row.name}.json"
    part.unlink(missing_ok=True)
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    # The run records its command, which must not name a folder of this machine.
    with part.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "torchproof", *row.command, "--format", "json"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=output,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = _stopped(process)
    if code == 0:
        part.replace(path)
    part.unlink(missing_ok=True)
    return code == 0


def _stopped(process: subprocess.Popen[bytes]) -> int:
    """Interrupts a run, which ends its own processes then."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(_END_S) or 130
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def waiting(options: argparse.Namespace) -> Iterator[Row]:
    """The rows to measure, in their order."""
    names = options.rows.split(",") if options.rows else [row.name for row in ROWS]
    folders = [] if options.again else [options.out, options.kept]
    for row in ROWS:
        paths = [folder / f"{row.name}.json" for folder in folders]
        if row.name in names and not any(path.is_file() for path in paths):
            yield row


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", help="names, with commas")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a folder")
    parser.add_argument(
        "--kept", type=Path, default=RESULTS, help="of an earlier start"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of all")
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--list", action="store_true", help="only name the rows")
    options = parser.parse_args(arguments)
    known = [row.name for row in ROWS]
    if unknown := set((options.rows or known[0]).split(",")) - set(known):
        parser.error(f"no {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return options


def main() -> int:
    options, begin = options_of(), time.monotonic()
    rows = list(waiting(options))
    if options.list:
        print(
            "\n".join(f"{row.name}: torchproof {' '.join(row.command)}" for row in rows)
        )
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    missing = 0
    for row in rows:
        left = options.seconds - (time.monotonic() - begin)
        if left < row.expected_s:
            print(f"{row.name}: needs about {row.expected_s:.0f} s, {left:.0f} s left")
            missing += 1
            continue
        started = time.monotonic()
        done = measure(row, options.out, left - _END_S)
        took = time.monotonic() - started
        print(f"{row.name}: {'stored' if done else 'FAILED'}, {took:.0f} s", flush=True)
        missing += not done
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
