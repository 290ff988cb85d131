"""Reads source and never runs it: what would go wrong if it were compiled.

Files in, suspicions and the calls of torch.compile out. A file that cannot be read is
named and left out.
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

_AT_ONCE = 40  # files a process is given
_ALONE = 80  # files that one process reads as fast as several
_LEFT_OUT = {"__pycache__", "node_modules", "build", "dist", "venv"}


def read(
    paths: Iterable[Path],
    *,
    roots: Mapping[str, Iterable[str]] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Reading:
    """What the files, and the Python files under the folders, give.

    With `roots` (path -> qualified names of functions that are compiled) only what
    these reach is read as compiled code; without, every `forward` is.
    """
    files = list(dict.fromkeys(file for path in paths for file in _files(path)))
    if roots is not None:
        return _together(files, roots)
    readings: list[Reading] = []
    parts = [files[i : i + _AT_ONCE] for i in range(0, len(files), _AT_ONCE)]
    for index, part in enumerate(_each(parts, len(files))):
        readings.append(part)
        progress(
            f"read {min((index + 1) * _AT_ONCE, len(files))} of {len(files)} files"
        )
    return _sum(readings)


def _each(parts: list[list[Path]], files: int) -> Iterator[Reading]:
    # A process is forked, since a new one would run the user's own script again; and
    # only where nothing else runs that a fork could leave half done.
    alone = threading.active_count() == 1 and "torch" not in sys.modules
    if files <= _ALONE or (os.cpu_count() or 1) == 1 or not alone:
        yield from map(_apart, parts)
        return
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        mp_context=multiprocessing.get_context("fork"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # the parent ends them
    )
    with pool:
        try:
            yield from pool.map(_apart, parts)
        except KeyboardInterrupt:
            for child in set(multiprocessing.active_children()) - others:
                child.kill()  # else it reads on for seconds
            pool.shutdown(cancel_futures=True)
            raise


def _apart(files: Iterable[Path]) -> Reading:
    """Each file for itself."""
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
    except Exception as error:  # a defect here, which is not to end a whole folder
        reason = one_line(f"{type(error).__name__}: {error}", 100)
        return Reading(files=1, problems=(f"{path} cannot be analysed: {reason}",))


def _together(files: Iterable[Path], roots: Mapping[str, Iterable[str]]) -> Reading:
    """Files as one program, and those that they import."""
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
    problems = tuple(f"{path} is nested too deeply to be read whole" for path in deep)
    return Reading(tuple(order), tuple(calls), len(sources), problems)


def _sum(readings: Iterable[Reading]) -> Reading:
    every = list(readings)
    chain = itertools.chain.from_iterable
    return Reading(
        tuple(chain(r.suspicions for r in every)),
        tuple(chain(r.sites for r in every)),
        sum(r.files for r in every),
        tuple(chain(r.problems for r in every)),
    )


def _parsed(path: Path) -> Source | str | None:
    """A file; None for one that has nothing to do with torch; text on why not."""
    try:
        text = text_of(path)
        return Source.parse(path, text) if "torch" in text else None
    except Unreadable as error:
        return str(error)


def _files(path: Path) -> Iterator[Path]:
    """The Python files under a folder, hidden and generated folders left out."""
    if not path.is_dir():
        yield path
        return
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(n for n in inner if n[0] != "." and n not in _LEFT_OUT)
        yield from (Path(folder, n) for n in sorted(names) if n.endswith(".py"))
