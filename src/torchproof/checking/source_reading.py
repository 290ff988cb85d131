"""Reads the source of a target, and adds what it says to a run.

Code of installed packages is read only if it is the target itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchproof.checking import suspicions
from torchproof.checking.join import Joined, RunEvidence, absolute, join, without_run
from torchproof.checking.static.imports import assumed_roots, with_imports
from torchproof.checking.static.program import is_disabled
from torchproof.checking.static.source import Source, Unreadable
from torchproof.checking.suspicions import Reading
from torchproof.records import (
    BreakEvent,
    CompileSite,
    FailureEvent,
    Finding,
    Frame,
    Observation,
    Part,
    PartLimit,
    UserError,
    WrapperEvent,
    blame,
    cells,
)
from torchproof.targets import Target, own_file

Progress = Callable[[str], None]


# -- reading the source ----------------------------------------------------------------


def only_read(target: Target, progress: Progress) -> Joined:
    """The suspicions of a target that is not run."""
    try:
        reading = read_target(target, progress)
        return replace(without_run(reading.suspicions), read=reading)
    except UserError:
        raise
    except Exception as error:
        return Joined((), failure=_crashed(error))


def _crashed(error: Exception) -> Part:
    return Part("failed", suspicions.crash(error))


def read_and_join(
    target: Target,
    observation: Observation,
    findings: list[Finding],
    *,
    unseen: Mapping[str, str],
    progress: Progress,
) -> Joined:
    """Reads the source of a target that ran; keeps the findings if reading fails."""
    alone = Joined(tuple(findings))
    if target.kind == "trace":
        return replace(alone, failure=Part("skipped", "a trace has no source"))
    # Whatever fails, keep what the run gave: it may have taken long. The reason becomes
    # the status of part static, which every format shows.
    try:
        if observation.traced is None:
            reading = read_target(target, progress)
        else:
            reading = read_with_run(target, observation)
        evidence = run_evidence(observation, unseen)
        joined = join(reading.suspicions, findings, evidence)
    except KeyboardInterrupt:
        interrupted = Part("failed", "interrupted")
        return replace(alone, failure=interrupted, interrupted=True)
    except UserError as error:  # the source is missing, or no Python
        return replace(alone, failure=Part("failed", str(error)))
    except Exception as error:
        return replace(alone, failure=_crashed(error))
    return replace(joined, read=reading)


def read_target(target: Target, progress: Progress) -> Reading:
    """Reads the target's source, treating every `forward` in it as compiled.

    Reads a folder file by file, and any other target as one program.
    """
    file = Path(target.where) if target.kind == "source" else own_file(target)
    if file is None:
        raise UserError(f"{target.where} has no Python file to read")
    if target.kind == "source":
        reading = suspicions.read([file], progress=_after_a_second(progress))
        for problem in reading.problems[3:]:  # the part's status names the first three
            progress(f"not understood: {problem}")
    else:
        files = with_imports([file])
        reading = suspicions.read(files, roots=assumed_roots(files))
        reading = replace(reading, files=len(files))
    unread = [*reading.crashes, *reading.problems]
    if reading.files <= len(unread):
        why = unread[0] if unread else "it has no Python file"
        raise UserError(f"cannot read {target.text}: {why}")
    return _shown(reading)


def _after_a_second(progress: Progress) -> Progress:
    """Progress that stays silent for the first second."""
    begun = time.monotonic()
    return lambda text: progress(text) if time.monotonic() - begun > 1 else None


def read_with_run(target: Target, observation: Observation) -> Reading:
    """Reads the code that the run compiled or traced, and where it was compiled."""
    roots = _roots(observation)
    file = own_file(target)
    files = {absolute(str(file)): None} if file else {}
    called = (place.file for _, place in _wrappers(observation))
    files |= {absolute(f): None for f in called if blame.whose(f) == "user"}
    files |= dict.fromkeys(roots)
    paths = [path for path in map(Path, files) if cells.is_source(path)]
    return _shown(suspicions.read(paths, roots=roots))


def _roots(observation: Observation) -> dict[str, list[str]]:
    """The user's functions that were compiled or traced, by absolute path."""
    names_in: dict[str, dict[str, None]] = {}
    for each in (observation.compiled, observation.traced or {}):
        for file, functions in each.items():
            if blame.whose(file) == "user":
                names = names_in.setdefault(absolute(file), {})
                names |= dict.fromkeys(map(blame.plain_name, functions))
    return {file: list(names) for file, names in names_in.items()}


def _shown(reading: Reading) -> Reading:
    """The reading, with paths as a run shows them."""
    suspicions = tuple(
        replace(s, finding=replace(s.finding, file=blame.shown(s.finding.file or "")))
        for s in reading.suspicions
    )
    sites = tuple(replace(s, file=blame.shown(s.file)) for s in reading.sites)
    return replace(reading, suspicions=suspicions, sites=sites)


