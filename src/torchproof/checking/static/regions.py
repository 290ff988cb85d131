"""Searches all code that compiled functions reach for every pattern."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torchproof.checking.static.expansions import Expansions, StrideFlip
from torchproof.checking.static.flow import Flow, joined
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.patterns import PATTERNS, by_node
from torchproof.checking.static.patterns.files import FILE_PATTERNS
from torchproof.checking.static.patterns.pattern import (
    FilePattern,
    Pattern,
    PatternMatch,
)
from torchproof.checking.static.program import Program, is_disabled
from torchproof.checking.static.source import Function, Source
from torchproof.checking.static.suspicion import Suspicion
from torchproof.records import Finding

_BY_NODE = by_node(PATTERNS)


class Regions:
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
        for hit, expansion in self._expansions.matches(every):
            source, name = expansion.function.source, expansion.function.name
            result = suspicion(StrideFlip(), hit, source, name)
            if result is not None:
                shown_in = tuple(dict.fromkeys(f.name for f in expansion.passed_to))
                yield replace(result, shown_in=shown_in)

    def _look(self, node: ast.AST, at: Flow) -> None:
        for pattern in _BY_NODE.get(type(node), ()):
            for hit in pattern.look(node, at):
                result = suspicion(pattern, hit, at.source, at.function.name)
                if result is not None:
                    place = (
                        result.finding.file,
                        result.finding.line,
                        result.finding.column,
                    )
                    self.suspicions.setdefault((pattern.code, *place), result)
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


def of_file(source: Source) -> Iterator[Suspicion]:
    """What the patterns for whole files find."""
    for pattern in FILE_PATTERNS:
        for hit in pattern.read(source):
            inside = source.function_at(hit.node)
            result = suspicion(pattern, hit, source, inside)
            if result is not None:
                yield result


def suspicion(
    pattern: Pattern | FilePattern,
    hit: PatternMatch,
    source: Source,
    function: str | None,
) -> Suspicion | None:
    """The suspicion for a match; None if a comment in the source ignores it."""
    node = hit.node
    assert isinstance(node, ast.expr | ast.stmt | ast.excepthandler)
    last = node.end_lineno or node.lineno
    if source.ignores(node.lineno, last, pattern.code):
        return None
    certain = pattern.certain
    line = source.lines[node.lineno - 1]
    end = node.end_col_offset if last == node.lineno else None
    finding = Finding(
        code=pattern.code,
        kind=pattern.kind if certain else "hazard",
        suspects=None if certain else pattern.kind,
        severity=hit.severity or pattern.severity,
        message=hit.message,
        cause=hit.cause,
        fix=hit.fix,
        file=str(source.path),
        line=node.lineno,
        function=function,
        owner="user",
        origin="static",
        column=_column(line, node.col_offset),
        end_column=_column(line, end if end is not None else len(line.encode())),
        source=line,
    )
    shown_by = pattern.shown_by or (pattern.code,)
    return Suspicion(
        finding=finding,
        last_line=last,
        shown_by=shown_by,
        calls=pattern.calls,
        certain=certain,
    )


def _column(line: str, offset: int) -> int:
    """Offsets count bytes; columns count characters from one."""
    return len(line.encode()[:offset].decode(errors="ignore")) + 1


def compiled_functions(
    program: Program, roots: Mapping[str, Iterable[str]]
) -> list[Function]:
    """Looks compiled functions up by file and qualified name."""
    selected = []
    for file, names in roots.items():
        source = program.sources.get(Path(file))
        functions = source.functions if source else {}
        selected += [functions[name] for name in names if name in functions]
    return selected
