"""Extracts functions from a running program, with their arguments.

Takes a function that runs the target's calls in eager, and the failing line. Yields
candidates: the innermost function first, then its caller, and so on. It needs torch and
runs in the process of the target.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.programs.stand_ins import SourceWriter, is_extracted
from torchproof.packs.repro.programs.whole_program import size_of
from torchproof.records import whose

ABOUT = "source of the failing function, with stand-ins for the objects that it uses"
MAX_CALLS = 12
MAX_STATEMENTS = 700  # a larger candidate is not one function any more
MAX_CALLERS = 6

_Tracer = Callable[[types.FrameType, str, Any], Any]


def frame_candidates(
    run: Callable[[], object], file: str, line: int
) -> Iterator[Candidate]:
    """Yields candidates of the function at a line and of its callers.

    `run` builds a new target, seeds it and makes its calls in eager; it runs twice.
    Functions that cannot be written as source are left out.
    """
    call_graph = _CallGraph(os.path.abspath(file), line)
    with _traced(call_graph.trace):
        run()
    chain = call_graph.chain()
    records = {code: call_graph.records(code) for code in chain}
    _record(run, records)
    sources: set[str] = set()
    for record in (each for code in chain for each in records[code]):
        with contextlib.suppress(Unsuitable):
            candidate = record.candidate()
            if candidate.source not in sources and candidate.size <= MAX_STATEMENTS:
                sources.add(candidate.source)
                yield candidate


class _CallGraph:
    """Records the call graph, and the call stacks that reach the failing line."""

    def __init__(self, file: str, line: int) -> None:
        self._file = file
        self._line = line
        self._calls: dict[types.CodeType, set[types.CodeType]] = {}
        self._module_calls: dict[types.CodeType, set[types.CodeType]] = {}
        self._chains: dict[types.CodeType, list[types.CodeType]] = {}

    def trace(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not is_extracted(code.co_filename):
            return
        caller = frame.f_back
        through_module = False
        while caller is not None and not is_extracted(caller.f_code.co_filename):
            # The function of torch.nn.Module that calls `forward`.
            through_module |= caller.f_code.co_name == "_call_impl"
            caller = caller.f_back
        if caller is not None:
            calls = self._module_calls if through_module else self._calls
            calls.setdefault(caller.f_code, set()).add(code)
        is_place = code.co_filename == self._file and _covers(code, self._line)
        if is_place and code not in self._chains:
            self._chains[code] = _callers(frame)

    def chain(self) -> list[types.CodeType]:
        """Returns the failing function and its callers, innermost first."""
        inner = min(self._chains, key=lambda c: len(list(c.co_lines())), default=None)
        return [] if inner is None else self._chains[inner][:MAX_CALLERS]

    def records(self, code: types.CodeType) -> tuple[_CallRecorder, ...]:
        """Returns recorders of the function alone, and with the modules it calls."""
        alone = SourceWriter(self._code_below(code, self._calls), shallow=True)
        edges = {
            each: self._calls.get(each, set()) | self._module_calls.get(each, set())
            for each in {*self._calls, *self._module_calls}
        }
        with_modules = SourceWriter(self._code_below(code, edges))
        return _CallRecorder(code, alone), _CallRecorder(code, with_modules)

    def _code_below(
        self, code: types.CodeType, edges: dict[types.CodeType, set[types.CodeType]]
    ) -> set[types.CodeType]:
        """Returns all code that ran inside a function, and its own."""
        reached = {code}
        pending = [code]
        while pending:
            more = edges.get(pending.pop(), set()) - reached
            reached |= more
            pending += more
        return reached


def _covers(code: types.CodeType, line: int) -> bool:
    return any(number == line for _, _, number in code.co_lines())


def _callers(frame: types.FrameType | None) -> list[types.CodeType]:
    callers: list[types.CodeType] = []
    while frame is not None:
        code = frame.f_code
        if callers and whose(code.co_filename) == "torchproof":
            break  # torchproof runs the target
        named = not code.co_name.startswith("<")
        if is_extracted(code.co_filename) and named and code not in callers:
            callers.append(code)
        frame = frame.f_back
    return callers


def _record(
    run: Callable[[], object], records: dict[types.CodeType, tuple[_CallRecorder, ...]]
) -> None:
    outputs: dict[int, Any] = {}

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        active = [r for r in records.get(frame.f_code, ()) if not r.is_full]
        if event != "call" or not active:
            return None
        for record in active:
            record.enter(frame)
        frame.f_trace_lines = False

        def leave(frame: types.FrameType, event: str, argument: Any) -> Any:
            if event == "return":
                for record in active:
                    record.leave(outputs)
            return leave

        return leave

    def keep(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        outputs[id(module)] = output

    hook = torch.nn.modules.module.register_module_forward_hook(keep)
    try:
        with _traced(trace):
            run()
    finally:
        hook.remove()


@contextlib.contextmanager
def _traced(trace: _Tracer) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@dataclass(frozen=True)
class _Call:
    """The arguments of a call as source; `owner` is the object of a method."""

    owner: Any
    positional: list[str]
    keywords: dict[str, str]


class _CallRecorder:
    """Writes the arguments of one function's calls as they happen."""

    def __init__(self, code: types.CodeType, writer: SourceWriter) -> None:
        self._code = code
        self._writer = writer
        self._calls: list[_Call] = []
        self._names: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        self._failure: Unsuitable | None = None
        self._depth = 0
        self._returned: set[str] = set()

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= MAX_CALLS or self._failure is not None

    def enter(self, frame: types.FrameType) -> None:
        self._depth += 1
        if self._depth > 1:  # a recursive call
            return
        try:
            self._calls.append(self._call(frame))
        except Unsuitable as failure:
            self._failure = failure
        except Exception as error:  # reading an object of the user's may raise
            self._failure = Unsuitable(f"{type(error).__name__}: {error}")

    def leave(self, outputs: dict[int, Any]) -> None:
        """Ends a call; `outputs` are the outputs of modules, by id."""
        self._depth -= 1
        if self._depth or self._failure is not None:
            return
        try:
            for name, module in self._writer.returning.items():
                if id(module) in outputs and name not in self._returned:
                    output = self._writer.value(outputs[id(module)])
                    self._writer.lines.append(f"{name}.output = {output}")
                    self._returned.add(name)
        except Unsuitable as failure:
            self._failure = failure

    def _call(self, frame: types.FrameType) -> _Call:
        code, values = self._code, frame.f_locals
        value = self._writer.value
        owner = values["self"] if code.co_varnames[:1] == ("self",) else None
        self._writer.whole = owner
        if not self._calls:
            closed = {n: values[n] for n in code.co_freevars if n in values}
            self._names = frame.f_globals, closed
        names = list(code.co_varnames)
        positional = [value(values[name]) for name in names[: code.co_argcount]]
        count = code.co_argcount + code.co_kwonlyargcount
        only = names[code.co_argcount : count]
        keywords = {name: value(values[name]) for name in only}
        starred = names[count:]
        if code.co_flags & inspect.CO_VARARGS:
            positional += [value(item) for item in values[starred.pop(0)]]
        if code.co_flags & inspect.CO_VARKEYWORDS:
            keywords |= {k: value(v) for k, v in values[starred[0]].items()}
        if keywords and len(positional) > code.co_argcount:
            raise Unsuitable("a call has both *args and keywords")
        return _Call(owner, positional, keywords)

    def candidate(self) -> Candidate:
        if self._failure is not None:
            raise self._failure
        if not self._calls:
            raise Unsuitable(f"{self._code.co_name} was not called")
        fn, skipped = self._function()
        calls = ", ".join(self._written(call, skipped) for call in self._calls)
        writer = self._writer
        shared = ", ".join(dict.fromkeys(writer.shared))
        make = [f"global {shared}"] if shared else []
        make += [*writer.lines, f"return {fn}, [{calls}]"]
        parts = ["\n".join(writer.imports), *filter(None, writer.definitions.values())]
        parts.append("def make():\n" + "\n".join(f"    {line}" for line in make))
        source = "\n\n\n".join(parts) + "\n"
        size = size_of(ast.parse(source))
        place = f"{self._code.co_filename}:{self._code.co_firstlineno}"
        return Candidate("frame", source, ABOUT, size, origin=place)

    def _function(self) -> tuple[str, int]:
        """Returns what to compile, and how many first arguments its calls omit."""
        owner = self._calls[0].owner
        is_forward = self._code.co_name == "forward"
        is_same = all(call.owner is owner for call in self._calls)
        if isinstance(owner, torch.nn.Module) and is_forward and is_same:
            return self._writer.value(owner), 1
        if owner is not None:
            kind = self._writer.class_(type(owner))
            return f"{kind}.{self._code.co_name}", 0
        return self._writer.code(self._code, *self._names), 0

    def _written(self, call: _Call, skipped: int) -> str:
        positional = call.positional[skipped:]
        if not call.keywords:
            return "(" + "".join(f"{each}, " for each in positional).rstrip() + ")"
        names = self._code.co_varnames[skipped:]
        pairs = dict(zip(names, positional, strict=False)) | call.keywords
        return "{" + ", ".join(f"{k!r}: {v}" for k, v in pairs.items()) + "}"
