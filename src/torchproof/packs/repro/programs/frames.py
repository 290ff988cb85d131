"""Functions taken out of a running program, with the values they were called with.

Comes in: a way to run the target's calls in eager, and the place that fails. Goes out:
candidates, the innermost function first, then the one that called it, and so on. This side
needs torch and runs where the target runs.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.programs.objects import is_foreign
from torchproof.packs.repro.programs.stand_ins import SourceWriter
from torchproof.packs.repro.programs.whole_program import size_of
from torchproof.records import whose

ABOUT = "source of the function that fails, with stand-ins for what it uses"
CALLS = 12
STATEMENTS = 700  # more are no function taken out of a program
OUTWARDS = 6

_Tracer = Callable[[types.FrameType, str, Any], Any]


def frame_candidates(
    run: Callable[[], object], file: str, line: int
) -> Iterator[Candidate]:
    """Candidates of the function at a line and of those that call it.

    `run` makes the target anew, seeds it and runs its calls in eager; it is run twice.
    A function that cannot be written down is left out.
    """
    survey = _Survey(os.path.abspath(file), line)
    with _traced(survey.trace):
        run()
    chain = survey.chain()
    records = {code: survey.records(code) for code in chain}
    _recorded(run, records)
    seen: set[str] = set()
    for record in (each for code in chain for each in records[code]):
        with contextlib.suppress(Unsuitable):
            candidate = record.candidate()
            if candidate.source not in seen and candidate.size <= STATEMENTS:
                seen.add(candidate.source)
                yield candidate


class _Survey:
    """Who calls whom, and how the place is reached."""

    def __init__(self, file: str, line: int) -> None:
        self._file, self._line = file, line
        self._calls: dict[types.CodeType, set[types.CodeType]] = {}
        self._inner: dict[types.CodeType, set[types.CodeType]] = {}  # of modules
        self._chains: dict[types.CodeType, list[types.CodeType]] = {}

    def trace(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not is_foreign(code.co_filename):
            return
        caller, through = frame.f_back, False
        while caller is not None and not is_foreign(caller.f_code.co_filename):
            through |= caller.f_code.co_name == "_call_impl"  # of torch.nn.Module
            caller = caller.f_back
        if caller is not None:
            calls = self._inner if through else self._calls
            calls.setdefault(caller.f_code, set()).add(code)
        here = code.co_filename == self._file and _covers(code, self._line)
        if here and code not in self._chains:
            self._chains[code] = _outwards(frame)

    def chain(self) -> list[types.CodeType]:
        """The functions from the place outwards."""
        inner = min(self._chains, key=lambda c: len(list(c.co_lines())), default=None)
        return [] if inner is None else self._chains[inner][:OUTWARDS]

    def records(self, code: types.CodeType) -> tuple[_Record, ...]:
        """To write the function alone, and with the modules that it calls."""
        alone = SourceWriter(self._beneath(code, self._calls), shallow=True)
        edges = {
            each: self._calls.get(each, set()) | self._inner.get(each, set())
            for each in {*self._calls, *self._inner}
        }
        return _Record(code, alone), _Record(
            code, SourceWriter(self._beneath(code, edges))
        )

    def _beneath(
        self, code: types.CodeType, edges: dict[types.CodeType, set[types.CodeType]]
    ) -> set[types.CodeType]:
        """All code that ran while a function did, itself included."""
        found, waiting = {code}, [code]
        while waiting:
            more = edges.get(waiting.pop(), set()) - found
            found |= more
            waiting += more
        return found


def _covers(code: types.CodeType, line: int) -> bool:
    return any(number == line for _, _, number in code.co_lines())


def _outwards(frame: types.FrameType | None) -> list[types.CodeType]:
    found: list[types.CodeType] = []
    while frame is not None:
        code = frame.f_code
        if found and whose(code.co_filename) == "torchproof":
            break  # who runs the target
        named = not code.co_name.startswith("<")
        if is_foreign(code.co_filename) and named and code not in found:
            found.append(code)
        frame = frame.f_back
    return found


def _recorded(
    run: Callable[[], object], records: dict[types.CodeType, tuple[_Record, ...]]
) -> None:
    outputs: dict[int, Any] = {}

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        some = [r for r in records.get(frame.f_code, ()) if not r.is_full]
        if event != "call" or not some:
            return None
        for record in some:
            record.enter(frame)
        frame.f_trace_lines = False

        def leave(frame: types.FrameType, event: str, argument: Any) -> Any:
            if event == "return":
                for record in some:
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


class _Record:
    """What one function was called with, written down as it happens."""

    def __init__(self, code: types.CodeType, writer: SourceWriter) -> None:
        self._code, self._writer = code, writer
        self._calls: list[str] = []
        self._owners: list[Any] = []
        self._names: Any = None
        self._before: dict[int, list[str]] = {}
        self._seen: dict[tuple[str, str], Any] = {}
        self._trouble: Unsuitable | None = None
        self._depth = 0
        self._given: set[str] = set()

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= CALLS or self._trouble is not None

    def enter(self, frame: types.FrameType) -> None:
        self._depth += 1
        if self._depth > 1:  # it calls itself
            return
        try:
            self._replay()
            self._calls.append(self._call(frame))
            self._seen = self._state()
        except Unsuitable as trouble:
            self._trouble = trouble
        except Exception as error:  # an object of the user's that resists being read
            self._trouble = Unsuitable(f"{type(error).__name__}: {error}")

    def leave(self, outputs: dict[int, Any]) -> None:
        """`outputs` are what modules gave back, by their ids."""
        self._depth -= 1
        if self._depth or self._trouble is not None:
            return
        self._seen = self._state()
        try:
            for name, module in self._writer.returning.items():
                if id(module) in outputs and name not in self._given:
                    output = self._writer.value(outputs[id(module)])
                    self._writer.lines.append(f"{name}.output = {output}")
                    self._given.add(name)
        except Unsuitable as trouble:
            self._trouble = trouble

    def _call(self, frame: types.FrameType) -> str:
        code, values = self._code, frame.f_locals
        count = code.co_argcount
        names = list(code.co_varnames[: count + code.co_kwonlyargcount])
        owned = bool(names) and names[0] == "self"
        self._owners.append(values["self"] if owned else None)
        self._writer.whole = self._owners[-1]
        if self._names is None:
            closed = {n: values[n] for n in code.co_freevars if n in values}
            self._names = frame.f_globals, closed
        given = [self._writer.value(values[name]) for name in names]
        starred = list(code.co_varnames[len(names) :])
        more: list[str] = []
        if code.co_flags & inspect.CO_VARARGS:
            more = [self._writer.value(item) for item in values[starred.pop(0)]]
        extra: dict[str, str] = {}
        if code.co_flags & inspect.CO_VARKEYWORDS:
            extra = {k: self._writer.value(v) for k, v in values[starred[0]].items()}
        if code.co_kwonlyargcount or extra:
            if more:
                raise Unsuitable("it is called with *args and keywords")
            pairs = dict(zip(names, given, strict=True)) | extra
            return "{" + ", ".join(f"{k!r}: {v}" for k, v in pairs.items()) + "}"
        listed = [*given, *more]
        return "(" + ", ".join(listed) + ("," if len(listed) == 1 else "") + ")"

    # -- what changes between calls ----------------------------------------------------

    def _state(self) -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = {}
        for name, thing in self._writer.objects.items():
            if isinstance(thing, torch.Tensor):
                continue
            known = set(self._writer.attributes(thing))
            known |= {"training"} if isinstance(thing, torch.nn.Module) else set()
            for attribute in known:
                mark = _mark(getattr(thing, attribute, None))
                found[name, attribute] = mark
        return found

    def _replay(self) -> None:
        """What somebody else changed since the last call, for before_call."""
        index = len(self._calls)
        for (name, attribute), mark in self._state().items():
            if self._seen.get((name, attribute), mark) != mark:
                thing = getattr(self._writer.objects[name], attribute)
                line = f"{name}.{attribute} = {self._writer.value(thing)}"
                self._before.setdefault(index, []).append(line)

    # -- the whole ---------------------------------------------------------------------

    def candidate(self) -> Candidate:
        if self._trouble is not None:
            raise self._trouble
        if not self._calls:
            raise Unsuitable(f"{self._code.co_name} was not called")
        fn, calls = self._function()
        writer = self._writer
        changed = sorted(
            {
                line.partition(".")[0]
                for lines in self._before.values()
                for line in lines
            }
        )
        shared = list(dict.fromkeys([*writer.shared, *changed]))
        make = [f"global {', '.join(shared)}"] if shared else []
        make += [*writer.lines, f"return {fn}, [{', '.join(calls)}]"]
        parts = ["\n".join(writer.imports), *filter(None, writer.definitions.values())]
        parts.append("def make():\n" + "\n".join(f"    {line}" for line in make))
        if self._before:
            parts.append(_before_call(self._before))
        source = "\n\n\n".join(parts) + "\n"
        size = size_of(ast.parse(source))
        place = f"{self._code.co_filename}:{self._code.co_firstlineno}"
        return Candidate("frame", source, ABOUT, size, origin=place)

    def _function(self) -> tuple[str, list[str]]:
        """What is compiled, and its calls: a module itself where it is one."""
        owners = {id(owner) for owner in self._owners}
        owner = self._owners[0]
        module = isinstance(owner, torch.nn.Module) and self._code.co_name == "forward"
        if module and len(owners) == 1:
            name = self._writer.value(owner)
            return name, [_without_first(call, name) for call in self._calls]
        if owner is not None:
            return (
                f"{self._writer.class_(type(owner))}.{self._code.co_name}",
                self._calls,
            )
        names, closed = self._names
        return self._writer.code(self._code, names, closed), self._calls


def _without_first(call: str, name: str) -> str:
    if call.startswith("{"):
        return "{" + call.removeprefix("{'self': " + name).removeprefix(", ")
    inner = call.removeprefix(f"({name}").removeprefix(",").strip()
    if inner == ")":
        return "()"
    return "(" + inner if "," in inner else "(" + inner[:-1] + ",)"


def _before_call(changes: dict[int, list[str]]) -> str:
    lines = ["def before_call(fn, index):"]
    for index, some in changes.items():
        lines.append(f"    if index == {index}:")
        lines += [f"        {line}" for line in some]
    return "\n".join(lines)


def _mark(thing: Any) -> Any:
    """What can be compared later of a value that may change in place."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, torch.Tensor):
        return tuple(thing.shape), thing.dtype, thing.stride(), thing.requires_grad
    if isinstance(thing, list | tuple | dict | set):
        return type(thing).__name__, len(thing)
    return id(thing)
