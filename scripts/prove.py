"""Runs everything that takes longer than the tests, at one commit: `make prove`.

Most steps write results under benchmarks/results/; the tables of the documents are
written at the end. The state is kept in .torchproof/prove.json: a run that was cut off
continues where it stopped, and starts anew if the source has changed since.

    python scripts/prove.py [--only STEP...] [--list]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".torchproof" / "prove.json"
SUMMARY = ROOT / "benchmarks" / "results" / "prove.json"
_NO_SLOW_TEST = 5  # pytest's exit code if no test was selected


@dataclass(frozen=True)
class Step:
    """One claim, and the command that shows it; `python` runs from the root."""

    name: str
    proves: str
    arguments: tuple[str, ...]


def slow_tests() -> Iterator[Step]:
    """The slow tests, in steps by folder: a run that is cut off loses only one."""
    folders = sorted({path.parent for path in (ROOT / "tests").glob("*/test_*.py")})
    paths = {folder.name: [folder] for folder in folders if folder.name != "gpu"}
    paths["others"] = sorted((ROOT / "tests").glob("test_*.py"))
    for name, found in paths.items():
        yield Step(
            f"slow-tests-{name}",
            "what is too slow for make test",
            (*_PYTEST, *(str(path.relative_to(ROOT)) for path in found)),
        )


# Three at a time, as in make test.
_PYTEST = (
    # With what was skipped, and why: a missing extra must not pass for a proof.
    *("-m", "pytest", "-q", "-rs", "-n", "3", "--dist", "worksteal"),
    *("-m", "slow and not gpu"),
)

STEPS = (
    *slow_tests(),
    Step(
        "check-cost",
        "check costs at most 1.3, 4 and 6 times a bare run: quick, normal, full",
        ("benchmarks/check_cost.py", "--again", "--write"),
    ),
    Step(
        "known-costs",
        "bench measures work of a known cost correctly",
        ("benchmarks/known_costs.py", "--write"),
    ),
    Step(
        "harness",
        "timing adds at most 1 percent to a step of 1 ms",
        ("-m", "benchmarks.harness", "--write"),
    ),
    Step(
        "reliability",
        "torchproof.compile survives every kind of fault",
        ("benchmarks/reliability.py", "--restart"),
    ),
    Step(
        "soak",
        "torchproof.compile survives thousands of faults in one process",
        ("benchmarks/soak.py", "--write"),
    ),
    Step(
        "fuzz-files",
        "damaged files of every format are read or refused in one line",
        # About ten minutes. The counts of the longer runs, in the documents, stay.
        ("-m", "benchmarks.fuzz_files", "--cases", "4000"),
    ),
    Step(
        "fuzz-state",
        "programs that read state in every way of Python answer as eager does after"
        " random changes, replayed and compiled",
        ("benchmarks/fuzz_state.py", "--write"),
    ),
    Step(
        "call-overhead",
        "torchproof.compile adds at most 2 us to a call",
        ("-m", "benchmarks.call_overhead", "--write"),
    ),
    Step(
        "limitations",
        "the page on limitations holds for the installed torch",
        ("benchmarks/limitations.py", "--write"),
    ),
    Step(
        "precision",
        "what was judged in the source of transformers is still found",
        ("benchmarks/precision.py",),
    ),
    Step(
        "library-scripts",
        "check places breaks in scripts that train transformers models where torch's"
        " own logs do",
        ("benchmarks/library_scripts.py", "--write"),
    ),
    Step(
        "fixes",
        "fix removes at least 60% of the breaks of transformers models with safe edits,"
        " 75% with unsafe ones, and changes no output",
        ("benchmarks/fixes.py", "--again", "--write"),
    ),
)


def fingerprint() -> str:
    """What the results depend on: the commit, and changes to source and benchmarks."""
    folders = ("src", "benchmarks/*.py", "tests", "scripts")
    commit = _git("rev-parse", "HEAD")
    changes = _git("diff", "HEAD", "--", *folders)
    mark = f"+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else ""
    return f"{commit[:12]}{mark}"


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def load(commit: str) -> dict[str, dict[str, object]]:
    """The steps that have passed at this commit."""
    if not STATE.exists():
        return {}
    state = json.loads(STATE.read_text())
    if state["commit"] != commit:
        print(f"prove: starting anew, the source has changed since {state['commit']}")
        return {}
    steps: dict[str, dict[str, object]] = state["steps"]
    return {name: each for name, each in steps.items() if each["passed"]}


def run(step: Step) -> dict[str, object]:
    print(f"prove: {step.name}: {step.proves}", file=sys.stderr, flush=True)
    started = time.monotonic()
    done = subprocess.run([sys.executable, *step.arguments], cwd=ROOT, check=False)
    ignored = {0, _NO_SLOW_TEST} if "pytest" in step.arguments else {0}
    return {
        "passed": done.returncode in ignored,
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - started),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="STEP", help="run these steps")
    parser.add_argument("--list", action="store_true", help="list the steps")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{step.name}: {step.proves}" for step in STEPS))
        return 0
    names = options.only or [step.name for step in STEPS]
    if unknown := set(names) - {step.name for step in STEPS}:
        parser.error(f"no step {min(unknown)!r}: --list lists them")
    commit = fingerprint()
    results = load(commit)
    STATE.parent.mkdir(exist_ok=True)
    for step in STEPS:
        if step.name in names and step.name not in results:
            results[step.name] = run(step)
            STATE.write_text(json.dumps({"commit": commit, "steps": results}, indent=1))
    steps = {
        step.name: {**asdict(step), **results[step.name]}
        for step in STEPS
        if step.name in results
    }
    SUMMARY.write_text(json.dumps({"commit": commit, "steps": steps}, indent=1) + "\n")
    for name, each in steps.items():
        verdict = "passed" if each["passed"] else f"FAILED ({each['exit_code']})"
        print(f"prove: {name}: {verdict}, {each['seconds']} s")
    return int(not all(each["passed"] for each in results.values()))


if __name__ == "__main__":
    sys.exit(main())
