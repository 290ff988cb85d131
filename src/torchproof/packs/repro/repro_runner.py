"""Runs candidates as the repro that each would be, and says what they showed.

Comes in: candidates of one symptom. Goes out: outcomes, in the words of the judge that is a
part of each repro, so that "the same failure" means the same everywhere.
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
from torchproof.packs.repro.failure_signature import Symptom
from torchproof.packs.repro.fork_server import OUTPUT, PROGRAM, end_family, end_session
from torchproof.process import parent_death

_Ending: TypeAlias = tuple[int | None, float]

# What a run needs of its surroundings, and what steers torch.
_NEEDED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "CC", "CXX", "SYSTEMROOT")
_STEERING: tuple[str, ...] = (
    "LC_",
    "CUDA",
    "NVIDIA",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
)
_STEERING += ("TORCH", "PYTORCH", "TRITON", "NCCL_", "ROCM", "HIP_", "CUBLAS")
_NOT_HANDED_ON: tuple[str, ...] = (
    "TORCHPROOF_",
    "TORCH_LOGS",
    "TORCH_TRACE",
    "TORCHELASTIC",
)
_NOT_HANDED_ON += ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
# Judges that only look at what Dynamo does: no code is generated for them.
_OF_DYNAMO = frozenset({"breaks", "recompiles", "no_ops"})
# Judges of how long a compilation takes: one must not profit from another.
_OF_TIME = frozenset({"compile_time", "hang"})
_KEPT = 12_000  # characters of what a run printed
_VERDICTS: dict[int, tuple[str, Literal["same", "other", "none"]]] = {
    1: ("FAILS AS STATED", "same"),
    0: ("DOES NOT FAIL", "none"),
    3: ("FAILS IN ANOTHER WAY", "other"),
}
# `python -I` still sees what is installed: torchproof must not be among it.
_RUNNER = (
    "import ctypes, os, runpy, sys; ctypes.CDLL(None).prctl(1, 9);"
    " os.getppid() == int(sys.argv[1]) or sys.exit(1);"
    " sys.modules['torchproof'] = None; sys.argv[:] = ['repro.py'];"
    " runpy.run_path(os.path.abspath('repro.py'), run_name='__main__')"
)


class Court:
    """Tries candidates for one symptom; to be closed, or used as a context manager.

    `variables` steer torch in each run, beside those of this process. Both ways of
    trying may be used from many threads at once.
    """

    def __init__(
        self,
        symptom: Symptom,
        settings: Settings,
        *,
        header: str = "",
        variables: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.symptom, self.settings, self.header = symptom, settings, header
        self._variables = surroundings(os.environ) | dict(variables or {})
        self._scratch = tempfile.TemporaryDirectory(
            prefix="torchproof-court-", dir=folder
        )
        self._nursery: _Nursery | None = None
        self._lock = threading.Lock()
        self._seats = threading.Semaphore(os.cpu_count() or 1)

    def __enter__(self) -> Court:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
        with contextlib.suppress(OSError):
            self._scratch.cleanup()

    def text(self, candidate: Candidate, settings: Settings | None = None) -> str:
        return repro_text(
            candidate, self.symptom, settings or self.settings, self.header
        )

    def clean(self, candidate: Candidate, settings: Settings | None = None) -> Outcome:
        """Runs it as a stranger would: a process of its own, nothing but torch."""
        return self.clean_text(self.text(candidate, settings), candidate.files)

    def clean_text(
        self,
        text: str,
        files: Mapping[str, bytes] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Outcome:
        """As `clean`, of a `repro.py` that is written already."""
        with self._folder(text, files or {}) as folder:
            command = [sys.executable, "-I", "-u", "-c", _RUNNER, str(os.getpid())]
            ending = self._run(command, folder, variables or {})
            return _outcome(*ending, folder / OUTPUT)

    def quick(self, candidate: Candidate, settings: Settings | None = None) -> Outcome:
        """Runs it in a fork of a process that has torch loaded."""
        try:
            text = self.text(candidate, settings)
        except SyntaxError as error:
            return Outcome("broken", f"it is no Python: {error}", 0.0)
        with self._seats, self._folder(text, candidate.files) as folder:
            shared = self.symptom.judge not in _OF_TIME
            cache = Path(self._scratch.name, "cache") if shared else folder / "cache"
            job = {
                "folder": str(folder),
                "variables": self._surroundings(folder, cache),
                "limit_s": self._limit_s(settings),
            }
            return _outcome(*self._in_nursery(job), folder / OUTPUT)

    def quick_all(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """Each tried, as many at a time as there are cores."""
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(self.quick, candidates))

    # -- where it runs -----------------------------------------------------------------

    def _limit_s(self, settings: Settings | None = None) -> float:
        """Of one run; a hang must be seen to last first."""
        waits = 2.0 * float(self.symptom.expected.get("seconds") or 0.0)
        limit_s = (settings or self.settings).limit_s
        return limit_s + (waits if self.symptom.judge == "hang" else 0.0)

    @contextlib.contextmanager
    def _folder(self, text: str, files: Mapping[str, bytes]) -> Iterator[Path]:
        """With the repro and what lies beside it; gone afterwards."""
        with tempfile.TemporaryDirectory(dir=self._scratch.name) as scratch:
            folder = Path(scratch, "pack")
            folder.mkdir()
            for name in ("home", "tmp"):
                Path(scratch, name).mkdir()
            (folder / PROGRAM).write_text(text, encoding="utf-8")
            for name, content in files.items():
                (folder / name).write_bytes(content)
            yield folder

    def _surroundings(self, folder: Path, cache: Path) -> dict[str, str]:
        beside = folder.parent
        return self._variables | {
            "HOME": str(beside / "home"),
            "TMPDIR": str(beside / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }

    def _run(
        self, command: list[str], folder: Path, more: Mapping[str, str]
    ) -> _Ending:
        began = time.monotonic()
        variables = self._surroundings(folder, folder.parent / "cache") | dict(more)
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
                end_session(process.pid)  # what it left behind
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    end_family(process.pid)
                    process.wait()
        return code, time.monotonic() - began

    def _in_nursery(self, job: dict[str, Any]) -> _Ending:
        with self._lock:
            if self._nursery is None or not self._nursery.is_alive:
                if self._nursery is not None:
                    self._nursery.close()
                folder = Path(self._scratch.name)
                variables = self._surroundings(folder / "nursery", folder / "cache")
                self._nursery = _Nursery(self._warmth, variables, folder)
            answer = self._nursery.ask(job)
        return answer.result()

    @property
    def _warmth(self) -> str:
        """What the nursery loads besides torch."""
        if self.settings.device != "cpu":
            return "torch"
        dynamo = self.symptom.judge in _OF_DYNAMO
        dynamo = dynamo or self.symptom.expected.get("backend") == "eager"
        return "eager" if dynamo else "inductor"


def surroundings(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a run gets to see."""
    return {
        name: value
        for name, value in environment.items()
        if (name in _NEEDED or name.startswith(_STEERING))
        and not name.startswith(_NOT_HANDED_ON)
    }


