"""Runs every test and every measurement of torchproof itself: `make prove`.

Its result, benchmarks/results/prove.json (on a GPU: prove-gpu.json), is one file: which
source was proved on which machine, what passed, failed and was skipped, and the seconds
of each folder of tests and of each measurement. README and the page on reliability
quote it.

Each test and each measurement is noted as it ends. A run that was cut off continues
there, as long as the source is the same; what had failed runs again. After a change of
a test module only its tests and the planted defects run again.

    python scripts/prove.py [--gpu] [--only STEP...] [--list]
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".torchproof" / "prove"
sys.path.insert(0, str(ROOT))

from benchmarks.survey import RESULTS, commit_of, machine, versions, write  # noqa: E402

# What the result depends on. Results and documents are written meanwhile.
_SOURCE = ("src", "tests", "scripts", "benchmarks")
_SETTINGS = ("pyproject.toml", "constraints.txt", "Makefile")
_NO_SOURCE = {"__pycache__", "results", ".torchproof", ".hypothesis"}
_VERSIONS = ("torch", "transformers", "ray", "numpy", "pytest")
ROWS = "TORCHPROOF_PROVE_ROWS"  # the file that gets a row for each test
_BEFORE = ".before"  # the ending of its copy from before the step
_NO_TESTS = 5  # pytest's exit code if nothing was left to run


@dataclass(frozen=True)
class Step:
    """One claim, and the command that shows it; Python runs it from the root."""

    name: str
    claim: str
    arguments: tuple[str, ...]
    limit_s: int = 900
    runs_tests: bool = False  # what it shows depends on the test modules


def tests(name: str, claim: str, marks: str, at_a_time: int) -> Step:
    # worksteal: the long tests of one folder do not keep one process busy at the end.
    several = ("-n", str(at_a_time), "--dist", "worksteal") if at_a_time > 1 else ()
    # pytest-benchmark, where it is installed, refuses to run beside several processes.
    plugins = ("-p", "prove", "-p", "no:benchmark")
    arguments = ("-m", "pytest", "-q", "-rs", *plugins, *several, "-m", marks)
    return Step(name, claim, arguments, limit_s=60 * 60, runs_tests=True)


def survey(name: str, claim: str) -> Step:
    module = f"benchmarks.{name.replace('-', '_')}"
    return Step(name, claim, ("-m", module, "--quick"))


# What is timed comes last, when nothing else runs.
STEPS = (
    tests("tests", "every test that needs no GPU passes", "not gpu", 3),
    Step(
        "mutants",
        "the tests find each of the planted defects",
        ("scripts/mutants.py", "--quick"),
        limit_s=1800,
        runs_tests=True,
    ),
    survey("reliability", "torchproof.compile survives every kind of fault"),
    survey("soak", "torchproof.compile survives hundreds of faults in one process"),
    survey(
        "fuzz-files", "damaged files of every format are read or refused in one line"
    ),
    survey(
        "fuzz-state",
        "programs that read state in every way of Python answer as eager does after"
        " random changes, replayed and compiled",
    ),
    Step(
        "advice",
        "advice of check that can be applied works: the finding is gone, the outputs"
        " are the same, nothing is new",
        ("-m", "benchmarks.advice", "--quick"),
        limit_s=600,
    ),
    survey(
        "zoo", "fix removes the breaks of a transformers model and changes no output"
    ),
    survey(
        "check-cost",
        "check costs at most 1.3, 4 and 6 times a bare run: quick, normal, full",
    ),
    survey(
        "timing",
        "bench reports a step of 1 ms at most 1 percent too long, its loop adds at most"
        " 2 percent, and it measures work of a known cost correctly",
    ),
    survey(
        "graph-speed",
        "what torchproof.graph compares before a replay takes at most 60 us for a GPT-2"
        " of 12 layers (300 us on Python 3.11)",
    ),
    survey("call-overhead", "torchproof.compile adds at most 2 us to a call"),
    survey(
        "warm-start", "a deploy pack starts in a quarter of the time of a cold start"
    ),
)

GPU_STEPS = (
    tests("gpu-tests", "the tests on a GPU pass", "gpu and not alone", 12),
    tests("gpu-alone", "those that need the whole GPU pass", "gpu and alone", 1),
)


# -- Which source, which machine


def source_digest(root: Path = ROOT, *, test_modules: bool = True) -> str:
    """The same for the same files, on a machine whose git does not know the commit."""
    digest = hashlib.sha256()
    files = [root / name for name in _SETTINGS]
    for folder in _SOURCE:
        files += [
            path
            for path in (root / folder).rglob("*")
            if path.is_file()
            and not path.is_symlink()
            and not _NO_SOURCE & set(path.relative_to(root).parts)
            and (test_modules or not _is_test_module(path, root))
        ]
    for path in sorted(files):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _is_test_module(path: Path, root: Path) -> bool:
    """A file on which no other file depends."""
    is_test = path.name.startswith("test_") and path.suffix == ".py"
    return is_test and path.stem not in _imported_test_modules(root)


@functools.cache
def _imported_test_modules(root: Path) -> frozenset[str]:
    texts = [path.read_text() for path in (root / "tests").rglob("test_*.py")]
    return frozenset(re.findall(r"^from (test_\w+) import", "\n".join(texts), re.M))


@functools.cache
def _module_digest(test: str) -> str | None:
    """The content of the module of a test, if it exists."""
    module = ROOT / test.partition("::")[0]
    if not module.is_file():
        return None
    return hashlib.sha256(module.read_bytes()).hexdigest()[:16]


# -- The rows of the tests: this file is a plugin of pytest, too


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves out what had passed before: the same for a worker that starts later."""
    before = read_rows(Path(os.environ[ROWS]).with_suffix(_BEFORE))
    done = {row["test"] for row in before if row["outcome"] != "failed"}
    left_out = [item for item in items if item.nodeid in done]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_configure(config: Any) -> None:
    """Tests are noted by the process that starts the others, not by each of them."""
    global _is_worker
    _is_worker = hasattr(config, "workerinput")


