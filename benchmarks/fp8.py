"""A GPT with FP8 weights next to bfloat16: step, memory, first call, error of logits.

    python -m benchmarks.fp8 [ROW ...] [--arms ARM,...] [--device cuda|cpu]
        [--limit SECONDS] [--out FILE] [--logits FOLDER] [--again]

A row is a size and a type of weights; its step is one call of 1x512 tokens. Each arm
runs in a fresh process with empty caches of the compiler, alone on the device. While
one runs, the next one imports torch and waits. An arm goes to FILE as it ends, and one
that is there is left out. With `--limit`, no arm runs past that time; run the command
again for the rest.

The first call counts from a model on its device to the end of the call that compiles.
Memory is the peak that torch's allocator reserves, with weights. Both types of a size
have the same weights before they are quantised, and the logits of bfloat16 in eager,
kept in FOLDER, are the reference of the size: the error is ||logits - reference|| /
||reference||.

70b does not fit on one device in bfloat16, so it has no reference.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "fp8-h200.json"
ARMS = ("eager", "regional", "regional+graph")
# The small rows are only there for the error of a small model.
ROWS = {
    "tiny-bf16": ARMS,
    "tiny-fp8": ARMS,
    "small-bf16": ("eager",),
    "small-fp8": ("eager",),
    "40b-bf16": ARMS,
    "40b-fp8": ARMS,
    "70b-fp8": ARMS,
}
DEFAULT_ROWS = [name for name in ROWS if not name.startswith("tiny")]
SEQUENCE = {"cuda": 512, "cpu": 64}
WARM_UPS, STEPS = 3, 20
SAMPLED_TOKENS = 64  # whose logits are compared
LONGEST_ARM_S = 40.0  # with less time left, no arm begins
GO = "go"

Row = dict[str, Any]


# -- one arm, in a process of its own --------------------------------------------------


def measured(name: str, arm: str, *, device: str, logits: Path) -> Row:
    import torch

    size, weights = name.split("-")
    begin = time.perf_counter()
    model, call = made(size, device, fp8=weights == "fp8")
    wait = torch.cuda.synchronize if device == "cuda" else time.perf_counter
    wait()
    build_s = time.perf_counter() - begin
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    step = prepared(model, arm)
    output = step(*call)
    wait()
    first_call_s = time.perf_counter() - begin
    sample = output.flatten(0, -2)[-SAMPLED_TOKENS:].float().cpu()
    for _ in range(WARM_UPS):
        step(*call)
    times_ms = []
    for _ in range(STEPS):
        wait()
        begin = time.perf_counter()
        step(*call)
        wait()
        times_ms.append((time.perf_counter() - begin) * 1e3)
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "build_s": build_s,
        "first_call_s": first_call_s,
        "step_ms": statistics.median(times_ms),
        "low_ms": min(times_ms),
        "high_ms": max(times_ms),
        "steps": len(times_ms),
        "reserved": torch.cuda.max_memory_reserved() if device == "cuda" else None,
        "error": error_of(sample, name, arm, logits / f"{size}-{device}.pt"),
        **product_of(model, device, fp8=weights == "fp8"),
        **status_of(step, arm),
    }


def made(size: str, device: str, *, fp8: bool) -> tuple[Any, tuple[Any, ...]]:
    from torchproof.targets.workloads import gpt

    model, calls = gpt.make(size, 1, SEQUENCE[device], device=device, fp8=fp8)
    return model, calls[0]


def prepared(model: Any, arm: str) -> Any:
    if arm == "regional+graph":
        import torchproof

        return torchproof.graph(model, strategy="regional")
    if arm == "regional":
        for block in model.blocks:
            block.compile()
    return model


def error_of(sample: Any, name: str, arm: str, reference: Path) -> float | None:
    """The error against bfloat16 in eager, which is written if this is that arm."""
    import torch

    if name.endswith("bf16") and arm == "eager":
        reference.parent.mkdir(parents=True, exist_ok=True)
        torch.save(sample, reference)
        return None
    if not reference.exists():
        return None
    right = torch.load(reference)
    return float((sample - right).norm() / right.norm())


def product_of(model: Any, device: str, *, fp8: bool) -> Row:
    """Which product an FP8 row runs: a fallback would be slow, and has to be seen."""
    if not fp8:
        return {}
    import torch

    from torchproof.targets.workloads.fp8_linear import missing_product
    from torchproof.targets.workloads.gpt_fp8 import parity_bound

    missing = missing_product(torch.device(model.head.weight.device))
    return {
        "product": "scaled" if missing is None else "dequantised",
        "product_missing": missing,
        "error_bound": parity_bound(len(model.blocks)),
    }


def status_of(step: Any, arm: str) -> Row:
    if arm != "regional+graph":
        return {}
    status = step.status()
    return {
        "recordings": status.recordings,
        "stops": [str(each) for each in status.stops],
    }


# -- all arms --------------------------------------------------------------------------


class Arm:
    """The process of one arm; it waits until `result` is asked for."""

    def __init__(self, name: str, arm: str, options: argparse.Namespace) -> None:
        self.name, self.arm = name, arm
        self._caches = tempfile.TemporaryDirectory()
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": f"{self._caches.name}/inductor",
            "TRITON_CACHE_DIR": f"{self._caches.name}/triton",
        }
        flags = ["--device", options.device, "--logits", str(options.logits)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fp8", "--arm", arm, *flags, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )

    def result(self, seconds: float | None) -> Row | None:
        """What was measured, or the error; None if the time was too short."""
        try:
            out, err = self._process.communicate(f"{GO}\n", timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.close()
        if self._process.returncode:
            return {"failure": (err.strip().splitlines() or ["no output"])[-1]}
        row: Row = json.loads(out.splitlines()[-1])
        return row

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._caches.cleanup()


def wait_and_measure(options: argparse.Namespace) -> None:
    """The work of an arm's process, which imports torch before its turn."""
    import torch

    torch.set_grad_enabled(False)
    if sys.stdin.readline().strip() != GO:
        return
    found = measured(
        options.rows[0],
        options.arm,
        device=options.device,
        logits=options.logits,
    )
    print(json.dumps(found))


