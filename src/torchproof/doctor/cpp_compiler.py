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

from torchproof.doctor.cache_checks import inductor_folder, nearest_folder
from torchproof.records import MachineCheck

_GROUP = "C++ compiler"
_PATIENCE_S = 60.0
_EAGER = (
    "torch.compile generates no code for the CPU: bench and tune can measure eager"
    " only, and torchproof.compile runs eager"
)
_PLAIN = 'extern "C" int threads() { return 7; }\n'
_HEADERS = f"#include <Python.h>\n{_PLAIN}"
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
    version, said = _version(compiler)
    if version is None:
        yield MachineCheck(
            _GROUP,
            "compiler",
            "missing",
            f"{compiler}: {said}",
            _EAGER,
            "install g++ (Debian: apt-get install g++), or set CXX to the path of a"
            " C++ compiler",
        )
        return
    yield MachineCheck(_GROUP, "compiler", "ok", f"{compiler}: {version}")
    try:
        with tempfile.TemporaryDirectory(
            prefix="torchproof-doctor-", dir=nearest_folder(inductor_folder())
        ) as folder:
            yield from _built(compiler, Path(folder))
    except OSError:  # the check of the cache folder says why
        with tempfile.TemporaryDirectory(prefix="torchproof-doctor-") as folder:
            yield from _built(compiler, Path(folder))


def _version(compiler: str) -> tuple[str | None, str]:
    """The first line of `--version`, as Inductor tries it; otherwise the error."""
    done = _run([compiler, "--version"])
    if done.returncode == 0 and done.stdout.strip():
        return done.stdout.strip().splitlines()[0], ""
    return None, _first_error(done)


def _built(compiler: str, folder: Path) -> Iterator[MachineCheck]:
    include = sysconfig.get_path("include")
    yield _library(
        (compiler,),
        folder / "plain.cpp",
        _PLAIN,
        MachineCheck(
            _GROUP,
            "shared library",
            "missing",
            means=_EAGER,
            action="see whether the disk of torch's cache is full or mounted noexec,"
            " or set TORCHINDUCTOR_CACHE_DIR; otherwise install g++ again",
        ),
    )
    yield _library(
        (compiler, f"-I{include}"),
        folder / "headers.cpp",
        _HEADERS,
        MachineCheck(
            _GROUP,
            "Python headers",
            "missing",
            means=_EAGER,
            action="install the headers of this Python (Debian: apt-get install"
            f" python{sys.version_info[0]}.{sys.version_info[1]}-dev)",
        ),
    )
    yield _library(
        (compiler, "-fopenmp"),
        folder / "openmp.cpp",
        _OPENMP,
        MachineCheck(
            _GROUP,
            "OpenMP",
            "missing",
            means=_EAGER,
            action="install OpenMP for this compiler (g++ brings it; Debian for"
            " clang: apt-get install libomp-dev)",
        ),
    )


def _library(
    command: Sequence[str], path: Path, source: str, failure: MachineCheck
) -> MachineCheck:
    """Builds a library and calls it in a process of its own, as it may crash."""
    path.write_text(source)
    library = path.with_suffix(".so")
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC"]
    done = _run([*command, *flags, str(path), "-o", str(library)])
    if done.returncode == 0:
        program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).threads())"
        done = _run([sys.executable, "-I", "-c", program, str(library)])
        if done.returncode == 0 and done.stdout.strip() == "7":
            name = failure.name
            return MachineCheck(_GROUP, name, "ok", "compiled, linked and loaded")
    return MachineCheck(
        _GROUP,
        failure.name,
        failure.status,
        _first_error(done),
        failure.means,
        failure.action,
    )


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
