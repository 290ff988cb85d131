"""The first call of a step: eager, torch.compile and its modes, regions, graphs, packs.

    python -m benchmarks.first_calls [ROW ...] [--device cuda|cpu] [--arms ARM,...]
        [--repeat N] [--out FILE] [--packs FOLDER] [--again] [--frames N]

Each start is a fresh process with empty caches, alone on the machine. `first_s` counts
from a model that is built, on its device, to the end of its first call: importing the
compiler is in it, importing torch is `import_s`. A thread looks at the stack of the
starting thread every few milliseconds, and `phases` are the seconds in which that
thread did each kind of work. Work of other processes is not in them, only waiting for
it. Python between two operations of torch counts to the operations, where the thread
gives up the interpreter. `--frames` also keeps the functions that were on the stack
most.

A start goes to FILE as it ends, and one that is there is not repeated. Exit code 1 when
a ratio exceeds its limit.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LATE = "regional+graph:late-workers"  # torch starts them with the first graph
GRAPHS = ("regional+graph", LATE)
ARMS = ("eager", "full", "reduce-overhead", "regional", *GRAPHS, "pack")
ON_CPU = ("eager", "full", "regional", "pack")
ROWS = ("decoder", "vision", "audio", "decoder-training", "encoder-decoder-training")
# Of a cold start of reduce-overhead, or of `full` on the CPU; packs with all imports.
LIMITS = {"regional+graph": 0.4, "pack": 0.15}
SAMPLE_S = 0.004

Row = dict[str, Any]
Rows = list[tuple[str, frozenset[str], str]]


def _rows(*rows: tuple[str, str, str]) -> Rows:
    return [(path, frozenset(names.split()), phase) for path, names, phase in rows]


# Part of a file's path, functions (empty: all), and the phase. The innermost frame that
# matches a row of a table decides; tables and rows above go first. What a module does
# while it is imported is part of the import.
IMPORTS = _rows(("<frozen importlib", "_find_and_load", "imports"))
PHASES = _rows(
    ("/torchproof/runtime/codegen_worker.py", "", "wait for a compile process"),
    ("/torch/_inductor/codecache.py", "torch_key get_system", "cache keys"),
    ("/torch/_inductor/codecache.py", "compiled_fx_graph_hash", "cache keys"),
    ("/autograd_cache.py", "autograd_cache_key", "cache keys"),
    ("/torch/_inductor/pattern_matcher.py", "register_replacement", "patterns"),
    ("/torch/_inductor/pattern_matcher.py", "gen_register_replacement", "patterns"),
    ("/torch/_inductor/fx_passes/", "lazy_init _pad_mm_init", "patterns"),
    ("/torch/_inductor/cpp_builder.py", "", "kernel compiler"),
    ("/torch/_inductor/cpu_vec_isa.py", "", "kernel compiler"),
    ("/torch/_inductor/async_compile.py", "", "kernel compiler"),
    ("/torch/_inductor/runtime/triton_heuristics.py", "", "kernel compiler"),
    ("/triton/", "", "kernel compiler"),
    ("/torch/_inductor/cudagraph_trees.py", "", "capture"),
    ("/torch/_inductor/", "", "code generation"),
    ("/torch/_functorch/", "", "AOTAutograd"),
    ("/torch/_dynamo/eval_frame.py", "", ""),
    ("/torch/_dynamo/utils.py", "", ""),
    ("/torch/_dynamo/", "", "tracing"),
    ("/cudagraph/state_snapshot.py", "", "state of the step"),
    ("/cudagraph/reachable_state.py", "", "state of the step"),
    ("/cudagraph/recorder.py", "_stable_run", "watched eager runs"),
    ("/cudagraph/recorder.py", "_show_eager_run", "eager run to find blocks"),
    ("/cudagraph/recorder.py", "_in_eager_like", "eager run to compare with"),
    ("/cudagraph/recorder.py", "_rehearse", "warm-up"),
    ("/cudagraph/recorder.py", "_recorded", "capture"),
    ("/cudagraph/recorder.py", "_first_replay", "comparison"),
)
OTHERS = _rows(
    ("/torchproof/runtime/cudagraph/", "", "other of graph"),
    ("/torchproof/runtime/loading/", "", "other of load"),
    ("/torchproof/", "", "other of torchproof"),
)
TABLES = (IMPORTS, PHASES, OTHERS)


# -- one start, in a process of its own ------------------------------------------------


class Sampler:
    """Counts what the calling thread does, from a thread of its own."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = collections.defaultdict(float)
        self.frames: dict[str, float] = collections.defaultdict(float)
        self._thread_id = threading.get_ident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        last = time.perf_counter()
        while not self._done.wait(SAMPLE_S):
            stack = list(_stack(sys._current_frames()[self._thread_id]))
            now = time.perf_counter()
            self.phases[phase_of(stack)] += now - last
            for place in {f"{path}:{name}" for path, name in stack}:
                self.frames[place] += now - last
            last = now


