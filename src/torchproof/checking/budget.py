"""Compile budgets of tests: what a test compiles is watched in its own process.

`Watch` puts the observer's hooks in place and takes them away again. `Budget` says what
is allowed of counts and findings, and in one sentence what of it a run exceeds.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.checking import checker, rules, source_reading
from torchproof.observe import Observer, Wrapper, capture, counts_of
from torchproof.process import Stream
from torchproof.records import SEVERITIES, Run, UserError
from torchproof.targets import Options, Target, calls
from torchproof.torch_private import environment

# What a budget may limit, and what one of it is called.
COUNTS = {
    "graph_breaks": "graph break",
    "recompiles": "recompile",
    "graphs": "graph",
    "skipped_frames": "skipped frame",
    "cudagraph_skips": "skipped CUDA graph",
}
FINDINGS = {"findings": "open finding"}
FINDINGS |= {severity: f"open {severity} finding" for severity in SEVERITIES}
LIMITS = {**COUNTS, **FINDINGS}
SWITCHES = ("compiled", "generate_code")
_TRACE = "torch.__trace"
_EARLIER = "a function compiled before the test"


@dataclass(frozen=True)
class Budget:
    """Limits by name, and whether something has to be compiled at all."""

    limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    compiled: bool = True
    generate_code: bool = False

    @classmethod
    def of(cls, marks: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]) -> Budget:
        """From marks, the nearest one last: it has the last word on what it names."""
        given: dict[str, Any] = {}
        for positional, named in marks:
            if positional:
                raise UserError("compile_budget takes names, as in graph_breaks=0")
            given |= named
        for name, value in given.items():
            _assert_known(name, value)
        limits = {name: given[name] for name in LIMITS if given.get(name) is not None}
        if not limits:
            raise UserError("compile_budget limits nothing: try graph_breaks=0")
        switches = {name: given[name] for name in SWITCHES if name in given}
        if limits.get("graphs") == 0 and switches.get("compiled", True):
            raise UserError(
                "compile_budget(graphs=0) cannot be kept, since a test that compiles"
                " nothing fails: add compiled=False"
            )
        if "cudagraph_skips" in limits:
            switches["generate_code"] = True
        return cls(limits, **switches)

    def broken_by(self, run: Run) -> str | None:
        """What of this budget a run exceeds, in one sentence."""
        if not compiled_anything(run):
            if not self.compiled:
                return None
            return f"{self._said(self.limits)}: nothing was compiled"
        found = {name: _amount(run, name) for name in self.limits}
        for name, value in found.items():
            if value is None:  # only CUDA graphs can be unknown
                needed = "it needs a CUDA device, and of a target --effort full"
                return f"{self._said([name])}: not measured, {needed}"
        over = [name for name, value in found.items() if value > self.limits[name]]
        if over:
            told = ", ".join(_counted(found[n], LIMITS[n]) for n in over)
            return f"{self._said(over)}: {told}"
        return None

    def _said(self, names: Iterable[str]) -> str:
        inside = ", ".join(f"{name}={self.limits[name]}" for name in names)
        return f"compile_budget({inside})"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _assert_known(name: str, value: Any) -> None:
    known = (*LIMITS, *SWITCHES)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
        raise UserError(f"compile_budget has no {name}: {hint}")
    if name in SWITCHES:
        if not isinstance(value, bool):
            raise UserError(f"compile_budget({name}={value!r}): give True or False")
    elif value is not None and (type(value) is not int or value < 0):
        raise UserError(f"compile_budget({name}={value!r}): give a whole number, or 0")


def _amount(run: Run, name: str) -> Any:
    if name in COUNTS:
        return run.counts[name]
    mine = [f for f in run.findings if f.status == "open"]
    return sum(name in ("findings", f.severity) for f in mine)


def compiled_anything(run: Run) -> bool:
    """Whether the compiler had something to do, be it that it gave up on it."""
    return bool(run.counts["graphs"] or run.counts["graph_breaks"])


# -- watching --------------------------------------------------------------------------


class Watch:
    """Observes what this process compiles from `start` to `stop`.

    Compiled code is forgotten before and after: what an earlier test compiled would be
    used in silence, and what is compiled here is not what a later one asks for.
    """

    def __init__(self, *, generate_code: bool = False) -> None:
        self._kept = _Kept()
        self._observer = _Watcher(self._kept, calls_are_wrapper_calls=True)
        self._observer.generates_code = generate_code
        self._hooks = contextlib.ExitStack()

    def start(self) -> Watch:
        import torch

        self._hooks.enter_context(_trace_untold())
        torch.compiler.reset()
        self._hooks.callback(torch.compiler.reset)
        self._hooks.callback(self._observer.detach)
        self._observer.attach()
        self._skips = self._observer.skips()
        return self

    def stop(self) -> None:
        self._hooks.close()

    def run(self, name: str) -> Run:
        """What was seen until here, as a run that is not saved."""
        self._observer.flush()
        told = {"device": None, "size": None, "train": False}
        self._kept.write("environment", **environment.describe(told))
        target = Target(name, "script", name)
        seen = capture.gather(self._kept.entries, "finished", 0, target)
        found = source_reading.with_source(rules.check(seen))
        counts = counts_of(seen, found)
        if self._observer.records_graphs:
            counts["cudagraph_skips"] = self._observer.skips() - self._skips
        return Run(
            id="",
            target=name,
            strategy="as-written",
            environment=seen.environment,
            counts=counts,
            findings=tuple(found),
        )


@contextlib.contextmanager
def _trace_untold() -> Iterator[None]:
    """pytest 9.1 and later takes torch's structured trace for a log to be shown."""

    def untold(record: logging.LogRecord) -> bool:
        return record.name != _TRACE

    shown = [
        handler
        for handler in logging.getLogger(_TRACE).handlers
        if type(handler).__module__.startswith("_pytest.")
    ]
    for handler in shown:
        handler.addFilter(untold)
    try:
        yield
    finally:
        for handler in shown:
            handler.removeFilter(untold)


