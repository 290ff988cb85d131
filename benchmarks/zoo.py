"""A survey of the ecosystem: `torchproof check` on models of five libraries.

    torchproof check benchmarks/zoo.py:timm_resnet18 --effort quick
    python benchmarks/zoo.py [--only LIBRARY] [--models NAME ...] [--jobs N] [--write]
    python benchmarks/zoo.py --build-only [--only LIBRARY] [--models NAME ...]

Each model of benchmarks/zoo_models.py is checked in processes of its own, on the CPU,
with the command that a user would type. `--effort quick` finds breaks, recompiles and
compile errors; above it, generated code is compiled, compared and timed as well, which
takes many times as long and says little about models of these sizes. Where the check
finds a break, a skipped function, or a recompile that does not settle, `torchproof fix`
shows what it can prove; nothing is written.

`--write` keeps each row as it ends, and rows that are kept are left out, so that a
survey that was cut off continues. A file holds rows of one commit; `--restart` throws
those of another one away. Exit code 1 when a model was not checked or a fix changed an
output, 2 when the file holds rows of another commit.
"""

from __future__ import annotations

import argparse
import contextlib
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
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.zoo_models import (  # noqa: E402
    FACTORIES,
    LIBRARIES,
    declare_missing_operators,
)
from benchmarks.zoo_rows import RESULTS, Row, is_to_fix  # noqa: E402

globals().update(FACTORIES)

TARGET = "benchmarks/zoo.py"
EFFORTS = ("quick", "normal", "full")
LIMIT_S = 300  # for a target, as --timeout
KEPT = (
    *("code", "kind", "severity", "status", "message", "cause", "fix"),
    *("file", "line", "function", "owner", "count", "source"),
)
_INSTALLED = re.compile(r"[^\s'\"(]*/(?:site|dist)-packages/")


# -- one model -------------------------------------------------------------------------


def command(verb: str, name: str, effort: str) -> str:
    """What a reader types to see a row again."""
    words = [f"torchproof {verb} {TARGET}:{name}"]
    words += ["--train"] if name.endswith("_training") else []
    words += [] if effort == "normal" else ["--effort", effort]
    return " ".join(words)