def _outcome(code: int | None, seconds: float, output: Path) -> Outcome:
    printed = output.read_bytes().decode(errors="replace") if output.exists() else ""
    lines = [line for line in printed.splitlines() if line.strip()]
    last, kept = (lines[-1].strip() if lines else ""), printed[-_KEPT:]
    if code is None:
        return Outcome("timeout", f"it did not end in {seconds:.0f} s", seconds, kept)
    words, verdict = _VERDICTS.get(code, ("", "other"))
    # What torch says while the process ends may come after it.
    told = [line.strip() for line in lines if words and line.startswith(f"{words}: ")]
    if told:
        return Outcome(verdict, told[-1], seconds, kept)
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return Outcome("broken", f"no verdict, {how}: {last}", seconds, kept)


class _Nursery:
    """This process's end of `repro.nursery`."""

    def __init__(self, warmth: str, variables: Mapping[str, str], folder: Path) -> None:
        (folder / "home").mkdir(exist_ok=True)
        (folder / "tmp").mkdir(exist_ok=True)
        own = {
            k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        self._process = parent_death.begun(
            lambda: subprocess.Popen(
                [sys.executable, fork_server.__file__, warmth],
                cwd=folder / "home",
                env={**variables, **own, **parent_death.parent()},
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

    def ask(self, job: Mapping[str, Any]) -> Future[_Ending]:
        answer: Future[_Ending] = Future()
        with self._lock:
            self._count += 1
            self._waiting[self._count] = answer
            line = json.dumps({**job, "number": self._count}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            self._forget_all()
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._lock:
                answer = self._waiting.pop(told["number"])
            answer.set_result((told["code"], told["seconds"]))
        self._forget_all()

    def _forget_all(self) -> None:
        """It has ended: what was asked of it gets no answer."""
        with self._lock:
            left, self._waiting = self._waiting, {}
        for answer in left.values():
            answer.set_result((-9, 0.0))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            end_family(self._process.pid)
            self._process.wait()
        self._reader.join(2.0)
        self._process.stdout.close()
