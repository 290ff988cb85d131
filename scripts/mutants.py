"""Plants known defects one at a time and shows that the tests find each: `make prove`.

scripts/mutants/*.toml list them, one file for each family of tests:

    [[mutant]]
    defect = "the strides of an argument are not part of the key"
    file = "src/torchproof/runtime/..."
    find = "..."         # occurs exactly once in the file
    replace = "..."
    tests = ["tests/cudagraph/test_replays.py::test_strides_are_part_of_the_key"]

The tests run in a copy of the repository: first without a defect, where they have to
pass, then with each defect, where one of them has to fail.

    python scripts/mutants.py [--only FILE...] [--jobs N] [--out RESULT.json]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "scripts" / "mutants"
# A defect may make a test wait for ever: that is found, too.
_TEST_LIMIT_S = 300
_TESTS_FAILED = 1  # pytest's exit code: tests ran, and one failed
# Half of a defect's time would go to importing torch. Nothing of torchproof is loaded
# before the fork: each child imports the source with its defect.
_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = ["torch", "torch._dynamo", "torch._inductor.compile_fx"]


class Outcome(StrEnum):
    CAUGHT = "caught"
    MISSED = "missed"
    # The tests do not pass without the defect, or the text to replace is not there.
    BROKEN = "broken"


@dataclass(frozen=True)
class Mutant:
    """One defect: a replacement in one file, and the tests that have to find it."""

    defect: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    family: str
    defect: str
    outcome: Outcome
    why: str
    seconds: float


def load(path: Path) -> list[Mutant]:
    rows = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


class Workplace:
    """A copy of the repository's files, in which one defect at a time is planted."""

    # Python takes compiled code for current if the file's second and size agree: each
    # write gets a second of its own.
    _ticks = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        tick = time.time() + next(self._ticks)
        os.utime(path, (tick, tick))

    def tests_pass(self, tests: tuple[str, ...]) -> tuple[bool | None, str]:
        """Whether they pass, None if they could not run; and pytest's last line."""
        log = self.folder.with_suffix(".log")
        process = _SERVER.Process(target=_run_pytest, args=(self.folder, tests, log))
        process.start()
        assert process.pid is not None
        process.join(_TEST_LIMIT_S)
        code = process.exitcode
        with contextlib.suppress(ProcessLookupError):  # what it left behind, too
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        if code is None:
            return False, f"no end within {_TEST_LIMIT_S} s"
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        passed = {0: True, _TESTS_FAILED: False}.get(code)
        return passed, "".join(last)


def _run_pytest(folder: Path, tests: tuple[str, ...], log: Path) -> None:
    os.setsid()
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    source = str(folder / "src")
    os.environ["PYTHONPATH"] = source
    sys.path.insert(0, source)

    import pytest

    # As `python -m pytest` does: a plain exit would wait for threads that a test left.
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not gpu", *tests])
    sys.stdout.flush()
    os._exit(code)


def judge(place: Workplace, mutant: Mutant) -> tuple[Outcome, str]:
    before = (place.folder / mutant.file).read_text()
    if (count := before.count(mutant.find)) != 1:
        return Outcome.BROKEN, f"{mutant.file}: the text occurs {count} times"
    place.write(mutant.file, before.replace(mutant.find, mutant.replace))
    try:
        passed, last = place.tests_pass(mutant.tests)
    finally:
        place.write(mutant.file, before)
    if passed is None:
        return Outcome.BROKEN, last
    return (Outcome.MISSED if passed else Outcome.CAUGHT), last


def run(families: dict[str, list[Mutant]], jobs: int) -> list[Verdict]:
    """Judges all mutants, after the tests of their family have passed without one."""
    places: queue.SimpleQueue[Workplace] = queue.SimpleQueue()

    def clean(family: str) -> str:
        """Why the tests of a family do not pass without a defect, or nothing."""
        tests = dict.fromkeys(test for m in families[family] for test in m.tests)
        place = places.get()
        try:
            passed, last = place.tests_pass(tuple(tests))
        finally:
            places.put(place)
        return "" if passed else f"without the defect: {last}"

    def one(family: str, mutant: Mutant) -> Verdict:
        place, started = places.get(), time.monotonic()
        try:
            outcome, why = judge(place, mutant)
        finally:
            places.put(place)
        seconds = round(time.monotonic() - started, 1)
        line = f"mutants: {family}: {outcome}: {mutant.defect} ({seconds} s)"
        print(line, file=sys.stderr, flush=True)
        return Verdict(family, mutant.defect, outcome, why, seconds)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            places.put(Workplace(Path(folder) / str(number)))
        broken = dict(zip(families, pool.map(clean, families), strict=True))
        pairs = [(n, m) for n, each in families.items() if not broken[n] for m in each]
        return [
            *(
                Verdict(name, "none planted", Outcome.BROKEN, why, 0.0)
                for name, why in broken.items()
                if why
            ),
            *pool.map(lambda pair: one(*pair), pairs),
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="FILE", help="these families")
    parser.add_argument("--jobs", type=int, default=3, help="at the same time")
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON")
    options = parser.parse_args()
    paths = {path.stem: path for path in sorted(TABLES.glob("*.toml"))}
    if unknown := set(options.only or ()) - set(paths):
        parser.error(f"no family {min(unknown)!r}: there are {', '.join(paths)}")
    names = options.only or list(paths)
    os.environ["OMP_NUM_THREADS"] = "1"
    _SERVER.set_forkserver_preload(_PRELOADED)
    verdicts = run({name: load(paths[name]) for name in names}, options.jobs)
    if options.out:
        rows = [asdict(verdict) for verdict in verdicts]
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    bad = [each for each in verdicts if each.outcome is not Outcome.CAUGHT]
    for each in bad:
        print(f"mutants: {each.family}: {each.outcome}: {each.defect}: {each.why}")
    print(f"mutants: {len(verdicts) - len(bad)} of {len(verdicts)} defects found")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
