"""The source of a target: what of it is read, and what that adds to a run.

Code of installed packages is read only where it is the target itself.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torchproof.checking import static
from torchproof.checking.static.imports import assumed_roots, with_imports
from torchproof.checking.static.join import RunEvidence, absolute
from torchproof.checking.static.source import Source, Unreadable
from torchproof.checking.static.suspicion import Reading
from torchproof.records import (
    CompileSite,
    Event,
    Finding,
    Frame,
    Observation,
    Part,
    UserError,
    blame,
)
from torchproof.targets import Target, own_file

Progress = Callable[[str], None]


# -- what is read ----------------------------------------------------------------------


def alone(target: Target, progress: Progress) -> Reading:
    """The target's source, every `forward` in it taken as compiled.

    A folder is read file by file, all else as one program.
    """
    own = Path(target.where) if target.kind == "source" else own_file(target)
    if own is None:
        raise UserError(f"no Python file of {target.where} is found to read")
    if target.kind == "source":
        found = static.read([own], progress=_after_a_second(progress))
        for problem in found.problems[3:]:  # the part names the first ones
            progress(f"not understood: {problem}")
    else:
        files = with_imports([own])
        found = static.read(files, roots=assumed_roots(files))
        found = replace(found, files=len(files))
    if found.files <= len(found.problems):
        why = found.problems[0] if found.problems else "it holds no Python file"
        raise UserError(f"nothing can be read of {target.text}: {why}")
    return _shown(found)


def _after_a_second(tell: Progress) -> Progress:
    """What is done at once is done in silence."""
    begun = time.monotonic()
    return lambda text: tell(text) if time.monotonic() - begun > 1 else None


def beside(target: Target, seen: Observation) -> Reading:
    """The code that the run compiled or could have, and where it was compiled."""
    roots, own = _roots(seen), own_file(target)
    files = {absolute(str(own)): None} if own else {}
    called = (place.file for _, place in _wrappers(seen.events))
    files |= {absolute(f): None for f in called if blame.whose(f) == "user"}
    files |= dict.fromkeys(roots)
    paths = [path for path in map(Path, files) if path.is_file()]
    return _shown(static.read(paths, roots=roots))


def _roots(seen: Observation) -> dict[str, list[str]]:
    """The user's functions that were compiled or traced, by absolute path."""
    found: dict[str, dict[str, None]] = {}
    for each in (seen.compiled, seen.traced or {}):
        for file, functions in each.items():
            if blame.whose(file) == "user":
                known = found.setdefault(absolute(file), {})
                known |= dict.fromkeys(map(blame.plain_name, functions))
    return {file: list(names) for file, names in found.items()}


def _shown(found: Reading) -> Reading:
    """With the files as a run names them."""
    suspicions = tuple(
        replace(s, finding=replace(s.finding, file=blame.shown(s.finding.file or "")))
        for s in found.suspicions
    )
    sites = tuple(replace(s, file=blame.shown(s.file)) for s in found.sites)
    return replace(found, suspicions=suspicions, sites=sites)


def part(found: Reading, findings: Iterable[Finding]) -> Part:
    """The status of part static."""
    count = found.files
    told = f"{count} file read" if count == 1 else f"{count} files read"
    if found.problems:
        more = len(found.problems) - 3
        listed = [*found.problems[:3], *([f"{more} more"] if more > 0 else [])]
        told += f", not understood: {'; '.join(listed)}"
    some = any(f.status == "open" and f.origin != "dynamic" for f in findings)
    return Part("found" if some else "passed", told)


# -- what a run can say about source ---------------------------------------------------


def what_was_seen(seen: Observation, unseen: Mapping[str, str]) -> RunEvidence:
    """`unseen`: codes that no part of this check could show, and the part that does."""
    traced = None
    if seen.traced is not None:
        traced = {
            absolute(file): frozenset(n for lines in functions.values() for n in lines)
            for file, functions in seen.traced.items()
        }
    stopped = frozenset(
        (absolute(frame.file), frame.line)
        for event in seen.events
        if event.kind == "compile_failure" or event.data.get("skips")
        for frame in (*event.frames[-1:], blame.place_of(event.frames).frame)
        if frame is not None
    )
    return RunEvidence(traced, stopped, seen.calls, unseen)


def configuration(found: Reading, events: Iterable[Event]) -> tuple[CompileSite, ...]:
    """Each torch.compile call in the source, with what the run saw of it.

    Then those that only the run saw: calls in code that was not read.
    """
    sites = list(found.sites)
    for event, place in _wrappers(events):
        index = _site_at(sites, place)
        calls = event.data["calls"]
        if index is None:
            sites.append(_only_seen(event, place))
        elif calls is not None:
            known = sites[index]
            sites[index] = replace(known, calls=(known.calls or 0) + calls)
    return tuple(sites)


def _wrappers(events: Iterable[Event]) -> Iterator[tuple[Event, Frame]]:
    """The program's own calls of torch.compile, and where it makes them."""
    for event in events:
        if event.kind == "wrapper" and not event.data["by_torchproof"]:
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


def _only_seen(event: Event, place: Frame) -> CompileSite:
    names = ("backend", "mode", "dynamic", "fullgraph", "options")
    given = {k: v for k, v in event.data["arguments"].items() if k in names}
    for name in ("backend", "mode"):  # a name is a string in the source
        if re.fullmatch(r"[\w-]+", given.get(name, "")):
            given[name] = repr(given[name])
    return CompileSite(
        file=blame.shown(place.file),
        line=place.line,
        end_line=place.line,
        function=blame.qualified_name(place),
        subject=event.data["name"],
        calls=event.data["calls"],
        source=blame.source_line(place.file, place.line) or None,
        **given,
    )


# -- what source says about findings ---------------------------------------------------


def with_source(findings: Iterable[Finding]) -> list[Finding]:
    """With the lines around each, and `intentional` where a comment says so."""
    commented = functools.cache(_commented)
    found = []
    for finding in findings:
        if finding.file and finding.line:
            lines, first = blame.around(finding.file, finding.line)
            finding = replace(finding, context=lines, context_from=first)
            source = commented(finding.file)
            if source and _is_meant(finding, source):
                finding = replace(finding, status="intentional")
        found.append(finding)
    return found


def _commented(file: str) -> Source | None:
    """The file, if a comment in it can speak to torchproof."""
    text = "".join(blame.lines_of(file))
    if "torchproof:" not in text:
        return None
    try:
        return Source.parse(Path(file), text)
    except Unreadable:
        return None


def _is_meant(finding: Finding, source: Source) -> bool:
    assert finding.line is not None
    first, last = blame.statement(finding.file or "", finding.line)
    return finding.status == "open" and source.ignores(first, last, finding.code)
