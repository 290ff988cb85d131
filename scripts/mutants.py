"""Plants known defects one at a time and shows that the tests find each.

    python scripts/mutants.py [ROW ...] [--only FAMILY ...] [--jobs N] [--list]

scripts/mutants/*.toml list them, one file for each family of tests:

    [[mutant]]
    defect = "the strides of an argument are not part of the key"
    file = "src/torchproof/runtime/..."
    find = "..."         # occurs exactly once in the file
    replace = "..."
    tests = ["tests/cudagraph/test_replays.py::test_strides_are_part_of_the_key"]

A row is a defect. Its tests run in a copy of the repository, where one of them has to
fail. The row `FAMILY: no defect` runs all tests of a family, and they have to pass.
Exit code 1 when a defect is not found or could not be planted.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.survey import Options, Row, Survey  # noqa: E402

TABLES = ROOT / "scripts" / "mutants"
FAMILIES = sorted(path.stem for path in TABLES.glob("*.toml"))
# A defect may make a test wait for ever: that is found, too.
_TEST_LIMIT_S = 300
_PASSED, _FAILED = 0, 1  # pytest's exit codes if tests ran
# Half of a defect's time would go to importing torch. Nothing of torchproof is loaded
# before the fork: each child imports the source with its defect.
_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = ["torch", "torch._dynamo", "torch._inductor.compile_fx"]


@dataclass(frozen=True)
class Mutant:
    """A replacement in one file, if any, and the tests that have to find it."""

    tests: tuple[str, ...]
    file: str | None = None
    find: str = ""
    replace: str = ""


@functools.cache
def mutants(family: str) -> dict[str, Mutant]:
    """The rows of a family."""
    table = tomllib.loads((TABLES / f"{family}.toml").read_text())["mutant"]
    every = dict.fromkeys(test for row in table for test in row["tests"])
    found = {f"{family}: no defect": Mutant(tuple(every))}
    for row in table:
        name, tests = f"{family}: {row.pop('defect')}", tuple(row.pop("tests"))
        assert name not in found, name
        found[name] = Mutant(tests, **row)
    return found


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

    def judge(self, mutant: Mutant) -> Row:
        """What the tests said; an error if it is not what they have to say."""
        if mutant.file is None:
            code, last = self._tests(mutant.tests)
            return {"tests": last} if code == _PASSED else {"error": last}
        before = (self.folder / mutant.file).read_text()
        if (count := before.count(mutant.find)) != 1:
            return {"error": f"the text occurs {count} times in {mutant.file}"}
        self._write(mutant.file, before.replace(mutant.find, mutant.replace))
        try:
            code, last = self._tests(mutant.tests)
        finally:
            self._write(mutant.file, before)
        if code == _PASSED:
            return {"error": f"not found: {last}"}
        return {"tests": last} if code in (_FAILED, None) else {"error": last}

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        tick = time.time() + next(self._ticks)
        os.utime(path, (tick, tick))

    def _tests(self, tests: tuple[str, ...]) -> tuple[int | None, str]:
        """The exit code of pytest, None if it did not end, and its last line."""
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
            return None, f"no end within {_TEST_LIMIT_S} s"
        return code, "".join(log.read_text(errors="replace").strip().splitlines()[-1:])


def _run_pytest(folder: Path, tests: tuple[str, ...], log: Path) -> None:
    os.setsid()
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder / "src")
    sys.path[:] = [str(folder / "src"), *(p for p in sys.path if p != str(ROOT))]
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]  # this one and the runner: they may have the defect

    import pytest

    # As `python -m pytest` does: a plain exit would wait for threads that a test left.
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not gpu", *tests])
    sys.stdout.flush()
    os._exit(code)


class Workplaces:
    """As many copies of the repository as rows run at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._free: list[Workplace] = []

    def measure(self, name: str, options: Options) -> Row:
        try:
            place = self._free.pop()
        except IndexError:
            place = Workplace(Path(tempfile.mkdtemp(dir=self._folder)))
        row = place.judge(mutants(name.partition(": ")[0])[name])
        self._free.append(place)
        return row


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    _SERVER.set_forkserver_preload(_PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        survey = Survey(
            "mutants",
            lambda options: [n for f in options.only or FAMILIES for n in mutants(f)],
            Workplaces(Path(folder)).measure,
            lambda found: (),
            jobs=3,
            is_isolated=False,
            flags={"--only": {"nargs": "+", "choices": FAMILIES, "metavar": "FAMILY"}},
        )
        return survey.main()


if __name__ == "__main__":
    sys.exit(main())
