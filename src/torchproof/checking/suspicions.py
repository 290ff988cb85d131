"""Reads source without running it: what would go wrong under torch.compile.

Takes files and folders. Returns suspicions and the places that call torch.compile.
Names each file that it cannot read, and continues with the others.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import itertools
import os
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchproof.checking.rules import RULES
from torchproof.checking.rules.recompile_inputs import LayoutChange
from torchproof.checking.rules.rule import AnyRule, Match
from torchproof.checking.static.compiled import compile_sites
from torchproof.checking.static.expansions import Expansions
from torchproof.checking.static.flow import Flow, joined
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.program import Program, is_disabled
from torchproof.checking.static.source import (
    Function,
    Source,
    Unreadable,
    ignores,
    text_of,
)
from torchproof.process import DEVNULL, Child, Ended, spawn, unpacked
from torchproof.records import CompileSite, Finding, blame, one_line

_FILES_PER_TASK = 20
_FILES_FOR_ONE_PROCESS = 120  # up to here, several processes are not faster
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "build", "dist", "venv"}


@dataclass(frozen=True)
class Suspicion:
    """A finding that no run has confirmed yet, and how a run would decide it.

    `finding` is what `--effort static` reports. A run confirms it with a finding whose
    code starts with one of `shown_by`, on the lines from `finding.line` to `last_line`
    (for kinds that belong to a whole function: in the same function). A run refutes it
    by tracing those lines for at least `calls` calls without such a finding. A
    `certain` suspicion needs no run.
    """

    finding: Finding
    last_line: int
    shown_by: tuple[str, ...] = ()
    calls: int = 1
    certain: bool = False
    shown_in: tuple[str, ...] = ()  # other functions where a run may report it


@dataclass(frozen=True)
class Reading:
    """The suspicions and compile sites of the files, and the files with problems."""

    suspicions: tuple[Suspicion, ...] = ()
    sites: tuple[CompileSite, ...] = ()
    files: int = 0
    problems: tuple[str, ...] = field(default=())  # one line each
    crashes: tuple[str, ...] = ()  # files that a defect of torchproof left unread


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
    files = list(dict.fromkeys(file for path in paths for file in files_in(path)))
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
    """Reads the parts, in their order, with a process for each CPU if it is worth it.

    These processes are new: a fork would need one thread and no torch in this one.
    """
    workers = min(len(os.sched_getaffinity(0)), len(parts))
    if files <= _FILES_FOR_ONE_PROCESS or workers == 1:
        yield from map(read_apart, parts)
        return
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_worker()) for _ in range(workers)]
        for number, child in enumerate(children):
            own = [[str(file) for file in part] for part in parts[number::workers]]
            with contextlib.suppress(Ended):  # `receive` says how it ended
                child.channel.send({"parts": own})
        for number, part in enumerate(parts):
            try:
                message = children[number % workers].receive()
                yield pickle.loads(unpacked(message["reading"]))
            except Ended as error:
                crash = f"{part[0]} and others: the process that read them {error}"
                yield Reading(files=len(part), crashes=(crash,))


def _worker() -> Child:
    # A notebook's stderr is no file that a process could write to.
    return spawn("-m", "torchproof.checking.reading_worker", output=DEVNULL)


def read_apart(files: Iterable[Path]) -> Reading:
    """Reads each file as a program of its own."""
    # Most objects are nodes of syntax trees, which are in use until the file is read:
    # a collection walks them all and frees nothing.
    enabled = gc.isenabled()
    gc.disable()
    try:
        return _sum(map(_one, files))
    finally:
        if enabled:
            gc.enable()


def _one(path: Path) -> Reading:
    source = _parsed(path)
    if isinstance(source, str):
        return Reading(files=1, problems=(source,))
    if source is None:
        return Reading(files=1)
    program = Program([source])
    try:
        with blame.parsed({str(path): source.tree}):
            return _walked([source], program, program.roots(source))
    except Exception as error:  # a defect in torchproof must not end a whole folder
        return Reading(files=1, crashes=(f"{path}: {crash(error)}",))


def crash(error: BaseException) -> str:
    """A defect of torchproof in one line, with the place that raised it."""
    text = one_line(f"{type(error).__name__}: {error}", 200)
    frames = traceback.extract_tb(error.__traceback__)
    at = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{text}{at}"


def _together(files: Iterable[Path], roots: Mapping[str, Iterable[str]]) -> Reading:
    """Reads the files, and those that they import, as one program."""
    read = [_parsed(Path(path)) for path in dict.fromkeys([*files, *map(Path, roots)])]
    sources = [source for source in read if isinstance(source, Source)]
    program = Program(sources, follows=True)
    with blame.parsed({str(source.path): source.tree for source in sources}):
        reading = _walked(sources, program, _functions(program, roots))
    problems = tuple(text for text in read if isinstance(text, str))
    count = len(sources) + len(problems)
    return replace(reading, files=count, problems=problems + reading.problems)


def _walked(
    sources: list[Source], program: Program, roots: Iterable[Function]
) -> Reading:
    compiled = _Regions(program)
    suspicions = compiled.walk(roots)
    deep = dict.fromkeys(compiled.too_deep)
    calls: list[CompileSite] = []
    for source in sources:
        try:
            suspicions += _of_file(source)
            calls += compile_sites(source)
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
        crashes=tuple(chain(r.crashes for r in every)),
    )


def _parsed(path: Path) -> Source | str | None:
    """The parsed file; None if it does not mention torch; a message if unreadable."""
    try:
        text = text_of(path)
        return Source.parse(path, text) if "torch" in text else None
    except Unreadable as error:
        return str(error)


def files_in(path: Path) -> Iterator[Path]:
    """The Python files under a folder, without hidden and generated folders."""
    if not path.is_dir():
        yield path
        return
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(n for n in inner if n[0] != "." and n not in _SKIPPED_FOLDERS)
        yield from (Path(folder, n) for n in sorted(names) if n.endswith(".py"))


# -- searching ---------------------------------------------------------------------

_BY_NODE: dict[type[ast.AST], list[AnyRule]] = {}
for _rule in RULES:
    for _node in _rule.nodes:
        _BY_NODE.setdefault(_node, []).append(_rule)


class _Regions:
    """Walks each reachable function once, with the kinds of its callers' arguments."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.suspicions: dict[tuple[object, ...], Suspicion] = {}
        self._waiting: dict[Function, dict[str, Kind]] = {}
        self._done: dict[Function, dict[str, Kind]] = {}
        self._expansions = Expansions()
        self.too_deep: list[Path] = []  # files with code that was skipped

    def walk(self, roots: Iterable[Function]) -> list[Suspicion]:
        self._waiting = {root: {} for root in roots}
        while self._waiting:
            function = next(iter(self._waiting))
            arguments = self._waiting.pop(function)
            self._done[function] = arguments
            try:
                Flow(function, self.program, arguments=arguments, look=self._look).run()
            except RecursionError:
                self.too_deep.append(function.source.path)
        every = list(self.suspicions.values())
        return [*every, *self._flips(every)]

    def _flips(self, every: list[Suspicion]) -> Iterator[Suspicion]:
        """Stride changes. A run reports them in the function that takes the tensor."""
        breaks = [e.finding for e in every if e.finding.suspects == "graph_break"]
        for expansion in self._expansions.crossing(breaks):
            rule = LayoutChange()
            result = _suspicion(rule, rule.expanded(expansion), *expansion.place)
            if result is not None:
                shown_in = tuple(dict.fromkeys(f.name for f in expansion.passed_to))
                yield replace(result, shown_in=shown_in)

    def _look(self, node: ast.AST, at: Flow) -> None:
        for rule in _BY_NODE.get(type(node), ()):
            for match in rule.look(node, at):
                result = _suspicion(rule, match, at.source, at.function.name)
                if result is not None:
                    found = result.finding
                    place = (found.code, found.file, found.line, found.column)
                    self.suspicions.setdefault(place, result)
        self._expansions.look(node, at)
        if isinstance(node, ast.Call):
            self._reach(node, at)

    def _reach(self, call: ast.Call, at: Flow) -> None:
        """Queues the called function, with the kinds of these arguments."""
        callee = self.program.callee(call, at.function)
        if callee is None or is_disabled(callee):
            return
        self._expansions.passed(call, callee, at)
        arguments = _arguments(call, callee, at)
        earlier = self._done.get(callee, self._waiting.get(callee))
        if earlier is None:
            self._waiting[callee] = arguments
        elif callee in self._waiting:
            self._waiting[callee] = joined(earlier, arguments)


