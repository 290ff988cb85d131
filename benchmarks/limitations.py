"""Runs the programs that show what torch.compile itself cannot do or does wrong.

    python -m benchmarks.limitations [PROGRAM ...] [--device cuda] [--needs THING]

Each file under src/torchproof/known_problems is a program in two parts. The
first asserts what goes wrong, the second that the workaround works. Every program runs
in a process of its own under the installed torch; results are stored by version of
torch.
Exit code 1 when a program behaves otherwise than it says.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.survey import Options, Row, Survey
from torchproof import known_problems
from torchproof.known_problems import KnownProblem

SECONDS = 240  # a program that takes longer has failed

HOLDS = "holds"
GONE = "gone"  # the first part's assertion fails: torch behaves otherwise
STUCK = "no way round"
FAILED = "failed"  # the program itself cannot be run


def version(torch: str) -> str:
    """`2.13` of `2.13.0+cpu`."""
    return ".".join(torch.split(".")[:2])


# -- running ---------------------------------------------------------------------------


def rows(options: Options) -> list[str]:
    return [
        program.name
        for program in known_problems.every()
        if (program.needs == "cuda") is (options.device == "cuda")
        and (not options.needs or (program.needs or "nothing") == options.needs)
    ]


def measure(name: str, options: Options) -> Row:
    """The outcome, in a forked process: torch is imported once for all programs."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # CUDA is not begun before a fork
    for module in ("torch", "torch._dynamo.testing", "functorch.compile"):
        importlib.import_module(module)  # what most programs would load one by one
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(known_problems.named(name), theirs))
    child.start()
    theirs.close()
    try:
        if ours.poll(SECONDS):
            outcome, said = ours.recv()
        else:
            outcome, said = FAILED, f"no answer within {SECONDS} s"
    except EOFError:
        outcome, said = FAILED, "it ended without an answer"
    child.kill()
    child.join()
    return {"outcome": outcome, "said": said}


def _answer(program: KnownProblem, to: Connection) -> None:
    """Never returns: what a program leaves behind ends with its process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        to.send(judged(program))
    os._exit(0)


def judged(program: KnownProblem) -> tuple[str, str]:
    """What came of running both parts here."""
    path, whole = str(program.path), program.path.read_text(encoding="utf-8")
    first, _, second = whole.partition(known_problems.SEAM)
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
    text = str(failure).strip().partition("\n")[0]
    return f"{type(failure).__name__}: {text or line}"[:300]


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        if row["outcome"] != HOLDS:
            yield f"{name}: {row['outcome']}: {row['said']}"


SURVEY = Survey(
    "limitations",
    rows,
    measure,
    failures,
    devices=("cpu", "cuda"),
    is_isolated=False,
    flags={
        "--needs": {"help": "programs that need this: nothing, inductor..."},
    },
    result=f"limitations-{version(importlib.metadata.version('torch'))}-{{device}}",
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