def pytest_runtest_logreport(report: Any) -> None:
    """Notes a test once it has ended."""
    if _is_worker:
        return
    phases = _phases.setdefault(report.nodeid, {})
    phases[report.when] = report
    if report.when != "teardown":
        return
    outcomes = {each.outcome for each in _phases.pop(report.nodeid).values()}
    outcome = next(o for o in ("failed", "skipped", "passed") if o in outcomes)
    seconds = sum(each.duration for each in phases.values())
    row = {
        "test": report.nodeid,
        "module": _module_digest(report.nodeid),
        "outcome": outcome,
        "seconds": round(seconds, 3),
    }
    with Path(os.environ[ROWS]).open("a") as file:
        file.write(json.dumps(row) + "\n")


_is_worker = False
_phases: dict[str, dict[str, Any]] = {}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The last row of each test, unless its module has changed since.

    The row that a kill cut in two is left out.
    """
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["test"]] = row
    return [r for r in rows.values() if r["module"] == _module_digest(r["test"])]


def by_folder(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, float] = defaultdict(float)
    for row in rows:
        folder = os.path.dirname(row["test"].partition("::")[0])
        counts[folder][row["outcome"]] += 1
        seconds[folder] += row["seconds"]
    return {
        folder: {
            **{each: count[each] for each in ("passed", "failed", "skipped")},
            "seconds": round(seconds[folder]),
        }
        for folder, count in sorted(counts.items())
    }


# -- Running


def run(step: Step) -> dict[str, Any]:
    print(f"prove: {step.name}: {step.claim}", file=sys.stderr, flush=True)
    is_pytest = "pytest" in step.arguments
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if is_pytest:  # finds its plugin: this file
        paths = [str(ROOT / "scripts"), os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        rows = Path(os.environ[ROWS])
        rows.touch()
        shutil.copy(rows, rows.with_suffix(_BEFORE))
    started = time.monotonic()
    try:
        code: int | None = subprocess.run(
            [sys.executable, *step.arguments],
            cwd=ROOT,
            env=environment,
            timeout=step.limit_s,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        code = None
    accepted = {0, _NO_TESTS} if is_pytest else {0}
    return {
        "claim": step.claim,
        "passed": code in accepted,
        "exit_code": code,
        "seconds": round(time.monotonic() - started),
    }


def prove(steps: tuple[Step, ...], names: list[str], gpu: bool) -> dict[str, Any]:
    """Runs what has not passed for this source, and sums up all of it."""
    digest = source_digest()
    place = STATE / f"{'gpu-' if gpu else ''}{source_digest(test_modules=False)}"
    place.mkdir(parents=True, exist_ok=True)
    os.environ[ROWS] = str(place / "tests.jsonl")
    ended = place / "steps.json"
    results = json.loads(ended.read_text()) if ended.exists() else {}
    for step in steps:
        before = results.get(step.name, {})
        stands = before.get("passed") and (
            not step.runs_tests or before["source_digest"] == digest
        )
        if step.name in names and not stands:
            result = {**run(step), "source_digest": digest}
            result["seconds"] += before.get("seconds", 0)
            results[step.name] = result
            ended.write_text(json.dumps(results, indent=1))
    rows = read_rows(Path(os.environ[ROWS]))
    counts = Counter(row["outcome"] for row in rows)
    return {
        "commit": commit_of(ROOT)[0],
        "source_digest": digest,
        "versions": {"python": platform.python_version(), **versions(*_VERSIONS)},
        "machine": machine("cuda" if gpu else "cpu"),
        "complete": {step.name for step in steps} == set(results),
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "failures": sorted(row["test"] for row in rows if row["outcome"] == "failed"),
        "seconds": sum(each["seconds"] for each in results.values()),
        "steps": {
            step.name: results[step.name] for step in steps if step.name in results
        },
        "folders": by_folder(rows),
    }


def is_green(result: dict[str, Any]) -> bool:
    """Everything ran, and nothing failed."""
    passed = all(step["passed"] for step in result["steps"].values())
    return bool(result["complete"] and not result["failures"] and passed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="what needs a GPU, only")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="run these steps")
    parser.add_argument("--list", action="store_true", help="list the steps")
    parser.add_argument("-o", "--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    steps = GPU_STEPS if options.gpu else STEPS
    if options.list:
        print("\n".join(f"{step.name}: {step.claim}" for step in steps))
        return 0
    names = options.only or [step.name for step in steps]
    if unknown := set(names) - {step.name for step in steps}:
        parser.error(f"no step {min(unknown)!r}: --list lists them")
    result = prove(steps, names, options.gpu)
    out = options.out or RESULTS / ("prove-gpu.json" if options.gpu else "prove.json")
    write(out, result)
    for name, each in result["steps"].items():
        verdict = "passed" if each["passed"] else f"FAILED ({each['exit_code']})"
        print(f"prove: {name}: {verdict}, {each['seconds']} s")
    for test in result["failures"]:
        print(f"prove: failed: {test}")
    print(f"prove: {result['passed']} tests passed, {result['failed']} failed")
    return int(not is_green(result))


if __name__ == "__main__":
    sys.exit(main())
