"""Every file format that torchproof reads, mutated at random, and what it makes of it.

    python -m benchmarks.fuzz_files [--cases 500] [--only FORMAT] [--write]

A case is a format and a number: it writes files, some of them mutated, and hands them
to the command line or to the function that reads them, in a process with limits. A
finding is: an exception that is not a documented one, an exit code other than 0, 1 and
2, a refusal of another form than one line on stderr, a control character in the output,
JSON that is none, a wrong reading, a file changed that is not to be changed, anything
changed, read or printed outside of the folder of the case, code of the data that ran,
a process that was started, or more time or memory than `fuzz_worker.Limits` allow.
Exit code 1 if there is one. Numbers make a case again: `--only FORMAT --case NUMBER`.

`--write` keeps the counts as batches end and goes on where they ended. Counts of a
format are of one commit: `--restart` forgets those of another one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import fuzz_worker
from benchmarks.fuzz_formats import FORMATS, MAY_READ, RUNS, shows
from benchmarks.fuzz_mutations import json_file
from benchmarks.fuzz_oracle import Finding, Tally, Wrong, judge
from benchmarks.result_files import (
    ROOT,
    OtherCommit,
    assert_commit,
    commit_of,
    without_paths,
    write,
)

RESULTS = ROOT / "benchmarks" / "results" / "fuzz-files.json"
BATCH = 500  # cases of one fork
PROCESSES = "processes"
_WITH_TORCH = ("recipe TOML", "deploy packs")
_PROCESS_LIMIT_S = 180.0


# -- results that are kept -------------------------------------------------------------


class Results:
    """The tallies of a file; each format's is of one commit and one seed."""

    def __init__(self, path: Path, commit: str, seed: int) -> None:
        self._path, self._commit, self._seed = path, commit, seed
        self._formats: dict[str, dict[str, Any]] = {}
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))["formats"]
            self._formats = {name: kept[name] for name in names() if name in kept}

    def forget(self, formats: Sequence[str]) -> None:
        for name in formats:
            self._formats.pop(name, None)

    def tally(self, name: str) -> Tally:
        """What is kept of a format; raises `OtherCommit` if it is not of this code."""
        kept = dict(self._formats.get(name, {}))
        if not kept:
            return Tally()
        assert_commit(self._path, [kept.pop("commit", "unknown")], self._commit)
        if kept.pop("seed") != self._seed:
            raise OtherCommit(f"{self._path} holds {name} of another seed: --restart")
        examples = [Finding(**each) for each in kept.pop("examples")]
        return Tally(**kept, examples=examples)

    def keep(self, name: str, tally: Tally) -> None:
        plain = dataclasses.asdict(tally)
        for each in plain["examples"]:
            each["what"] = without_paths(each["what"])
        plain["cpu_s"] = round(plain["cpu_s"], 1)
        whose = {"commit": self._commit, "seed": self._seed}
        self._formats[name] = whose | plain
        ordered = {each: self._formats.get(each) for each in names()}
        write(
            self._path,
            {
                "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
                "python": platform.python_version(),
                "limits": dataclasses.asdict(fuzz_worker.LIMITS),
                "formats": {name: kept for name, kept in ordered.items() if kept},
            },
        )


def names() -> list[str]:
    return [*FORMATS, PROCESSES]


# -- running ---------------------------------------------------------------------------


def warm_up(formats: Sequence[str]) -> None:
    """Imports and computes what all cases need, once for all forks."""
    from benchmarks.fuzz_oracle import ran
    from torchproof.cli import verbs

    for name in ("_parser", "untested_torch"):  # once a process is as often as people
        function = getattr(verbs, name)
        if not hasattr(function, "cache_info"):
            setattr(verbs, name, functools.cache(function))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.json")
        for document in RUNS:
            path.write_text(json.dumps(document))
            for command in (*shows(str(path)), ["compare", str(path), str(path)]):
                ran(command)
    if any(name in _WITH_TORCH for name in formats):
        import torch  # noqa: F401


def job_of(name: str, seed: int) -> fuzz_worker.Job:
    may_read = MAY_READ.get(name)
    return fuzz_worker.Job(name, FORMATS[name], seed, may_read=may_read)