def _arguments(call: ast.Call, callee: Function, at: Flow) -> dict[str, Kind]:
    names = [parameter.arg for parameter in callee.parameters]
    if callee.is_bound and names:
        names = names[1:]
    arguments = {}
    for name, argument in zip(names, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        arguments[name] = at.kind(argument)
    arguments |= {k.arg: at.kind(k.value) for k in call.keywords if k.arg}
    return arguments


def _of_file(source: Source) -> Iterator[Suspicion]:
    for rule in RULES:
        for match in rule.read(source):
            inside = source.function_at(match.node)
            result = _suspicion(rule, match, source, inside)
            if result is not None:
                yield result


def _suspicion(
    rule: AnyRule, match: Match, source: Source, function: str | None
) -> Suspicion | None:
    """The suspicion for a match; None if a comment in the source ignores it."""
    finding = rule.suspected(match, source, function)
    assert finding.line is not None
    last = getattr(match.node, "end_lineno", None) or finding.line
    if ignores(source.text, (finding.line, last), rule.code):
        return None
    return Suspicion(
        finding=finding,
        last_line=last,
        shown_by=(*(rule.shown_by or (rule.code,)), *rule.also_shown_by),
        calls=rule.calls,
        certain=rule.certain,
    )


def _functions(program: Program, roots: Mapping[str, Iterable[str]]) -> list[Function]:
    """Looks compiled functions up by file and qualified name."""
    selected = []
    for file, names in roots.items():
        source = program.sources.get(Path(file))
        functions = source.functions if source else {}
        selected += [functions[name] for name in names if name in functions]
    return [function for function in selected if not is_disabled(function)]
