"""Compile budgets of tests: what a test compiles is watched in its own process.

`Watch` observes this process and checks what it saw. `Budget` holds the limits for
counts and findings, and says in one sentence which of them a run exceeds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.checking import checker, rules, source_reading
from torchproof.checking.counts import counts_of
from torchproof.observe import InProcessObserver, is_compiled
from torchproof.records import SEVERITIES, Run, UserError
from torchproof.targets import Options, calls

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
    """Checks what this process compiles from `start` to `stop`."""

    def __init__(self, *, generate_code: bool = False) -> None:
        self._observed = InProcessObserver(generate_code=generate_code)

    def start(self) -> Watch:
        self._observed.start()
        return self

    def stop(self) -> None:
        self._observed.stop()

    def run(self, name: str) -> Run:
        """What was seen until here, as a run that is not saved."""
        seen = self._observed.observation(name)
        findings = source_reading.with_source(rules.check(seen))
        counts = counts_of(seen, findings)
        skips = self._observed.cudagraph_skips()
        if skips is not None:
            counts["cudagraph_skips"] = skips
        return Run(
            id="",
            target=name,
            strategy="as-written",
            environment=seen.environment,
            counts=counts,
            findings=tuple(findings),
        )


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