def fuzz(
    formats: Sequence[str],
    cases: int,
    seed: int = 0,
    *,
    results: Results | None = None,
    progress: bool = False,
) -> dict[str, Tally]:
    """Runs each format up to this number of cases; kept ones count."""
    tallies = {name: results.tally(name) if results else Tally() for name in formats}
    warm_up(formats)
    for name, tally in tallies.items():
        job = job_of(name, seed)
        while tally.cases < cases:
            numbers = range(tally.cases, min(tally.cases + BATCH, cases))
            tally.add(fuzz_worker.run(job, numbers))
            if results is not None:
                results.keep(name, tally)
            if progress:
                print(line(name, tally), file=sys.stderr, flush=True)
    return tallies


def as_processes(cases: int, seed: int) -> Tally:
    """Some run files in processes of their own, as people call them."""
    tally, chance = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(cases):
            path = Path(folder, f"{number}.json")
            path.write_bytes(json_file(chance.choice(RUNS), chance))
            others = [
                ["compare", str(path), str(path)],
                ["pack", str(path), "--for", "repro", "-q", "--dest", f"{number}"],
            ]
            command = chance.choice([*shows(str(path)), *others])
            done = subprocess.run(
                [sys.executable, "-m", "torchproof", *command],
                capture_output=True,
                text=True,
                timeout=_PROCESS_LIMIT_S,
                check=False,
                cwd=folder,
            )
            tally.cases, tally.files = tally.cases + 1, tally.files + 1
            tally.calls += 1
            tally.refused += done.returncode == 2
            tally.accepted += done.returncode != 2
            try:
                out, err = done.stdout, done.stderr
                judge("process", command, done.returncode, out=out, err=err)
            except Wrong as error:
                tally.tell(Finding(PROCESSES, number, str(error)))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    tally.peak_mib = usage.ru_maxrss >> 10
    return tally


def line(name: str, tally: Tally) -> str:
    counts = f"{tally.cases} cases, {tally.files} files, {tally.calls} calls"
    came = f"{tally.accepted} accepted, {tally.refused} refused"
    cost = f"{tally.cpu_s:.0f} s, {1e3 * tally.cpu_s / max(tally.cases, 1):.1f} ms each"
    return f"{name}: {counts}, {came}, {tally.findings} findings, {cost}"


def lines(tallies: dict[str, Tally]) -> Iterator[str]:
    for name, tally in tallies.items():
        yield line(name, tally)
        for each in tally.examples:
            yield f"  case {each.case}: {each.what}"


# -- the command -----------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--cases", type=int, default=500, help="of each format (default: %(default)s)")
    add(
        "--processes", type=int, default=40, help="command lines (default: %(default)s)"
    )
    add("--seed", type=int, default=0)
    add("--only", action="append", choices=names(), help="this format; repeatable")
    add("--case", type=int, help="this one alone, with --only")
    add("--write", action="store_true", help="keep counts, and go on with those kept")
    add(
        "--restart", action="store_true", help="forget counts of these formats; --write"
    )
    add("-o", "--output", type=Path, default=RESULTS, help="where counts are kept")
    parsed = parser.parse_args(arguments)
    if parsed.case is not None and len(parsed.only or ()) != 1:
        parser.error("--case needs one format: --only FORMAT")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    wanted = options.only or names()
    formats = [name for name in wanted if name in FORMATS]
    if options.case is not None:
        warm_up(formats)
        job = job_of(formats[0], options.seed)
        tally = fuzz_worker.run(job, range(options.case, options.case + 1))
        tallies = {formats[0]: tally}
    else:
        try:
            results = _results(options, wanted)
            tallies = fuzz(
                formats, options.cases, options.seed, results=results, progress=True
            )
        except OtherCommit as error:
            print(f"fuzz_files.py: {error}", file=sys.stderr)
            return 2
        if PROCESSES in wanted and options.processes:
            tallies[PROCESSES] = as_processes(options.processes, options.seed)
            if results is not None:
                results.keep(PROCESSES, tallies[PROCESSES])
    print("\n".join(lines(tallies)))
    return int(any(tally.findings for tally in tallies.values()))


def _results(options: argparse.Namespace, wanted: Sequence[str]) -> Results | None:
    if not options.write and not options.restart:
        return None
    results = Results(options.output, commit_of(ROOT), options.seed)
    if options.restart:
        results.forget(wanted)
    return results


if __name__ == "__main__":
    sys.exit(main())