def part(reading: Reading, findings: Iterable[Finding]) -> Part:
    """The status of part static."""
    count = reading.files
    status = f"{count} file read" if count == 1 else f"{count} files read"
    if reading.problems:
        more = len(reading.problems) - 3
        listed = [*reading.problems[:3], *([f"{more} more"] if more > 0 else [])]
        status += f", not understood: {'; '.join(listed)}"
    if reading.crashes:
        more = len(reading.crashes) - 1
        others = f" (and {more} other{'s' if more > 1 else ''})" if more else ""
        return Part("failed", f"{status}; {reading.crashes[0]}{others}")
    some = any(f.status == "open" and f.origin != "dynamic" for f in findings)
    limit: PartLimit | None = "unreadable" if reading.problems else None
    return Part("found" if some else "passed", status, limit=limit)


# -- what a run says about the source --------------------------------------------------


def run_evidence(observation: Observation, unseen: Mapping[str, str]) -> RunEvidence:
    """What the run traced and where it stopped, to confirm or reject suspicions.

    `unseen` maps codes that no part of this check can show to the part that can.
    """
    traced = None
    if observation.traced is not None:
        traced = {
            absolute(file): frozenset(n for lines in functions.values() for n in lines)
            for file, functions in observation.traced.items()
        }
    stopped = frozenset(
        (absolute(frame.file), frame.line)
        for event in (
            *observation.of(FailureEvent),
            *(each for each in observation.of(BreakEvent) if each.skips),
        )
        for frame in (*event.frames[-1:], blame.place_of(event.frames).frame)
        if frame is not None
    )
    return RunEvidence(traced, stopped, observation.calls, unseen)


# Kinds of findings at a line that Dynamo traces.
_TRACED = {"graph_break", "skipped_frame", "compile_error", "specialization"}


def is_reached(finding: Finding, observation: Observation) -> bool:
    """Whether a run got to the function of an earlier finding, as far as that is known.

    A function that the source no longer has, or that a decorator now keeps out of the
    graph, need not be reached.
    """
    traced, file = observation.traced, finding.file
    if traced is None or file is None or finding.function is None:
        return True
    if finding.kind not in _TRACED or finding.owner != "user":
        return True
    path, is_cell = absolute(file), cells.name_in(file) is not None
    names = {
        blame.plain_name(name)
        for each, functions in traced.items()
        # A cell that is edited and run again is a new cell.
        if absolute(each) == path or (is_cell and cells.name_in(each) is not None)
        for name in functions
    }
    if finding.function in names:
        return True
    try:
        source = Source.parse(Path(file), "".join(blame.lines_of(file)))
    except Unreadable:
        return True
    function = source.functions.get(finding.function)
    return function is None or is_disabled(function)


def configuration(
    reading: Reading, observation: Observation
) -> tuple[CompileSite, ...]:
    """Each torch.compile call in the source, with the calls that the run counted.

    Calls that only the run saw, in code that was not read, come last.
    """
    sites = list(reading.sites)
    for event, place in _wrappers(observation):
        index = _site_at(sites, place)
        calls = event.calls
        if index is None:
            sites.append(_only_seen(event, place))
        elif calls is not None:
            site = sites[index]
            sites[index] = replace(site, calls=(site.calls or 0) + calls)
    return tuple(sites)


def _wrappers(observation: Observation) -> Iterator[tuple[WrapperEvent, Frame]]:
    """The torch.compile calls of the program itself, and their places."""
    for event in observation.of(WrapperEvent):
        if not event.by_torchproof:
            for frame in reversed(event.frames):
                if blame.whose(frame.file) in {"user", "library"}:
                    yield event, frame
                    break


def _site_at(sites: list[CompileSite], place: Frame) -> int | None:
    file = absolute(place.file)
    for index, site in enumerate(sites):
        inside = site.line <= place.line <= max(site.line, site.end_line)
        if inside and absolute(site.file) == file:
            return index
    return None


def _only_seen(event: WrapperEvent, place: Frame) -> CompileSite:
    names = ("backend", "mode", "dynamic", "fullgraph", "options")
    arguments: dict[str, Any] = {k: v for k, v in event.arguments.items() if k in names}
    for name in ("backend", "mode"):  # the source has them as strings
        if re.fullmatch(r"[\w-]+", arguments.get(name, "")):
            arguments[name] = repr(arguments[name])
    return CompileSite(
        file=blame.shown(place.file),
        line=place.line,
        end_line=place.line,
        function=blame.qualified_name(place),
        subject=event.name,
        calls=event.calls,
        source=blame.source_line(place.file, place.line) or None,
        **arguments,
    )
