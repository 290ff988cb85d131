"""Runs candidates as `repro.py` files and returns their outcomes.

Takes candidates for one failure signature. The oracle that is part of each repro gives
the verdict, so "the same failure" means the same here and for whoever opens the pack.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from torchproof.packs.repro import repro_process
from torchproof.packs.repro.assembly import repro_text
from torchproof.packs.repro.candidate import Candidate, Outcome, Settings
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.repro_process import OUTPUT, PROGRAM
from torchproof.process import DEVNULL, ForkServer, JobEnding, spawn

# Variables that a run needs, and prefixes of those that configure torch.
_KEPT = re.compile(
    r"(PATH|LD_LIBRARY_PATH|LD_PRELOAD|LANG|CC|CXX)$"
    r"|LC_|CUDA|NVIDIA|OMP_|MKL_|KMP_|GOMP_|OPENBLAS_|TORCH|PYTORCH|TRITON|NCCL_"
    r"|ROCM|HIP_|CUBLAS"
)
_REMOVED = re.compile(
    r"TORCHPROOF_|TORCH_LOGS|TORCH_TRACE|TORCHELASTIC|TORCHINDUCTOR_CACHE_DIR"
    r"|TRITON_CACHE_DIR"
)
# Oracles that observe Dynamo alone: they use a backend that generates no code.
_DYNAMO_ORACLES = frozenset({"breaks", "recompiles", "no_ops"})
# Oracles that time a compilation: they must not share compiler caches.
_TIMING_ORACLES = frozenset({"compile_time", "hang"})
# Runs a repro in a fresh interpreter that ends with its parent. `python -I` still sees
# installed packages, so torchproof has to be hidden.
_ISOLATED = (
    "import ctypes, os, runpy, sys; ctypes.CDLL(None).prctl(1, 9);"
    " [os.environ.pop(n) for n in [*os.environ] if n.startswith('TORCHPROOF_')];"
    " sys.modules['torchproof'] = None; sys.argv[:] = ['repro.py'];"
    " runpy.run_path(os.path.abspath('repro.py'), run_name='__main__')"
)
_COLD = 3  # limits of a run that imports torch and compiles without caches
_OUTPUT_CHARACTERS = 12_000  # of a run's output, counted from its end
_VERDICTS: dict[int, tuple[str, Literal["same", "other", "none"]]] = {
    1: ("FAILS AS STATED", "same"),
    0: ("DOES NOT FAIL", "none"),
    3: ("FAILS IN ANOTHER WAY", "other"),
}


class ReproRunner:
    """Runs candidates for one failure signature; close it or use it in `with`.

    Each run gets the variables of this process that configure torch. All methods that
    run candidates are thread-safe.
    """

    def __init__(
        self,
        signature: FailureSignature,
        settings: Settings,
        *,
        header: str = "",
        folder: Path | None = None,
    ) -> None:
        self.signature = signature
        self.settings = settings
        self.header = header
        self._variables = run_variables(os.environ)
        self._scratch = tempfile.TemporaryDirectory(
            prefix="torchproof-runner-", dir=folder
        )
        self._fork_server: ForkServer | None = None
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(os.cpu_count() or 1)

    def __enter__(self) -> ReproRunner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fork_server is not None:
            self._fork_server.close()
        with contextlib.suppress(OSError):
            self._scratch.cleanup()

    def text(self, candidate: Candidate) -> str:
        return repro_text(candidate, self.signature, self.settings, self.header)

    def run_isolated(
        self,
        text: str,
        files: Mapping[str, bytes] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Runs the text of a `repro.py` in a new process that can import only torch."""
        with self._folder(text, files or {}) as folder:
            start = time.monotonic()
            more = self._run_variables(folder, folder.parent / "cache")
            with (folder / OUTPUT).open("wb") as output:
                child = spawn(
                    *("-I", "-u", "-c", _ISOLATED),
                    environment=more | dict(variables or {}),
                    inherit=False,
                    cwd=folder,
                    output=output,
                )
            with child:
                try:
                    code: int | None = child.wait(_COLD * self._limit_s())
                except TimeoutError:
                    code = None
            ending = JobEnding(code, time.monotonic() - start)
            return _outcome(ending, folder / OUTPUT)

    def run_forked(self, candidate: Candidate) -> Outcome:
        """Runs a candidate in a fork of a process that has already imported torch."""
        try:
            text = self.text(candidate)
        except SyntaxError as error:
            return Outcome("broken", f"not valid Python: {error}", 0.0)
        with self._slots, self._folder(text, candidate.files) as folder:
            shared = self.signature.oracle not in _TIMING_ORACLES
            cache = Path(self._scratch.name, "cache") if shared else folder / "cache"
            job = {
                "folder": str(folder),
                "variables": self._run_variables(folder, cache),
            }
            with self._lock:
                ending = self._server().submit(job, self._limit_s())
            return _outcome(ending.result(), folder / OUTPUT)

    # -- processes ---------------------------------------------------------------------

    def _server(self) -> ForkServer:
        """Returns the fork server; starts it, or starts it again if it was killed."""
        if self._fork_server is not None and not self._fork_server.is_alive:
            self._fork_server.close()
            self._fork_server = None
        if self._fork_server is None:
            folder = Path(self._scratch.name)
            for name in ("home", "tmp"):
                (folder / name).mkdir(exist_ok=True)
            variables = self._run_variables(folder / "server", folder / "cache")
            python_path = {k: v for k, v in os.environ.items() if k == "PYTHONPATH"}
            child = spawn(  # as a file, which does not import this package
                *("-P", repro_process.__file__, self._preload),
                environment={**variables, **python_path},
                inherit=False,
                cwd=folder / "home",
                output=DEVNULL,
            )
            self._fork_server = ForkServer(child)
        return self._fork_server

    def _limit_s(self) -> float:
        """Returns the limit of one run; the hang oracle has to wait for the hang."""
        waits = 2.0 * float(self.signature.expected.get("seconds") or 0.0)
        return self.settings.limit_s + (waits if self.signature.oracle == "hang" else 0)

    @contextlib.contextmanager
    def _folder(self, text: str, files: Mapping[str, bytes]) -> Iterator[Path]:
        """Yields a temporary directory with the repro and its files."""
        with tempfile.TemporaryDirectory(dir=self._scratch.name) as scratch:
            folder = Path(scratch, "pack")
            folder.mkdir()
            for name in ("home", "tmp"):
                Path(scratch, name).mkdir()
            (folder / PROGRAM).write_text(text, encoding="utf-8")
            for name, content in files.items():
                (folder / name).write_bytes(content)
            yield folder

    def _run_variables(self, folder: Path, cache: Path) -> dict[str, str]:
        return self._variables | {
            "HOME": str(folder.parent / "home"),
            "TMPDIR": str(folder.parent / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }

    @property
    def _preload(self) -> str:
        """Returns what the fork server loads: torch, or torch and a warm backend."""
        if self.settings.device != "cpu":
            return "torch"
        dynamo = self.signature.oracle in _DYNAMO_ORACLES
        dynamo = dynamo or self.signature.expected.get("backend") == "eager"
        return "eager" if dynamo else "inductor"


def run_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that a run inherits."""
    return {
        name: value
        for name, value in environment.items()
        if _KEPT.match(name) and not _REMOVED.match(name)
    }


def _outcome(ending: JobEnding, output: Path) -> Outcome:
    code, seconds = ending.code, ending.seconds
    printed = output.read_bytes().decode(errors="replace") if output.exists() else ""
    lines = [line for line in printed.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else ""
    tail = printed[-_OUTPUT_CHARACTERS:]
    if code is None:
        return Outcome("timeout", f"it did not end in {seconds:.0f} s", seconds, tail)
    words, verdict = _VERDICTS.get(code, ("", "other"))
    # torch may print more lines after the verdict while the process exits.
    stated = [each.strip() for each in lines if words and each.startswith(f"{words}: ")]
    if stated:
        observed = stated[-1].removeprefix(f"{words}: ")
        return Outcome(verdict, stated[-1], seconds, tail, observed)
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return Outcome("broken", f"no verdict, {how}: {last}", seconds, tail)