class _Kept(Stream):
    """A stream that stays in memory, as it would be read from a file."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._owner = os.getpid()

    def write(self, kind: str, **values: Any) -> None:
        if os.getpid() == self._owner:
            line = json.dumps({"kind": kind, **values}, default=str)
            self.entries.append(json.loads(line))


class _Watcher(Observer):
    """The observer in somebody else's program: errors stay errors, nothing stays."""

    def attach(self) -> None:
        from torchproof.torch_private import compile_contexts

        super().attach()
        self._attach_dynamo()  # also for those who imported torch.compile by name
        self.skips, self._unhook = (
            compile_contexts.cudagraph_skips,
            compile_contexts.unhook,
        )
        self.hooks.enter_context(compile_contexts.earlier_contexts(self._unknown))

    @property
    def records_graphs(self) -> bool:
        return self.generates_code and sys.modules["torch"].cuda.is_available()

    def _context(self, context: Any) -> Callable[[], Callable[[], None]] | None:
        enter = super()._context(context) or self._unknown()
        self.hooks.callback(self._unhook, weakref.ref(context), enter)
        return enter

    def _unknown(self) -> Callable[[], Callable[[], None]]:
        """The hook of something that torch.compile did not give through here."""
        return functools.partial(self._enter_unknown, [])

    def _enter_unknown(self, known: list[Wrapper]) -> Callable[[], None]:
        if not known:
            known.append(Wrapper(len(self.wrappers), _earlier))
            self.wrappers.append(known[0])
            self.stream.write(
                "wrapper",
                number=known[0].number,
                name=_EARLIER,
                what="function",
                site=[],
                code=[],
                around=[],
                arguments={},
                off=False,
                by_torchproof=False,
                in_place=False,
                reaches=[],
            )
        return self._enter(known[0])

    def _convert(self, convert: Callable[[], Any], asked: Any) -> Any:
        """An error is the test's own, as it would be without anyone watching."""
        return super()._convert(convert, asked._replace(fullgraph=True))

    def _spy_on_original(self, wrapper: Wrapper, model: Any) -> None:
        before = getattr(model, "_compiled_call_impl", None)
        super()._spy_on_original(wrapper, model)
        spy = getattr(model, "_compiled_call_impl", None)
        if spy is not None and before is None:
            self.hooks.callback(_unspied, weakref.ref(model), spy)


def _unspied(model: weakref.ref[Any], spy: Any) -> None:
    alive = model()
    if alive is not None and alive._compiled_call_impl is spy:
        alive._compiled_call_impl = None


def _earlier() -> None:
    """Stands for a function of which nothing is known."""


# -- checking by name or by hand -------------------------------------------------------


def check_target(
    target: str,
    *,
    save_in: Path,
    effort: str = "quick",
    train: bool = False,
    **arguments: Any,
) -> Run:
    """A target of `torchproof check`, in a process of its own."""
    options = Options(compile=arguments, train=train, quiet=True)
    run = checker.check(target, options, effort=effort, save_in=save_in)
    if run.error or run.ending != "finished":
        raise UserError(f"{target}: {run.error or run.ending}")
    return run


def check(
    fn: Callable[..., Any],
    given: Sequence[Any],
    *,
    name: str,
    train: bool = False,
    **arguments: Any,
) -> Run:
    """Compiles a function, makes the calls, and says what was seen."""
    _assert_calls(given)
    watch = Watch()
    try:
        watch.start()
        compiled = _compiled(fn, arguments)
        for call in given:
            calls.invoke(compiled, call, train=train)
        return watch.run(name)
    finally:
        watch.stop()


def _assert_calls(given: Sequence[Any]) -> None:
    if not given:
        raise UserError("there is no call to make: give a list of tuples or dicts")
    for index, call in enumerate(given):
        if not isinstance(call, (tuple, dict)):
            raise UserError(
                f"call {index} is a {type(call).__name__}; give a tuple of positional"
                " or a dict of keyword arguments"
            )


def _compiled(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    import torch

    from torchproof.torch_private import is_compiled

    if is_compiled(fn):
        if arguments:
            raise UserError(
                f"it is compiled already: {', '.join(arguments)} is not used"
            )
        return fn
    if {"backend", "mode", "options"} & set(arguments):
        return torch.compile(fn, **arguments)
    # No code is generated in any case, and this one needs no import.
    return torch.compile(fn, backend="eager", **arguments)
