"""Surveys: a table of rows, and a function that measures one of them.

    SURVEY = Survey("zoo", rows=names, measure=measure, failures=failures)

    if __name__ == "__main__":
        sys.exit(SURVEY.main())

Every row runs in a process of its own, under a time limit, and is stored when it ends:
a survey that was cut off continues. All rows of a file are of one commit. The result is
one JSON document: `command`, `commit`, `dirty`, `python`, `versions`, `machine`,
`device`, `quick`, `rows` by name, and `failures`, the claims that do not hold. Rows
that are saved runs of torchproof lie in a folder instead, one file each.

    python -m benchmarks.NAME [ROW ...] [--quick] [--device cuda] [--jobs N] [-o FILE]

`--quick` measures the part that `make prove` runs, and stores it in results/quick. Exit
code 1 if a claim does not hold, 2 if the file has rows of another commit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COMMIT = "TORCHPROOF_COMMIT"  # names the commit where git does not know it
FORMAT = 1
# Results and the pages made of them change during a run, and run nothing.
_NO_CODE = (":!benchmarks/results", ":!docs", ":!*.md")
_INSTALLED = re.compile(r"[^\s'\"(]*/(?:site|dist)-packages/")
_GRACE_S = 20.0  # for a process to end its own children

Row = dict[str, Any]
Options = argparse.Namespace


class OtherCommit(Exception):
    """The file has rows that this code did not give."""


@dataclass(frozen=True)
class Survey:
    """One benchmark. `rows` gets the options; `quick` names the rows of --quick."""

    name: str
    rows: Callable[[Options], Iterable[str]]
    measure: Callable[[str, Options], Row]
    failures: Callable[[dict[str, Row]], Iterable[str]]
    quick: Sequence[str] = ()  # none: all rows
    limit_s: float = 600.0
    jobs: int = 1
    packages: Sequence[str] = ()  # whose versions are recorded, besides torch
    devices: Sequence[str] = ("cpu",)
    # A row that starts its own processes needs none around it.
    is_isolated: bool = True
    is_alone: Callable[[str], bool] = lambda row: False  # runs after the others
    is_folder: bool = False
    flags: Mapping[str, Row] = field(default_factory=dict)  # for `add_argument`
    result: str = ""  # the stem of the file, if not that of the module and the device
    summary: Callable[[dict[str, Row]], str] = lambda rows: ""  # to print at the end

    def path(self, device: str = "cpu", *, quick: bool = False) -> Path:
        """The result file, or the folder of saved runs."""
        folder = RESULTS / "quick" if quick else RESULTS
        default = f"{self.name}-{device}" if len(self.devices) > 1 else self.name
        stem = (self.result or default).format(device=device)
        return folder / (stem if self.is_folder else f"{stem}.json")

    def read(self, device: str = "cpu", *, quick: bool = False) -> Row:
        """The stored result; without rows if there is none."""
        path = self.path(device, quick=quick)
        if not path.exists():
            return {"rows": {}}
        document: Row = json.loads(path.read_text(encoding="utf-8"))
        return document

    def main(self, arguments: Sequence[str] | None = None) -> int:
        options = self._parse(arguments)
        if options.child is not None:
            print(json.dumps(self.measure(options.child, options)))
            return 0
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            run = _Run(self, options, arguments)
        except OtherCommit as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return 2
        return run.run()

    def _parse(self, arguments: Sequence[str] | None) -> Options:
        module = sys.modules.get(self.measure.__module__)
        about = (getattr(module, "__doc__", None) or self.name).split("\n")[0]
        parser = argparse.ArgumentParser(f"python -m benchmarks.{self.name}")
        parser.description = about
        add = parser.add_argument
        add("names", nargs="*", metavar="ROW", help="these rows only")
        add("--quick", action="store_true", help="the part that `make prove` runs")
        add("--device", choices=self.devices, default=self.devices[0])
        add("--jobs", type=int, default=self.jobs, help="rows at the same time")
        add("--limit", type=float, default=self.limit_s, help="seconds of a row")
        add("--seconds", type=float, help="begin no row after so many seconds")
        add("--restart", action="store_true", help="measure stored rows again")
        add("-o", "--output", type=Path, help="the result file, or folder")
        add("--list", action="store_true", help="name the rows")
        add("--child", metavar="ROW", help=argparse.SUPPRESS)
        for flag, settings in self.flags.items():
            add(flag, **settings)
        options = parser.parse_args(arguments)
        known = list(self.rows(options))
        if unknown := [name for name in options.names if name not in known]:
            parser.error(f"no row {unknown[0]!r}: --list names them")
        if options.list:
            parser.exit(0, "\n".join(known) + "\n")
        chosen = self.quick if options.quick and self.quick else known
        options.names = options.names or list(chosen)
        device = options.device
        options.output = options.output or self.path(device, quick=options.quick)
        return options


class _Run:
    """One run of a survey: measures what is missing and stores it."""

    def __init__(
        self, survey: Survey, options: Options, arguments: Sequence[str] | None
    ) -> None:
        self._survey, self._options = survey, options
        self._arguments = list(sys.argv[1:] if arguments is None else arguments)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False
        self._commit, self._dirty = commit_of(ROOT)
        limit = options.seconds
        self._end = None if limit is None else time.monotonic() + limit
        self._rows = {} if options.restart else self._stored()

    def _stored(self) -> dict[str, Row]:
        path = self._options.output
        if self._survey.is_folder:
            files = {name: path / f"{name}.json" for name in self._options.names}
            return {
                n: json.loads(f.read_text()) for n, f in files.items() if f.exists()
            }
        if not path.exists():
            return {}
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["commit"] != self._commit:
            if self._options.quick:
                return {}
            raise OtherCommit(
                f"{path} has rows of {document['commit']}, and this is {self._commit}:"
                " use --restart, or another file with -o"
            )
        rows: dict[str, Row] = document["rows"]
        return {name: row for name, row in rows.items() if "error" not in row}

    def run(self) -> int:
        missing = [name for name in self._options.names if name not in self._rows]
        for is_alone in (False, True):
            rows = [name for name in missing if self._survey.is_alone(name) is is_alone]
            self._measure(rows, 1 if is_alone else max(self._options.jobs, 1))
        failures = self._store()
        for text in failures:
            print(f"does not hold: {text}")
        sound = {n: row for n, row in self._rows.items() if not row.get("error")}
        if summary := self._survey.summary(sound):
            print(summary)
        names = self._options.names
        measured = sum(name in self._rows for name in names)
        print(f"{self._survey.name}: {measured} of {len(names)} rows measured")
        return int(bool(failures))

    def _measure(self, names: list[str], jobs: int) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for job in [pool.submit(self._one, name) for name in names]:
                    job.result()
            except BaseException:
                self._ended = True
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self._running):
                    _end(process)
                raise

    def _one(self, name: str) -> None:
        if self._ended or (self._end is not None and time.monotonic() > self._end):
            return
        begin = time.monotonic()
        if self._survey.is_isolated:
            row = self._in_process(name)
        else:
            try:
                row = self._survey.measure(name, self._options)
            except Exception as error:
                row = {"error": portable(f"{type(error).__name__}: {error}")[:300]}
        if self._ended:
            return
        if not self._survey.is_folder:
            row["seconds"] = round(time.monotonic() - begin, 1)
        with self._lock:
            self._rows[name] = row
            self._store(name)
        took = time.monotonic() - begin
        print(f"{name}: {row.get('error') or 'done'}, {took:.0f} s", file=sys.stderr)

    def _in_process(self, name: str) -> Row:
        module = f"benchmarks.{self._survey.name}"
        command = [sys.executable, "-m", module, *self._arguments, "--child", name]
        code, out, err = self._limited(command)
        if code is None:
            return {"error": f"not finished after {self._options.limit:.0f} s"}
        lines = out.strip().splitlines()
        if code or not lines:
            last = (err.strip().splitlines() or ["no output"])[-1]
            return {"error": f"exit code {code}: {portable(last)[:300]}"}
        row: Row = json.loads(lines[-1])
        return row

    def _limited(self, command: list[str]) -> tuple[int | None, str, str]:
        """Exit code, None after the limit, with stdout and stderr."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(cache),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
            try:
                out, err = process.communicate(timeout=self._options.limit)
            except subprocess.TimeoutExpired:
                _end(process)
                return None, "", ""
            finally:
                self._running.discard(process)
        return process.returncode, out, err

    def _store(self, name: str | None = None) -> list[str]:
        """Writes the rows so far; returns the claims that do not hold for them."""
        known = {n: self._rows[n] for n in self._order() if n in self._rows}
        # A saved run has a field for its error, which is null as a rule.
        wrong = {n: row["error"] for n, row in known.items() if row.get("error")}
        errors = [f"{name}: {error}" for name, error in wrong.items()]
        sound = {name: row for name, row in known.items() if name not in wrong}
        failures = [*errors, *self._survey.failures(sound)]
        path = self._options.output
        if not self._survey.is_folder:
            write(path, self._header() | {"rows": known, "failures": failures})
        elif name is not None and name not in wrong:
            write(path / f"{name}.json", known[name])
        return failures

    def _order(self) -> list[str]:
        return list(self._survey.rows(self._options))

    def _header(self) -> Row:
        words, names = iter(self._arguments), []
        for word in words:
            if word in ("-o", "--output"):
                next(words)
            elif word != "--restart":
                names.append(word)
        return {
            "survey": FORMAT,
            "command": " ".join([f"python -m benchmarks.{self._survey.name}", *names]),
            "commit": self._commit,
            "dirty": self._dirty,
            "python": platform.python_version(),
            "versions": versions("torch", *self._survey.packages),
            "machine": machine(self._options.device),
            "device": self._options.device,
            "quick": self._options.quick,
            "jobs": self._options.jobs,
        }


