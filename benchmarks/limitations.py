"""Runs the programs that show what torch.compile itself cannot do or does wrong.

    python benchmarks/limitations.py [NAME ...] [--needs THING] [--write]

Each file under tests/limitations is a program in two parts. The first asserts what goes
wrong, the second, after `# The workaround`, that the workaround works. A program of the
group `mended` has one part, and asserts that all is well. Every program runs in a
process of its own under the installed torch; stdout gets one JSON document with the
outcomes. With `--write` they are kept in benchmarks/results/limitations-VERSION.json,
those of a GPU beside them.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import platform
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "limitations"
RESULTS = ROOT / "benchmarks" / "results"
SEAM = "\n# The workaround\n"
MENDED = "mended"  # the group of what torch no longer does wrong
SECONDS = 240  # a program that takes longer has failed
FIELDS = ("Group", "Code", "Reference", "Needs")

HOLDS = "holds"
GONE = "gone"  # the first part's assertion fails: torch behaves otherwise
STUCK = "no way round"
FAILED = "failed"  # the program itself cannot be run


@dataclass(frozen=True)
class Program:
    """One file: what its docstring says of it, and its two parts."""

    name: str
    title: str
    text: str
    way_round: str
    source: str
    group: str
    code: str | None = None  # of the rule by which torchproof tells it
    reference: str | None = None
    needs: str | None = None  # `inductor` or `cuda`

    @property
    def path(self) -> Path:
        return PROGRAMS / f"{self.name}.py"

    @property
    def is_target(self) -> bool:
        """Whether `check` takes its factory rather than the program as a script."""
        return "\ndef make(" in self.source


def read(path: Path) -> Program:
    whole = path.read_text(encoding="utf-8")
    tree = ast.parse(whole)
    told = ast.get_docstring(tree)
    assert told is not None and tree.body[0].end_lineno is not None, path
    title, *paragraphs = told.split("\n\n")
    fields = dict(line.split(": ", 1) for line in paragraphs.pop().split("\n"))
    assert set(fields) <= set(FIELDS), f"{path}: {fields}"
    plain = [" ".join(text.split()) for text in paragraphs]
    ways = [text for text in plain if text.startswith("Workaround: ")]
    return Program(
        path.stem,
        title.rstrip("."),
        " ".join(text for text in plain if text not in ways),
        " ".join(text.removeprefix("Workaround: ") for text in ways),
        "\n".join(whole.splitlines()[tree.body[0].end_lineno :]).strip("\n") + "\n",
        **{name.lower(): value for name, value in fields.items()},
    )


def programs() -> list[Program]:
    return [read(path) for path in sorted(PROGRAMS.glob("*.py"))]


# -- running ---------------------------------------------------------------------------


def run(program: Program) -> dict[str, Any]:
    """The outcome, in a forked process: torch is imported once for all programs."""
    begun = time.perf_counter()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _answer(program, write_end)
    os.close(write_end)
    ready, _, _ = select.select([read_end], [], [], SECONDS)
    if not ready:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(read_end, encoding="utf-8") as stream:
        told = stream.read()
    os.waitpid(child, 0)
    why = "it ended without an answer" if ready else f"no answer within {SECONDS} s"
    outcome = json.loads(told) if told else {"outcome": FAILED, "said": why}
    return {**outcome, "seconds": round(time.perf_counter() - begun, 1)}


def _answer(program: Program, to: int) -> None:
    """Never returns: what a program leaves behind ends with its process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        outcome, said = judged(program)
    os.write(to, json.dumps({"outcome": outcome, "said": said}).encode())
    os._exit(0)


def judged(program: Program) -> tuple[str, str]:
    """What came of running both parts here."""
    path, whole = str(program.path), program.path.read_text(encoding="utf-8")
    first, _, second = whole.partition(SEAM)
    # As many lines above it as in the file, so that stacks name the right ones.
    below = "\n" * (first.count("\n") + 2) + second
    names: dict[str, Any] = {"__name__": "__main__", "__file__": path}
    if failure := _failure(lambda: exec(compile(first, path, "exec"), names)):
        asserts = isinstance(failure, AssertionError) and _is_own(failure, path)
        return GONE if asserts else FAILED, _words(failure)
    if failure := _failure(lambda: exec(compile(below, path, "exec"), names)):
        return STUCK, _words(failure)
    return HOLDS, ""


def _failure(part: Callable[[], None]) -> Exception | None:
    try:
        part()
    except Exception as failure:
        return failure
    return None


def _is_own(failure: Exception, path: str) -> bool:
    """Whether the program itself raised it, and not something it called."""
    return traceback.extract_tb(failure.__traceback__)[-1].filename == path


def _words(failure: Exception) -> str:
    line = traceback.extract_tb(failure.__traceback__)[-1].line
    said = str(failure).strip().partition("\n")[0]
    return f"{type(failure).__name__}: {said or line}"[:300]


def run_all(chosen: Sequence[Program]) -> dict[str, Any]:
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # CUDA is not begun before a fork
    import torch

    for name in ("torch._dynamo.testing", "functorch.compile"):
        importlib.import_module(name)  # what most programs would load one by one
    device = torch.cuda.get_device_name if torch.cuda.is_available() else None
    outcomes = {}
    for program in chosen:
        if program.needs != "cuda" or device is not None:
            outcomes[program.name] = run(program)
            print(program.name, outcomes[program.name], file=sys.stderr, flush=True)
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "arch": platform.machine(),
        "gpu": device() if device else None,
        "programs": outcomes,
    }


def version(torch: str) -> str:
    """`2.13` of `2.13.0+cpu`."""
    return ".".join(torch.split(".")[:2])


def write(found: Mapping[str, Any]) -> None:
    """Beside what is kept of other programs under the same torch."""
    where = "-cuda" if found["gpu"] else ""
    path = RESULTS / f"limitations-{version(found['torch'])}{where}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    known = {program.name for program in programs()}
    earlier = {n: o for n, o in kept.get("programs", {}).items() if n in known}
    both = dict(sorted({**earlier, **found["programs"]}.items()))
    text = json.dumps({**found, "programs": both}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these programs only")
    parser.add_argument("--needs", help="programs that need this: nothing, cuda...")
    parser.add_argument("--write", action="store_true", help="keep the outcomes")
    options = parser.parse_args()
    chosen = [
        program
        for program in programs()
        if (not options.names or program.name in options.names)
        and (not options.needs or (program.needs or "nothing") == options.needs)
    ]
    found = run_all(chosen)
    if options.write:
        write(found)
    json.dump(found, sys.stdout, indent=1)
    print()
    return int(any(o["outcome"] != HOLDS for o in found["programs"].values()))


if __name__ == "__main__":
    sys.exit(main())