class Runner:
    """Runs commands of torchproof, and ends those that still run at an interrupt."""

    def __init__(self, effort: str, limit_s: int) -> None:
        self._effort, self._limit_s = effort, limit_s
        self.stopped = False
        self._running: set[subprocess.Popen[str]] = set()

    def check(self, name: str) -> Row:
        known, run = self._run("check", name)
        if run is None:
            return known
        part = run["parts"]["breaks"]
        if part["status"] == "failed":  # stopped at the limit, for example
            known["error"] = f"only a part was checked: {portable(part['why'])}"
        return known | {
            "counts": run["counts"],
            "findings": [kept(finding) for finding in run["findings"]],
            "parts": {
                part: {"status": each["status"], "why": portable(each["why"])}
                for part, each in run["parts"].items()
            },
        }

    def fix(self, name: str) -> Row:
        from benchmarks.fixes import outcome

        known, run = self._run("fix", name)
        if run is None:
            return known
        made = outcome(run)
        for each in (*made["accepted"], *made["rejected"], *made["left"]):
            each["file"] = portable(each["file"])
            each.pop("receipt", None)
        return known | made

    def _run(self, verb: str, name: str) -> tuple[Row, Row | None]:
        """What is known of a command, and the run that it printed."""
        effort = self._effort
        short = command(verb, name, effort)
        words = [*short.split()[1:], "--format", "json", "-q"]
        words += ["--timeout", str(self._limit_s)]
        words[1] = f"{ROOT}/{words[1]}"
        known: Row = {"command": short, "effort": effort, "error": None}
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            code, out, errors = self._ended(words, folder)
        known["seconds"] = round(time.monotonic() - begin, 1)
        known["exit_code"] = code
        if code is None:
            return known | {"error": f"it took longer than {self._whole_s} s"}, None
        run = json.loads(out) if out.strip() else None
        if run is None or run["error"]:
            said = run["error"] if run else (errors.strip() or "-").splitlines()[-1]
            error = portable(str(said).removeprefix("torchproof: error: "))
            return known | {"error": error}, None
        return known | {"ending": run["ending"]}, run

    @property
    def _whole_s(self) -> int:
        """For a command: it runs the target several times."""
        return 3 * self._limit_s

    def _ended(self, words: list[str], folder: str) -> tuple[int | None, str, str]:
        """The exit code, None for one that took too long, and what it printed."""
        running = subprocess.Popen(
            [sys.executable, "-m", "torchproof", *words],
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.add(running)
        try:
            out, errors = running.communicate(timeout=self._whole_s)
        except subprocess.TimeoutExpired:
            end(running)
            return None, "", ""
        finally:
            self._running.discard(running)
        return running.returncode, out, errors

    def stop(self) -> None:
        """Ends what runs; what it printed so far is no row."""
        self.stopped = True
        for running in list(self._running):
            running.terminate()


def environment(folder: str) -> dict[str, str]:
    """One thread, the CPU, and caches of its own: rows do not depend on their order."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "HF_HUB_OFFLINE": "1",
    }


def end(running: subprocess.Popen[str]) -> None:
    """At SIGTERM, torchproof ends its children before itself."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        running.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.communicate(timeout=20)
            return


def kept(finding: Row) -> Row:
    return {
        name: portable(value) if isinstance(value, str) else value
        for name, value in ((name, finding.get(name)) for name in KEPT)
    }


def portable(text: str | None) -> str | None:
    """Without the folders of this machine: a library's file begins with its package."""
    from benchmarks.result_files import without_paths

    return None if text is None else _INSTALLED.sub("", without_paths(text)).strip()


def line(row: Row, what: str) -> str:
    """One line of progress."""
    found = row[what]
    cell = f"{row['model']:44} {what:5} {found['seconds']:5.0f} s  "
    if found["error"]:
        return f"{cell}{' '.join(found['error'].split())[:100]}"
    if what == "fix":
        changes = [found[kind] for kind in ("breaks", "recompiles")]
        before = [each["before"] + each["uncovered"] for each in changes]
        gone = sum(before) - sum(each["after"] for each in changes)
        return f"{cell}removes {gone} of {sum(before)} findings"
    counts = found["counts"]
    failed = [
        part for part, each in found["parts"].items() if each["status"] == "failed"
    ]
    return (
        f"{cell}{counts['graphs']} graphs, {counts['graph_breaks']} breaks,"
        f" {counts['recompiles']} recompiles"
        + "".join(f"; {part} failed" for part in failed)
    )


# -- rows that are kept ----------------------------------------------------------------


class Survey:
    """The rows, all of one commit, and the file they are kept in."""

    def __init__(self, path: Path | None, commit: str, *, restart: bool) -> None:
        from benchmarks.result_files import assert_commit

        self._path, self._commit = path, commit
        self._lock = threading.Lock()
        self._known = facts()
        self.rows: dict[str, Row] = {}
        if path is not None and path.exists() and not restart:
            rows = json.loads(path.read_text(encoding="utf-8"))["models"]
            done = [row for row in rows if row["commit"] is not None]
            assert_commit(path, (row["commit"] for row in done), commit)
            self.rows = {row["model"]: row for row in done}

    def keep(self, name: str, what: str, found: Row) -> Row:
        from benchmarks.result_files import write

        with self._lock:
            row = self.rows.setdefault(name, self._blank(name) | {"check": found})
            row[what] = found
            row["commit"] = self._commit
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write(self._path, self._to_json())
        return row

    def _blank(self, name: str) -> Row:
        library = next(lib for lib, names in LIBRARIES.items() if name in names)
        known = {"model": name, "library": library, "commit": None}
        return known | {"check": None, "fix": None}

    def _to_json(self) -> Row:
        rows = [self.rows.get(name) or self._blank(name) for name in FACTORIES]
        return {**self._known, "models": rows}


def facts() -> Row:
    """Where the rows come from."""
    return {
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", *LIBRARIES)},
        "torchvision_operators_declared": declare_missing_operators(),
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- the command -----------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--only", action="append", default=[], choices=tuple(LIBRARIES))
    add("--models", nargs="+", default=[], metavar="NAME", choices=tuple(FACTORIES))
    add("--jobs", type=int, default=1, help="models at once (default: %(default)s)")
    add("--effort", choices=EFFORTS, default="quick", help="of checks and fixes")
    add("--timeout", type=int, default=LIMIT_S, metavar="S", help="for a target")
    add("--limit-seconds", type=float, metavar="N", help="start nothing after N s")
    add("--no-fix", action="store_true", help="checks only")
    add("--build-only", action="store_true", help="build each model and call it")
    add("--write", action="store_true", help="keep each row as it ends")
    add("--restart", action="store_true", help="forget all rows; --write")
    add("-o", "--output", type=Path, default=RESULTS, help="where rows are kept")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs: give at least 1")
    return options


def wanted(options: argparse.Namespace) -> list[str]:
    """The models, so that each library is as far as the others at any time."""
    places = {
        name: place / len(names)
        for library, names in LIBRARIES.items()
        if not options.only or library in options.only
        for place, name in enumerate(names)
        if not options.models or name in options.models
    }
    return sorted(places, key=lambda name: places[name])


def main(arguments: Sequence[str] | None = None) -> int:
    from benchmarks.result_files import OtherCommit, commit_of

    options = parse(arguments)
    names = wanted(options)
    if options.build_only:
        return built(names)
    path = options.output if options.write or options.restart else None
    try:
        survey = Survey(path, commit_of(ROOT), restart=options.restart)
    except (OtherCommit, subprocess.CalledProcessError, OSError) as error:
        print(f"zoo.py: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run_all(names, survey, options)
    return verdict(names, survey)


class Work:
    """What is to run: checks first, then the fixes that their findings ask for."""

    def __init__(
        self, names: list[str], survey: Survey, options: argparse.Namespace
    ) -> None:
        self._rows, self._fixes = survey.rows, not options.no_fix
        self._checks = [name for name in names if name not in survey.rows]
        self._names, self._taken = names, set[str]()
        self._open = 0  # checks that run
        self._changed = threading.Condition()
        limit = options.limit_seconds
        self._end = None if limit is None else time.monotonic() + limit

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """For each worker of its own, until nothing is left or the time is over."""
        while (task := self._next()) is not None:
            try:
                yield task
            finally:
                with self._changed:
                    self._open -= task[0] == "check"
                    self._changed.notify_all()

    def stop(self) -> None:
        """Nothing more is started."""
        with self._changed:
            self._end = 0.0
            self._changed.notify_all()

    def _next(self) -> tuple[str, str] | None:
        with self._changed:
            while self._end is None or time.monotonic() < self._end:
                if self._checks:
                    self._open += 1
                    return "check", self._checks.pop(0)
                for name in self._names if self._fixes else ():
                    row = self._rows.get(name)
                    if row and name not in self._taken and is_to_fix(row):
                        self._taken.add(name)
                        return "fix", name
                if not self._open:
                    return None
                self._changed.wait(1.0)
        return None


def run_all(names: list[str], survey: Survey, options: argparse.Namespace) -> None:
    runner = Runner(options.effort, options.timeout)
    work = Work(names, survey, options)

    def worker() -> None:
        for what, name in work:
            found = runner.check(name) if what == "check" else runner.fix(name)
            if runner.stopped:
                return
            row = survey.keep(name, what, found)
            print(line(row, what), file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        workers = [pool.submit(worker) for _ in range(options.jobs)]
        try:
            for each in workers:
                each.result()
        except BaseException:
            work.stop()
            runner.stop()
            raise


def verdict(names: list[str], survey: Survey) -> int:
    rows = [survey.rows[name] for name in names if name in survey.rows]
    failed = [row for row in rows if row["check"]["error"]]
    wrong = [row for row in rows if (row["fix"] or {}).get("outputs") == "wrong"]
    left = sum(is_to_fix(row) for row in rows)
    for row in failed:
        print(f"not checked: {row['model']}: {row['check']['error']}")
    for row in wrong:
        print(f"outputs differ with fixes: {row['model']}")
    print(
        f"{len(rows) - len(failed)} of {len(names)} models checked,"
        f" {len(failed)} failed, {len(names) - len(rows)} not started,"
        f" {left} fixes not started"
    )
    return 1 if failed or wrong else 0


def built(names: list[str]) -> int:
    """Builds each model in this process and calls it, without torchproof."""
    import torch

    failed = []
    for name in names:
        torch.manual_seed(0)
        try:
            model, calls = FACTORIES[name]()
            with torch.no_grad():
                for call in calls:
                    model(**call) if isinstance(call, dict) else model(*call)
        except Exception as error:
            failed.append(name)
            said = traceback.format_exception_only(error)[-1].strip()
            print(f"{name}: {said.splitlines()[0]}", flush=True)
    print(f"{len(names) - len(failed)} of {len(names)} models build and run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