# -- what rows and results need --------------------------------------------------------


def torchproof(
    *words: str, limit_s: float = 1800.0, cwd: Path | None = None
) -> tuple[Row | None, str | None]:
    """The run that a command prints with --format json, or the error it ends with."""
    command = ("-m", "torchproof", *words, "--format", "json", "-q")
    try:
        done = python(*command, cwd=cwd, limit_s=limit_s)
    except subprocess.TimeoutExpired:
        return None, f"not finished after {limit_s:.0f} s"
    run: Row | None = json.loads(done.stdout) if done.stdout.strip() else None
    if run is None or run["error"]:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        error = str(run["error"] if run else last)
        return None, portable(error.removeprefix("torchproof: error: "))
    return run, None


def python(
    *words: str, cwd: Path | None = None, limit_s: float | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """A process with empty caches, in an empty folder by default."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return subprocess.run(
            [sys.executable, *words],
            cwd=cwd or folder,
            env=environment(folder) | more,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )


def answer(*words: str) -> str:
    """The last line that such a process prints, in the folder of the repository."""
    done = python(*words, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return (done.stdout.splitlines() or [""])[-1]


def environment(cache: str) -> dict[str, str]:
    """Empty caches of the compiler, and this source."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "HF_HUB_OFFLINE": "1",
    }


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process and what it started; torchproof ends its children at SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            if number == signal.SIGKILL:
                return


