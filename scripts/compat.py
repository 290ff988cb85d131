"""Runs the tests of hooks, rules and runtime on each supported torch: `make compat`.

Each version gets an environment of its own under .compat/ for each Python, which is
kept. The results go to benchmarks/results/compat/, one file for each, and into
docs/reference/compat.md.

    python scripts/compat.py [VERSION...] [--python PATH]... [--index URL] [--probe]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import distributions  # type: ignore[import-not-found]
import prove  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".compat"
RESULTS = ROOT / "benchmarks/results/compat"
PROBES = RESULTS / "probes"
VERSIONS = ("2.11.0", "2.13.0", "2.15.0")
TESTS = (
    "tests/test_torch_private.py",
    "tests/test_changed_configs.py",
    "tests/test_rules.py",
    "tests/test_trace.py",
    "tests/runtime",
    "tests/steps",
)
_PROBE = """
import json, platform, torch
from torchproof.torch_private import contract
missing = {each.name: contract.missing(each.name) for each in contract.contract()}
print(json.dumps({
    "torch": torch.__version__, "python": platform.python_version(),
    "machine": platform.machine(),
    "missing": {name: messages for name, messages in missing.items() if messages},
    "probed": sorted({
        name
        for each in contract.contract()
        for names in each.hooks.values()
        for name in names
    }),
}))
"""


def name_of(version: str, python: str) -> str:
    """The environment and the result of a torch and a Python, by both versions."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=True
    )
    return f"{version}-python{done.stdout.strip()}"


def environment(version: str, base: str, index: str | None) -> Path:
    """The folder of an environment with this torch; it is created if needed."""
    folder = ENVIRONMENTS / name_of(version, base)
    if (folder / ".installed").exists():
        return folder
    print(f"{folder.name}: installing into {folder}", file=sys.stderr)
    pip = distributions.new_environment(folder, base)
    from_index = ["--no-deps", "--index-url", index] if index else []
    subprocess.run([*pip, *from_index, f"torch=={version}"], check=True)
    # Each torch needs its own versions of these; every other pin holds here too.
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = folder / "constraints.txt"
    own = re.compile(r"(torch|triton|torchvision|setuptools)\b")
    others = [pin for pin in pins if not own.match(pin)]
    constraints.write_text("\n".join([*others, f"torch=={version}", ""]))
    subprocess.run([*pip, "-c", str(constraints), "-e", f"{ROOT}[dev]"], check=True)
    (folder / ".installed").touch()
    return folder


def probe(folder: Path) -> dict[str, Any]:
    """Looks for every private name in one environment."""
    done = subprocess.run(
        [folder / "bin/python", "-c", _PROBE],
        env=_variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    return {**json.loads(done.stdout), "commit": prove.commit_of(ROOT)[0]}


def _variables() -> dict[str, str]:
    paths = (ROOT / name for name in ("src", "tests", "scripts"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def run(folder: Path, workers: int) -> dict[str, Any]:
    """Runs the tests in one environment."""
    rows = folder / "tests.jsonl"
    rows.unlink(missing_ok=True)
    print(f"{folder.name}: running the tests", file=sys.stderr)
    started = time.monotonic()
    pytest = [str(folder / "bin/python"), "-m", "pytest", "-q", "-p", "prove"]
    pytest += ["-n", str(workers), "--dist", "worksteal"]
    subprocess.run(
        [*pytest, "-m", "not gpu and not slow", *TESTS],
        cwd=ROOT,
        env=_variables() | {prove.ROWS: str(rows)},
        stdout=sys.stderr,
        check=False,
    )
    return {
        **outcomes(prove.read_rows(rows)),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "commit": prove.commit_of(ROOT)[0],
        "tests": list(TESTS),
    }


def outcomes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of all tests, and those that failed."""
    failed = [row["test"] for row in rows if row["outcome"] == "failed"]
    counts = Counter(row["outcome"] for row in rows)
    return {"counts": dict(counts), "failed": sorted(failed)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument(
        "--python",
        action="append",
        metavar="PATH",
        help="a Python to test with; several are possible (default: this one)",
    )
    parser.add_argument("--index", help="index of torch builds (default: pip's own)")
    parser.add_argument("--workers", type=int, default=2, help="pytest processes")
    parser.add_argument("--probe", action="store_true", help="probe names, no tests")
    options = parser.parse_args()
    failed = False
    for version, base in itertools.product(
        options.versions, options.python or [sys.executable]
    ):
        folder = environment(version, base, options.index)
        found = probe(folder)
        prove.write(PROBES / f"{folder.name}.json", found)
        print(f"{folder.name}: missing names: {found['missing']}", file=sys.stderr)
        failed |= bool(found["missing"])
        if options.probe:
            continue
        result = {**found, **run(folder, options.workers)}
        prove.write(RESULTS / f"{folder.name}.json", result)
        print(f"{folder.name}: {result['counts']}", file=sys.stderr)
        failed |= bool(result["failed"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
