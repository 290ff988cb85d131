"""Reads source without running it, and reports what would go wrong under torch.compile.

Takes files and folders. Returns suspicions and the places that call torch.compile.
Names each file that it cannot read, and continues with the others.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torchproof.checking.static import compile_sites, regions
from torchproof.checking.static.program import Program
from torchproof.checking.static.regions import Regions
from torchproof.checking.static.source import Function, Source, Unreadable, text_of
from torchproof.checking.static.suspicion import Reading, Suspicion
from torchproof.records import CompileSite, one_line

__all__ = ["Reading", "Suspicion", "read"]

_FILES_PER_TASK = 40
_FILES_FOR_ONE_PROCESS = 80  # up to here, several processes are not faster
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "build", "dist", "venv"}


def read(
    paths: Iterable[Path],
    *,
    roots: Mapping[str, Iterable[str]] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Reading:
    """Reads the files, and the Python files under the folders.

    With `roots` (path -> qualified names of compiled functions), only code that these
    functions reach counts as compiled. Without it, every `forward` does.
    """
    files = list(dict.fromkeys(file for path in paths for file in _files(path)))
    if roots is not None:
        return _together(files, roots)
    readings: list[Reading] = []
    parts = [
        files[i : i + _FILES_PER_TASK] for i in range(0, len(files), _FILES_PER_TASK)
    ]
    for index, part in enumerate(_each(parts, len(files))):
        readings.append(part)
        count = min((index + 1) * _FILES_PER_TASK, len(files))
        progress(f"read {count} of {len(files)} files")
    return _sum(readings)


def _each(parts: list[list[Path]], files: int) -> Iterator[Reading]:
    # Fork, because a spawned process would run the user's script again. Fork only if
    # there is no other thread: a fork can copy a lock that another thread holds.
    can_fork = threading.active_count() == 1 and "torch" not in sys.modules
    if files <= _FILES_FOR_ONE_PROCESS or (os.cpu_count() or 1) == 1 or not can_fork:
        yield from map(_apart, parts)
        return
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        mp_context=multiprocessing.get_context("fork"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # the parent ends the children
    )
    with pool:
        try:
            yield from pool.map(_apart, parts)
        except KeyboardInterrupt:
            for child in set(multiprocessing.active_children()) - others:
                child.kill()  # otherwise it continues to read for seconds
            pool.shutdown(cancel_futures=True)
            raise


def _apart(files: Iterable[Path]) -> Reading:
    """Reads each file as a program of its own."""
    return _sum(map(_one, files))


def _one(path: Path) -> Reading:
    source = _parsed(path)
    if isinstance(source, str):
        return Reading(files=1, problems=(source,))
    if source is None:
        return Reading(files=1)
    program = Program([source])
    try:
        return _walked([source], program, program.roots(source))
    except Exception as error:  # a defect in torchproof must not end a whole folder
        reason = one_line(f"{type(error).__name__}: {error}", 100)
        return Reading(files=1, problems=(f"{path} cannot be analysed: {reason}",))


def _together(files: Iterable[Path], roots: Mapping[str, Iterable[str]]) -> Reading:
    """Reads the files, and those that they import, as one program."""
    read = [_parsed(Path(path)) for path in dict.fromkeys([*files, *map(Path, roots)])]
    sources = [source for source in read if isinstance(source, Source)]
    program = Program(sources, follows=True)
    reading = _walked(sources, program, regions.compiled_functions(program, roots))
    problems = tuple(text for text in read if isinstance(text, str))
    count = len(sources) + len(problems)
    return replace(reading, files=count, problems=problems + reading.problems)


def _walked(
    sources: list[Source], program: Program, roots: Iterable[Function]
) -> Reading:
    compiled = Regions(program)
    suspicions = compiled.walk(roots)
    deep = dict.fromkeys(compiled.too_deep)
    calls: list[CompileSite] = []
    for source in sources:
        try:
            suspicions += regions.of_file(source)
            calls += compile_sites.of(source)
        except RecursionError:
            deep[source.path] = None
    order = sorted(
        suspicions, key=lambda s: (s.finding.file or "", s.finding.line or 0)
    )
    problems = tuple(
        f"{path} was read in part: its code is nested too deeply" for path in deep
    )
    return Reading(
        suspicions=tuple(order),
        sites=tuple(calls),
        files=len(sources),
        problems=problems,
    )


def _sum(readings: Iterable[Reading]) -> Reading:
    every = list(readings)
    chain = itertools.chain.from_iterable
    return Reading(
        suspicions=tuple(chain(r.suspicions for r in every)),
        sites=tuple(chain(r.sites for r in every)),
        files=sum(r.files for r in every),
        problems=tuple(chain(r.problems for r in every)),
    )


def _parsed(path: Path) -> Source | str | None:
    """The parsed file; None if it does not mention torch; a message if unreadable."""
    try:
        text = text_of(path)
        return Source.parse(path, text) if "torch" in text else None
    except Unreadable as error:
        return str(error)


def _files(path: Path) -> Iterator[Path]:
    """The Python files under a folder, without hidden and generated folders."""
    if not path.is_dir():
        yield path
        return
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(n for n in inner if n[0] != "." and n not in _SKIPPED_FOLDERS)
        yield from (Path(folder, n) for n in sorted(names) if n.endswith(".py"))