def write(path: Path, document: Row) -> None:
    """Replaces the file at once: an interrupt leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def portable(text: str | None) -> str:
    """Without folders of this machine: a library's file begins with its package."""
    plain = (text or "").replace(f"{ROOT}{os.sep}", "").replace(sys.prefix, ".venv")
    return _INSTALLED.sub("", plain).strip()


def versions(*packages: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine(device: str) -> Row:
    facts: Row = {"arch": platform.machine(), "cores": len(os.sched_getaffinity(0))}
    if device == "cuda":
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        with contextlib.suppress(OSError):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            facts["gpu"] = done.stdout.strip().split("\n")[0] or None
    return facts


def commit_of(root: Path) -> tuple[str, bool]:
    """The commit of the code, and whether it has changes; each change has a name."""
    if given := os.environ.get(COMMIT):
        return given, False
    try:
        name = _git(root, "rev-parse", "--short=12", "HEAD").decode().strip()
        changes = _git(root, "diff", "HEAD", "--binary", "--", ".", *_NO_CODE)
        others = ("ls-files", "-z", "--others", "--exclude-standard", "--", ".")
        files = _git(root, *others, *_NO_CODE).decode()
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True
    digest = hashlib.sha256(changes)
    for file in filter(None, files.split("\0")):
        digest.update(file.encode())
        path = root / file  # git lists a link to a folder as one file
        link = path.is_symlink()
        digest.update(os.fsencode(path.readlink()) if link else path.read_bytes())
    if changes or files:
        return f"{name}-dirty-{digest.hexdigest()[:8]}", True
    return name, False


def _git(root: Path, *words: str) -> bytes:
    command = ["git", *words]
    return subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
