"""Starts the programs of this folder on two ranks, each once for all tests."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torchproof.observe import JoinedRanks, RankOptions, observe_ranks
from torchproof.targets import Options, parse

PROGRAMS = Path(__file__).parent / "programs"
_LAUNCHES = ThreadPoolExecutor()


@functools.cache
def launched(program: str, *arguments: str) -> Future[JoinedRanks]:
    """A launch that goes on beside the test: one that waits costs no time."""
    target = parse(str(PROGRAMS / program), arguments)
    options = Options(timeout_s=480, quiet=True)
    ranks = RankOptions(2)
    return _LAUNCHES.submit(observe_ranks, target, options, ranks, lambda text: None)


def observed(program: str, *arguments: str) -> JoinedRanks:
    return launched(program, *arguments).result()


@functools.cache
def observed_seeds() -> JoinedRanks:
    """The program with the seeds; a launch that times out runs beside it."""
    launched("stuck.py")
    return observed("seeded.py", str(warm_cache_of_rank_0()))


@functools.cache
def observed_clean() -> JoinedRanks:
    """The same program without a difference; both caches are empty."""
    return observed("seeded.py", str(_folder()), "clean")


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return folder


@functools.cache
def warm_cache_of_rank_0() -> Path:
    """A folder with a compile cache for each rank: one is filled, the other empty."""
    folder = _folder()
    # In a process of its own: settings that tests change here would change the keys.
    program = "import rank_functions, torch; rank_functions.product(torch.ones(4, 4))"
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "0"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",  # as the launcher sets it: it is part of the keys
    }
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROGRAMS,
        env={**os.environ, **variables},
        check=True,
        timeout=480,
    )
    return folder


def line_of(program: str, text: str) -> int:
    lines = (PROGRAMS / program).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)
