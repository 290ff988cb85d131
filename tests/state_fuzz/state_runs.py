"""Runs a program as it is and as torchproof runs it, and says where they differ.

Each run loads the program's files anew, under a name of its own, so that nothing but
the process is shared; what a mechanism changes for the process is undone at the end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import random
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import strip
import torch
import torch._dynamo
from state_catalogue import FORMS
from state_programs import Call, Change, Program
from torch import Tensor, nn

import torchproof
from torchproof.records.run import UserError

PATIENCE_S = 30.0
# Whatever a mechanism has made the default.
_INPUT = {"device": "cpu", "dtype": torch.float32}
_numbers = itertools.count()


@dataclass(frozen=True)
class Subject:
    """A way to run a step: `code` makes a callable of `step`, `facts` asks it."""

    name: str
    code: str
    facts: Callable[[Any], dict[str, Any]]

    def wrap(self, step: Any) -> Callable[..., Any]:
        names = {"step": step, "torch": torch, "torchproof": torchproof}
        wrapped: Callable[..., Any] = eval(self.code, names)
        return wrapped

    def eager(self, step: Any) -> Callable[..., Any]:
        """What it has to be equal to: a module is graphed without gradients."""
        without = self.facts is _graph_facts and isinstance(step, nn.Module)
        return torch.no_grad()(step) if without else step

    def settle(self, wrapped: Any) -> None:
        """Waits for what compiles behind a call."""
        end = time.monotonic() + PATIENCE_S
        while "wait=False" in self.code and torchproof.status(wrapped).pending:
            assert time.monotonic() < end, "it compiles for ever"
            time.sleep(0.005)

    @property
    def forms(self) -> tuple[str, ...]:
        """Repeated blocks are those of a module."""
        return ("module",) if "regional" in self.code else FORMS

    def takes(self, program: Program) -> bool:
        """A verified call runs a step twice, with what it writes."""
        return not ("verify" in self.code and program.writes)


@dataclass
class Performance:
    """What each event of the history gave: a tensor, or the name of an error."""

    answers: list[Any] = field(default_factory=list)
    states: list[tuple[Any, ...]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """The first event whose outcome is not eager's."""

    subject: str
    event: int
    what: str

    def __str__(self) -> str:
        return f"{self.subject}: event {self.event}: {self.what}"


@dataclass(frozen=True)
class Outcome:
    difference: Difference | None
    facts: dict[str, Any]


# -- ways to run a step ----------------------------------------------------------------


def _graph_facts(graphed: Any) -> dict[str, Any]:
    status = graphed.status()
    return {
        "calls": status.calls,
        "replays": status.replays,
        "recordings": status.recordings,
        "plain": status.plain_calls,
        "stops": [(stop.kind, stop.reason) for stop in status.stops],
    }


def _compile_facts(compiled: Any) -> dict[str, Any]:
    try:
        status = torchproof.status(compiled)
    except UserError:  # its forward was replaced
        return {}
    return {
        "calls": status.calls,
        "compiled": status.compiled_calls,
        "compilations": len(status.compilations),
        "fallbacks": [(each.kind, each.why) for each in status.fallbacks],
    }


def _no_facts(wrapped: Any) -> dict[str, Any]:
    return {}


_COMPILE = "torchproof.compile(step, deadline=60, backend='eager')"
SUBJECTS = {
    name: Subject(name, code, facts)
    for name, code, facts in (
        ("graph", "torchproof.graph(step)", _graph_facts),
        (
            "graph of torch.compile",
            "torchproof.graph(torch.compile(step, backend='eager'))",
            _graph_facts,
        ),
        ("compile", _COMPILE, _compile_facts),
        *(
            (f"compile, {more}", f"{_COMPILE[:-1]}, {more})", _compile_facts)
            for more in (
                "strategy='regional'",
                "strategy='eager'",
                "wait=False",
                "verify=2",
                "dynamic=True",
            )
        ),
        (
            "compile, backend='aot_eager'",
            "torchproof.compile(step, deadline=60, backend='aot_eager')",
            _compile_facts,
        ),
        # For comparison: what torch.compile does by itself.
        ("torch.compile", "torch.compile(step, backend='eager')", _no_facts),
    )
}


# -- running ---------------------------------------------------------------------------