def missing(
    rows: dict[str, Row], options: argparse.Namespace, *, again: bool = False
) -> list[tuple[str, str]]:
    """The rows and arms that were asked for and not measured yet; `again`: all."""
    chosen = options.arms.split(",") if options.arms else ARMS
    return [
        (name, arm)
        for name in options.rows or DEFAULT_ROWS
        for arm in ROWS[name]
        if arm in chosen
        if again or "step_ms" not in rows.get(name, {}).get(arm, {})
    ]


def results(
    work: list[tuple[str, str]], options: argparse.Namespace
) -> Iterator[tuple[str, str, Row]]:
    """Runs one arm after the other; the next one starts while one runs."""
    end = None if options.limit is None else time.monotonic() + options.limit
    with contextlib.ExitStack() as stack:
        waiting: Arm | None = None
        for number, (name, arm) in enumerate(work):
            left = None if end is None else end - time.monotonic()
            if left is not None and left < min(LONGEST_ARM_S, options.limit):
                return
            current = waiting or Arm(name, arm, options)
            waiting = None
            if number + 1 < len(work):
                waiting = Arm(*work[number + 1], options)
                stack.callback(waiting.close)
            row = current.result(left)
            if row is None:
                return
            yield name, arm, row


def machine(device: str) -> Row:
    import torch

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "command": "python -m benchmarks.fp8",
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or None,
        "sequence": SEQUENCE[device],
    }


def shown(name: str, arm: str, row: Row) -> str:
    if "failure" in row:
        return f"{name:<12}{arm:<16}{row['failure']}"
    numbers = [
        f"{row['step_ms']:9.2f} ms",
        f"{row['first_call_s']:8.2f} s",
        "-" if row["reserved"] is None else f"{row['reserved'] >> 20:8} MiB",
        "-" if row["error"] is None else f"{row['error']:.4f}",
        row.get("product", ""),
        "; ".join(row.get("stops", [])),
    ]
    return f"{name:<12}{arm:<16}{'  '.join(numbers)}"


def main() -> int:
    options = parsed()
    if options.arm is not None:
        wait_and_measure(options)
        return 0
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    rows = known.setdefault("rows", {})
    work = missing(rows, options, again=options.again)
    known |= machine(options.device)
    for name, arm, row in results(work, options):
        rows.setdefault(name, {})[arm] = row
        options.out.write_text(json.dumps(known, indent=1) + "\n")
        print(shown(name, arm, row), file=sys.stderr, flush=True)
    if left := missing(rows, options):
        names = ", ".join(f"{name} {arm}" for name, arm in left)
        print(f"not measured: {names}", file=sys.stderr)
    return int(bool(left))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--arms", help=", ".join(ARMS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--out", type=Path, default=RESULTS)
    folder = Path(tempfile.gettempdir()) / "torchproof-fp8-logits"
    parser.add_argument("--logits", type=Path, default=folder)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    asked = ((options.rows, ROWS), ((options.arms or "").split(","), ARMS))
    for names, choices in asked:
        if unknown := [each for each in names if each and each not in choices]:
            parser.error(f"no {unknown[0]!r}: choose from {', '.join(choices)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
