"""Runs candidates as `repro.py` files and returns their outcomes.

Takes candidates for one failure signature. The oracle that is part of each repro gives
the verdict, so "the same failure" means the same here and for whoever opens the pack.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torchproof.packs.repro import fork_server
from torchproof.packs.repro.assembly import repro_text
from torchproof.packs.repro.candidate import Candidate, Outcome, Settings
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.fork_server import (
    OUTPUT,
    PROGRAM,
    end_process_tree,
    end_session,
)
from torchproof.process import parent_death

_Ending: TypeAlias = tuple[int | None, float]  # exit code (None: timeout), seconds

# Variables that a run needs, and prefixes of those that configure torch.
_NEEDED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "CC", "CXX", "SYSTEMROOT")
_CONFIGURING = (
    "LC_",
    "CUDA",
    "NVIDIA",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "TORCH",
    "PYTORCH",
    "TRITON",
    "NCCL_",
    "ROCM",
    "HIP_",
    "CUBLAS",
)
_REMOVED = (
    "TORCHPROOF_",
    "TORCH_LOGS",
    "TORCH_TRACE",
    "TORCHELASTIC",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)
# Oracles that observe Dynamo alone: they use a backend that generates no code.
_DYNAMO_ORACLES = frozenset({"breaks", "recompiles", "no_ops"})
# Oracles that time a compilation: they must not share compiler caches.
_TIMING_ORACLES = frozenset({"compile_time", "hang"})
_OUTPUT_CHARACTERS = 12_000  # of a run's output, counted from its end
_VERDICTS: dict[int, tuple[str, Literal["same", "other", "none"]]] = {
    1: ("FAILS AS STATED", "same"),
    0: ("DOES NOT FAIL", "none"),
    3: ("FAILS IN ANOTHER WAY", "other"),
}
# `python -I` still sees installed packages, so torchproof has to be hidden.
_RUNNER = (
    "import ctypes, os, runpy, sys; ctypes.CDLL(None).prctl(1, 9);"
    " os.getppid() == int(sys.argv[1]) or sys.exit(1);"
    " sys.modules['torchproof'] = None; sys.argv[:] = ['repro.py'];"
    " runpy.run_path(os.path.abspath('repro.py'), run_name='__main__')"
)


class ReproRunner:
    """Runs candidates for one failure signature; close it or use it in `with`.

    Each run gets the variables of this process that configure torch, and `variables`.
    All methods that run candidates are thread-safe.
    """

    def __init__(
        self,
        signature: FailureSignature,
        settings: Settings,
        *,
        header: str = "",
        variables: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.signature = signature
        self.settings = settings
        self.header = header
        self._variables = run_variables(os.environ) | dict(variables or {})
        self._scratch = tempfile.TemporaryDirectory(
            prefix="torchproof-runner-", dir=folder
        )
        self._fork_server: _ForkServer | None = None
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(os.cpu_count() or 1)

    def __enter__(self) -> ReproRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fork_server is not None:
            self._fork_server.close()
        with contextlib.suppress(OSError):
            self._scratch.cleanup()

    def text(self, candidate: Candidate, settings: Settings | None = None) -> str:
        return repro_text(
            candidate, self.signature, settings or self.settings, self.header
        )

    def run_isolated(
        self, candidate: Candidate, settings: Settings | None = None
    ) -> Outcome:
        """Runs a candidate in a new process that can import only torch."""
        return self.run_isolated_source(self.text(candidate, settings), candidate.files)

    def run_isolated_source(
        self,
        text: str,
        files: Mapping[str, bytes] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Runs the text of a `repro.py` like `run_isolated`."""
        with self._folder(text, files or {}) as folder:
            command = [sys.executable, "-I", "-u", "-c", _RUNNER, str(os.getpid())]
            ending = self._run(command, folder, variables or {})
            return _outcome(*ending, folder / OUTPUT)

    def run_forked(
        self, candidate: Candidate, settings: Settings | None = None
    ) -> Outcome:
        """Runs a candidate in a fork of a process that has already imported torch."""
        try:
            text = self.text(candidate, settings)
        except SyntaxError as error:
            return Outcome("broken", f"not valid Python: {error}", 0.0)
        with self._slots, self._folder(text, candidate.files) as folder:
            shared = self.signature.oracle not in _TIMING_ORACLES
            cache = Path(self._scratch.name, "cache") if shared else folder / "cache"
            job = {
                "folder": str(folder),
                "variables": self._run_variables(folder, cache),
                "limit_s": self._limit_s(settings),
            }
            return _outcome(*self._run_in_fork_server(job), folder / OUTPUT)

    def run_all_forked(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """Runs all candidates, as many at a time as there are cores."""
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(self.run_forked, candidates))

    # -- processes ---------------------------------------------------------------------

    def _limit_s(self, settings: Settings | None = None) -> float:
        """Returns the limit of one run; the hang oracle has to wait for the hang."""
        waits = 2.0 * float(self.signature.expected.get("seconds") or 0.0)
        limit_s = (settings or self.settings).limit_s
        return limit_s + (waits if self.signature.oracle == "hang" else 0.0)

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

    def _run(
        self, command: list[str], folder: Path, more: Mapping[str, str]
    ) -> _Ending:
        start = time.monotonic()
        variables = self._run_variables(folder, folder.parent / "cache") | dict(more)
        with (folder / OUTPUT).open("wb") as output:
            process = parent_death.begun(
                lambda: subprocess.Popen(
                    command,
                    cwd=folder,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
            try:
                code: int | None = process.wait(self._limit_s())
                end_session(process.pid)  # processes that it left behind
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    end_process_tree(process.pid)
                    process.wait()
        return code, time.monotonic() - start

    def _run_in_fork_server(self, job: dict[str, Any]) -> _Ending:
        with self._lock:
            if self._fork_server is None or not self._fork_server.is_alive:
                if self._fork_server is not None:
                    self._fork_server.close()
                folder = Path(self._scratch.name)
                variables = self._run_variables(
                    folder / "fork_server", folder / "cache"
                )
                self._fork_server = _ForkServer(self._preload, variables, folder)
            ending = self._fork_server.submit(job)
        return ending.result()

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
        if (name in _NEEDED or name.startswith(_CONFIGURING))
        and not name.startswith(_REMOVED)
    }


def _outcome(code: int | None, seconds: float, output: Path) -> Outcome:
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
        return Outcome(verdict, stated[-1], seconds, tail)
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return Outcome("broken", f"no verdict, {how}: {last}", seconds, tail)


class _ForkServer:
    """The client of `fork_server`."""

    def __init__(
        self, preload: str, variables: Mapping[str, str], folder: Path
    ) -> None:
        (folder / "home").mkdir(exist_ok=True)
        (folder / "tmp").mkdir(exist_ok=True)
        python_variables = {
            k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        self._process = parent_death.begun(
            lambda: subprocess.Popen(
                [sys.executable, fork_server.__file__, preload],
                cwd=folder / "home",
                env={**variables, **python_variables, **parent_death.parent()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        self._waiting: dict[int, Future[_Ending]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def submit(self, job: Mapping[str, Any]) -> Future[_Ending]:
        ending: Future[_Ending] = Future()
        with self._lock:
            self._count += 1
            self._waiting[self._count] = ending
            line = json.dumps({**job, "number": self._count}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail_all()
        return ending

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            with self._lock:
                ending = self._waiting.pop(reply["number"])
            ending.set_result((reply["code"], reply["seconds"]))
        self._fail_all()

    def _fail_all(self) -> None:
        """Ends all pending jobs: the server process is gone."""
        with self._lock:
            pending = self._waiting
            self._waiting = {}
        for ending in pending.values():
            ending.set_result((-9, 0.0))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            end_process_tree(self._process.pid)
            self._process.wait()
        self._reader.join(2.0)
        self._process.stdout.close()