def compare(program: Program, subject: Subject) -> Outcome:
    """Runs the program in eager and as the subject does."""
    if "compile" in subject.code:
        torch._dynamo.reset()
    with surroundings() as folder:
        exact = subject.name == "graph"  # compiled code may have other strides
        expected = perform(program, folder, subject.eager, exact=exact)
        given = perform(program, folder, subject.wrap, subject, exact=exact)
    return Outcome(_difference(program, subject, expected, given), given.facts)


def perform(
    program: Program,
    folder: Path,
    wrap: Callable[[Any], Callable[..., Any]],
    subject: Subject | None = None,
    *,
    exact: bool = False,
) -> Performance:
    done, copies = Performance(), []
    with _loaded(program, folder) as module:
        wrapped = wrap(module.subject)
        for number, event in enumerate(program.history):
            seed_all(number)
            if isinstance(event, Change):
                done.answers.append(_changed(module, program.statement(event)))
                continue
            x = argument(event)
            answer = _called(wrapped, x, event)
            if subject is not None:
                subject.settle(wrapped)
            if isinstance(answer, Tensor):
                copies.append((number, answer, answer.detach().clone()))
            done.answers.append(answer)
            strides = answer.stride() if exact and isinstance(answer, Tensor) else ()
            done.states.append((number, x, strides, *_states(program, module)))
        # An answer is the caller's: no later call may change it.
        for number, answer, copied in copies:
            if not torch.equal(answer.detach().nan_to_num(), copied.nan_to_num()):
                done.answers[number] = "was overwritten by a later call"
        if subject is not None:
            done.facts = subject.facts(wrapped)
    return done


def argument(call: Call) -> Tensor:
    """The tensor of a call, as it lies in memory there."""
    x = torch.arange(-4.0, 4.0 * call.rows - 4.0, **_INPUT).view(-1, 4)
    if call.layout == "transposed":
        return x.t().contiguous().t()
    if call.layout == "columns":
        return torch.cat([x, x], 1)[:, :4]
    return torch.cat([x, x])[call.rows :] if call.layout == "later rows" else x


def _called(wrapped: Callable[..., Any], x: Tensor, event: Call) -> Any:
    try:
        return wrapped(x) if event.k is None else wrapped(x, k=event.k)
    except Exception as error:
        return type(error).__name__


def _changed(module: types.ModuleType, statement: str) -> str | None:
    try:
        exec(statement, vars(module))
    except Exception as error:
        return type(error).__name__
    return None


def _states(program: Program, module: types.ModuleType) -> Iterator[Any]:
    for expression in program.states:
        try:
            yield eval(expression, vars(module))
        except Exception as error:
            yield type(error).__name__


def _difference(
    program: Program, subject: Subject, expected: Performance, given: Performance
) -> Difference | None:
    for number, (one, other) in enumerate(
        zip(expected.answers, given.answers, strict=True)
    ):
        if not _same(one, other):
            text = f"gave {_shown(other)}, eager {_shown(one)}"
            return Difference(subject.name, number, text)
    for before, after in zip(expected.states, given.states, strict=True):
        if not _same(before, after):
            text = f"left {_shown(after[1:])}, eager {_shown(before[1:])}"
            return Difference(subject.name, before[0], text)
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {value.flatten()[:4].tolist()}"
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return repr(value)


def seed_all(number: int) -> None:
    # `torch.manual_seed` keeps a stack trace for each accelerator that is not there.
    torch.default_generator.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


@contextlib.contextmanager
def _loaded(program: Program, folder: Path) -> Iterator[types.ModuleType]:
    """The program as a package of its own."""
    name = f"state_program_{next(_numbers)}"
    place = folder / name
    place.mkdir()
    for file, text in program.files().items():
        (place / file).write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(
        name, place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    seed_all(program.seed)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        for statement in program.cleanups:
            with contextlib.suppress(NameError):
                exec(statement, vars(module))
        for each in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
            del sys.modules[each]


@contextlib.contextmanager
def surroundings() -> Iterator[Path]:
    """Recordings on the CPU, and no word about fallbacks."""
    log = logging.getLogger("torchproof")
    level, writes = log.level, sys.dont_write_bytecode
    log.setLevel(logging.CRITICAL)
    sys.dont_write_bytecode = True
    try:
        with (
            strip.installed(),
            warnings.catch_warnings(),
            tempfile.TemporaryDirectory() as folder,
        ):
            warnings.simplefilter("ignore")
            yield Path(folder)
    finally:
        log.setLevel(level)
        sys.dont_write_bytecode = writes