def longest_first(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: item[1], reverse=True)


def _stack(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """Filenames and functions, innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back


def phase_of(stack: Sequence[tuple[str, str]]) -> str:
    phases = [phases_of_frame(*frame) for frame in stack]
    for table in range(len(TABLES)):
        for each in phases:
            if each[table]:
                return each[table]
    return "other"


@functools.cache  # samples must not delay what they sample
def phases_of_frame(filename: str, function: str) -> list[str]:
    """The phase in each table; empty if no row matches."""
    return [_phase_in(rows, filename, function) for rows in TABLES]


def _phase_in(rows: Rows, filename: str, function: str) -> str:
    for path, functions, phase in rows:
        if path in filename and (not functions or function in functions):
            return phase
    return ""


def start(name: str, arm: str, *, device: str, pack: str | None, frames: int) -> Row:
    began = time.perf_counter()
    import torch

    import_s = time.perf_counter() - began
    step, args, trains = made(name, device)
    torch.set_grad_enabled(trains)
    wait: Any = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    with Sampler() as sampler:
        begin = time.perf_counter()
        step = prepared(step, arm, pack)
        step(*args)
        wait()
        first_s = time.perf_counter() - begin
    row: Row = {"import_s": import_s, "first_s": first_s}
    row["phases"] = {key: round(s, 3) for key, s in longest_first(sampler.phases)}
    if frames:
        row["frames"] = {
            key: round(s, 3) for key, s in longest_first(sampler.frames)[:frames]
        }
    return row | status_of(step, arm)


def status_of(step: Any, arm: str) -> Row:
    """What torchproof says of the step, if it compiled it."""
    if arm in GRAPHS:
        return {"status": step.status().to_json()}
    if arm not in ("regional", "pack"):
        return {}
    import torchproof

    return {"status": torchproof.status(step).to_json()}


def made(name: str, device: str) -> tuple[Any, tuple[Any, ...], bool]:
    """A step, one call and whether it trains; small ones on the CPU."""
    import torch

    from benchmarks import first_seconds as models

    torch.manual_seed(0)
    trains = name.endswith("training")
    if device == "cuda":
        make, call, trains = models.ROWS[name]
        network = make().to("cuda", torch.bfloat16).train(trains)
        return (models.training(network) if trains else network), call(), trains
    words = torch.randint(3, 1000, (2, 64))
    makes: dict[str, Any] = {
        "decoder": lambda: (models.Decoder(4, 128, 1000), (words,)),
        "vision": lambda: (models.Vision(4, 128), (torch.randn(1, 3, 224, 224),)),
        "audio": lambda: (models.Audio(4, 128), (torch.randn(1, 80, 200),)),
        "decoder-training": lambda: (models.Decoder(4, 128, 1000), (words,)),
        "encoder-decoder-training": lambda: (
            models.EncoderDecoder(4, 128, 1000),
            (words, words),
        ),
    }
    network, args = makes[name]()
    network.train(trains)
    return (models.training(network) if trains else network), args, trains


def prepared(step: Any, arm: str, pack: str | None) -> Any:
    import torch

    if arm == "eager":
        return step
    if arm == "full":
        return torch.compile(step)
    if arm == "reduce-overhead":
        return torch.compile(step, mode="reduce-overhead")
    import torchproof

    if arm == LATE:
        from torchproof.torch_private import early_start

        early_start.begin = early_start.import_compiler  # type: ignore[assignment]
    if arm in GRAPHS:
        return torchproof.graph(step, strategy="regional")
    if arm == "regional":
        return torchproof.compile(step, strategy="regional")
    assert pack is not None
    return torchproof.load(pack, step)


# -- factories for packs ---------------------------------------------------------------


def decoder_factory() -> tuple[Any, list[tuple[Any, ...]]]:
    return _factory("decoder")


def vision_factory() -> tuple[Any, list[tuple[Any, ...]]]:
    return _factory("vision")


def audio_factory() -> tuple[Any, list[tuple[Any, ...]]]:
    return _factory("audio")


def _factory(name: str) -> tuple[Any, list[tuple[Any, ...]]]:
    step, args, _ = made(name, os.environ["FIRST_CALLS_DEVICE"])
    return step.eval(), [args]


def make_pack(name: str, device: str, pack: Path) -> None:
    command = [
        *(sys.executable, "-m", "torchproof", "pack"),
        f"benchmarks/first_calls.py:{name}_factory",
        *("--for", "deploy", "--strategy", "full", "--device", device),
        *("-o", str(pack), "-q"),
    ]
    with tempfile.TemporaryDirectory() as caches:
        subprocess.run(command, cwd=ROOT, env=environment(caches, device), check=True)


# -- all starts ------------------------------------------------------------------------


def environment(caches: str, device: str) -> dict[str, str]:
    """Empty caches of the compilers; Python keeps bytecode, as in installed ones."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "TRITON_CACHE_DIR": f"{caches}/triton",
        "CUDA_CACHE_PATH": f"{caches}/cuda",
        "FIRST_CALLS_DEVICE": device,
    }


