"""Compiles, links and loads a small library as Inductor does for the CPU.

Inductor takes the compiler that CXX names, otherwise g++. Its kernels include Python.h
and use OpenMP, and Python loads them from the cache folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchproof.doctor.system_checks import nearest_folder
from torchproof.doctor.table import Problem, tried
from torchproof.records import MachineCheck
from torchproof.report import cache_folders

_PATIENCE_S = 60.0
_PLAIN = 'extern "C" int threads() { return 7; }\n'
_OPENMP = """
#include <omp.h>
extern "C" int threads() {
    int count = 0;
    #pragma omp parallel reduction(+:count)
    count += 1;
    return count > 0 ? 7 : 0;
}
"""


def checks() -> Iterator[MachineCheck]:
    compiler = os.environ.get("CXX", "g++")
    (found,) = tried("compiler", _compiler, compiler)
    yield found
    if found.is_problem:
        return
    cache = nearest_folder(cache_folders.inductor_folder())
    # If the cache is not writable, its own check says why.
    place = cache if cache.is_dir() and os.access(cache, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="torchproof-doctor-", dir=place) as folder:
        yield from _libraries(compiler, Path(folder))


def _compiler(compiler: str) -> str:
    """The first line of `--version`, as Inductor tries it."""
    done = _run([compiler, "--version"])
    if done.returncode == 0 and done.stdout.strip():
        return f"{compiler}: {done.stdout.strip().splitlines()[0]}"
    raise Problem(f"{compiler}: {_first_error(done)}")


def _libraries(compiler: str, folder: Path) -> Iterator[MachineCheck]:
    include = f"-I{sysconfig.get_path('include')}"
    for key, name, flags, source in (
        ("shared library", "plain", [], _PLAIN),
        ("Python headers", "headers", [include], f"#include <Python.h>\n{_PLAIN}"),
        ("OpenMP", "openmp", ["-fopenmp"], _OPENMP),
    ):
        command = [compiler, *flags]
        yield from tried(key, _library, command, folder / f"{name}.cpp", source)


def _library(command: Sequence[str], path: Path, source: str) -> str:
    """Builds a library and calls it in a process of its own, as it may crash."""
    path.write_text(source)
    library = path.with_suffix(".so")
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC"]
    done = _run([*command, *flags, str(path), "-o", str(library)])
    if done.returncode == 0:
        program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).threads())"
        done = _run([sys.executable, "-I", "-c", program, str(library)])
        if done.returncode == 0 and done.stdout.strip() == "7":
            return "compiled, linked and loaded"
    raise Problem(_first_error(done))


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, ValueError) as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))
    except subprocess.TimeoutExpired:
        text = f"did not end within {_PATIENCE_S:.0f} s"
        return subprocess.CompletedProcess(command, 124, "", text)


def _first_error(done: subprocess.CompletedProcess[str]) -> str:
    """The line that says what is wrong: of a compiler the first, of Python the last."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    found = (errors or lines)[-1:] if "Traceback" in done.stderr else errors or lines
    return found[0] if found else f"exit code {done.returncode}, no message"