def in_process(name: str, arm: str, options: argparse.Namespace) -> Row:
    pack = options.packs / f"{options.device}-{name}"
    if arm == "pack" and not pack.exists():
        make_pack(name, options.device, pack)
    asked = json.dumps(
        {
            "name": name,
            "arm": arm,
            "device": options.device,
            "pack": str(pack),
            "frames": options.frames,
        }
    )
    with tempfile.TemporaryDirectory() as caches:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.first_calls", "--start", asked],
            cwd=ROOT,
            env=environment(caches, options.device),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def ratios(arms: dict[str, list[Row]], device: str) -> dict[str, float | None]:
    """Of medians; None before both are measured."""
    base = "reduce-overhead" if device == "cuda" else "full"
    middle = {arm: _median(rows, "first_s") for arm, rows in arms.items()}
    whole = {arm: _median(rows, "import_s", "first_s") for arm, rows in arms.items()}
    return {
        "regional": _ratio(middle.get("regional"), middle.get(base)),
        "regional+graph": _ratio(middle.get("regional+graph"), middle.get(base)),
        "pack": _ratio(whole.get("pack"), whole.get(base)),
    }


def _median(rows: Sequence[Row], *fields: str) -> float | None:
    sums = [sum(row[field] for field in fields) for row in rows if "error" not in row]
    return statistics.median(sums) if sums else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def missed(found: dict[str, float | None]) -> bool:
    return any(
        value is not None and value > LIMITS[arm]
        for arm, value in found.items()
        if arm in LIMITS
    )


def arms_of(name: str, device: str) -> tuple[str, ...]:
    arms = ARMS if device == "cuda" else ON_CPU
    if name.endswith("training"):  # a function, which only graphs compile in parts
        return tuple(arm for arm in arms if arm not in ("regional", "pack"))
    return arms


def measure(name: str, known: Row, options: argparse.Namespace) -> Row:
    """Makes the starts of a row that are missing, and writes each as it ends."""
    row: Row = known["rows"].setdefault(name, {"arms": {}})
    arms = row["arms"]
    chosen = options.arms.split(",") if options.arms else ARMS
    for arm in arms_of(name, options.device):
        if arm not in chosen:
            continue
        kept = [] if options.again else arms.get(arm, [])
        arms[arm] = [start for start in kept if "error" not in start]
        while len(arms[arm]) < options.repeat:
            begun = in_process(name, arm, options)
            arms[arm].append(begun)
            row["ratios"] = ratios(arms, options.device)
            options.out.write_text(json.dumps(known, indent=1) + "\n")
            said = begun.get("error") or f"{begun['first_s']:.2f} s {begun['phases']}"
            print(name, arm, said, file=sys.stderr, flush=True)
    return row


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "--start":
        print(json.dumps(start(**json.loads(arguments[1]))))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", nargs="*", default=[], help=", ".join(ROWS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--arms", help="names, with commas")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--packs", type=Path, help="where packs are kept")
    parser.add_argument("--again", action="store_true", help="repeat what is there")
    parser.add_argument("--frames", type=int, default=0)
    options = parser.parse_args(arguments)
    options.out = options.out or RESULTS / f"first-calls-{options.device}.json"
    with tempfile.TemporaryDirectory() as folder:
        options.packs = (options.packs or Path(folder)).resolve()
        options.packs.mkdir(parents=True, exist_ok=True)
        return measure_all(options)


def measure_all(options: argparse.Namespace) -> int:
    from importlib.metadata import version

    known: Row = {"rows": {}}
    if options.out.exists():
        known = json.loads(options.out.read_text())
    known |= {
        "command": "python -m benchmarks.first_calls",
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "limits": LIMITS,
    }
    rows = [measure(name, known, options) for name in options.rows or ROWS]
    for name, row in zip(options.rows or ROWS, rows, strict=True):
        print(name, json.dumps(row.get("ratios")))
    return int(any(missed(row.get("ratios", {})) for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
