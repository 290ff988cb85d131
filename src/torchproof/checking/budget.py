"""Compile budgets of tests: limits on what a test compiles in its own process.

`Watch` observes the current process and checks what it compiles. `Budget` holds limits
for counts and findings, and names in one sentence those that a run exceeds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.checking import checker, rules
from torchproof.checking.counts import counts_of
from torchproof.observe import InProcessObserver, is_compiled
from torchproof.records import SEVERITIES, Keywords, Namespace, Run, UserError
from torchproof.targets import Options, calls

# The counts that a budget may limit, with the noun for one of them.
COUNTS = {
    "graph_breaks": "graph break",
    "recompiles": "recompile",
    "graphs": "graph",
    "skipped_frames": "skipped frame",
    "cudagraph_skips": "skipped CUDA graph",
}
FINDINGS: dict[str, str] = {
    "findings": "open finding",
    **{str(severity): f"open {severity} finding" for severity in SEVERITIES},
}
LIMITS = {**COUNTS, **FINDINGS}
SWITCHES = ("compiled", "generate_code")


Marks = Iterable[tuple[Sequence[Any], Keywords]]


def combined(
    marks: Marks,
    mark: str,
    known: Collection[str],
    check: Callable[[str, Any], None],
    *,
    example: str,
) -> Namespace:
    """The keyword arguments of pytest marks; later ones override earlier ones."""
    arguments: Namespace = {}
    for positional, named in marks:
        if positional:
            raise UserError(f"{mark} takes keyword arguments only, as in {example}")
        arguments |= named
    for name, value in arguments.items():
        assert_known(mark, name, known)
        check(name, value)
    return arguments


def assert_known(mark: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
        raise UserError(f"{mark} has no argument {name}: {hint}")


@dataclass(frozen=True)
class Budget:
    """Limits by name, and whether the test must compile something."""

    limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    compiled: bool = True
    generate_code: bool = False

    @classmethod
    def of(cls, marks: Marks) -> Budget:
        """Combines marks, the nearest one last: it overrides the others."""
        known = (*LIMITS, *SWITCHES)
        example = "graph_breaks=0"
        arguments = combined(
            marks, "compile_budget", known, _assert_valid, example=example
        )
        limits = {
            name: arguments[name] for name in LIMITS if arguments.get(name) is not None
        }
        if not limits:
            raise UserError("compile_budget has no limit: try graph_breaks=0")
        switches = {name: arguments[name] for name in SWITCHES if name in arguments}
        if limits.get("graphs") == 0 and switches.get("compiled", True):
            raise UserError(
                "compile_budget(graphs=0) always fails, because a test that compiles"
                " nothing fails: add compiled=False"
            )
        if "cudagraph_skips" in limits:
            switches["generate_code"] = True
        return cls(limits, **switches)

    def broken_by(self, run: Run) -> str | None:
        """The limits that a run exceeds, in one sentence; None if it exceeds none."""
        if not compiled_anything(run):
            if not self.compiled:
                return None
            return f"{self._as_code(self.limits)}: nothing was compiled"
        amounts = {name: _amount(run, name) for name in self.limits}
        for name, value in amounts.items():
            if value is None:  # only CUDA graphs can be unknown
                needed = "it needs a CUDA device, and --effort full for a target"
                return f"{self._as_code([name])}: not measured, {needed}"
        over = [name for name, value in amounts.items() if value > self.limits[name]]
        if over:
            exceeded = ", ".join(_counted(amounts[n], LIMITS[n]) for n in over)
            return f"{self._as_code(over)}: {exceeded}"
        return None

    def _as_code(self, names: Iterable[str]) -> str:
        inside = ", ".join(f"{name}={self.limits[name]}" for name in names)
        return f"compile_budget({inside})"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _assert_valid(name: str, value: Any) -> None:
    if name in SWITCHES:
        if not isinstance(value, bool):
            raise UserError(f"compile_budget({name}={value!r}): use True or False")
    elif value is not None and (type(value) is not int or value < 0):
        raise UserError(f"compile_budget({name}={value!r}): use an integer, 0 or more")


def _amount(run: Run, name: str) -> Any:
    if name in COUNTS:
        return run.counts[name]
    open_findings = [f for f in run.findings if f.status == "open"]
    return sum(name in ("findings", f.severity) for f in open_findings)


def compiled_anything(run: Run) -> bool:
    """Whether the compiler traced anything, even if it gave up."""
    return bool(run.counts["graphs"] or run.counts["graph_breaks"])


# -- watching --------------------------------------------------------------------------


class Watch(InProcessObserver):
    """Checks what this process compiles between `start` and `stop`."""

    def run(self, name: str) -> Run:
        """Everything observed so far, as a run that is not saved."""
        observation = self.observation(name)
        findings = rules.check(observation)
        counts = counts_of(observation, findings)
        skips = self.cudagraph_skips()
        if skips is not None:
            counts["cudagraph_skips"] = skips
        return rules.with_texts(
            Run(
                id="",
                target=name,
                strategy="as-written",
                environment=observation.environment,
                counts=counts,
                findings=tuple(findings),
            )
        )


# -- checking a target or a function ---------------------------------------------------


def check_target(
    target: str,
    *,
    save_in: Path,
    effort: str = "quick",
    train: bool = False,
    **arguments: Any,
) -> Run:
    """Checks a target of `torchproof check`, in a child process."""
    options = Options(compile=arguments, train=train, quiet=True)
    run = checker.check(target, options, effort=effort, save_in=save_in)
    if run.ending == "interrupted":
        raise KeyboardInterrupt
    if run.error or run.ending != "finished":
        raise UserError(f"{target}: {run.error or run.ending}")
    return run


def check(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    name: str,
    train: bool = False,
    **arguments: Any,
) -> Run:
    """Compiles a function, makes the calls, and checks what was observed."""
    assert_calls(inputs)
    watch = Watch()
    try:
        watch.start()
        compiled = _compiled(fn, arguments)
        for call in inputs:
            calls.invoke(compiled, call, train=train)
        return watch.run(name)
    finally:
        watch.stop()


def assert_calls(inputs: Sequence[Any]) -> None:
    """Raises `UserError` unless each call has arguments as a tuple or a dict."""
    if not inputs:
        raise UserError("no call to make: pass a list of tuples or dicts")
    for index, call in enumerate(inputs):
        if not isinstance(call, (tuple, dict)):
            raise UserError(
                f"call {index} is a {type(call).__name__}: pass a tuple of positional"
                " arguments or a dict of keyword arguments"
            )


def _compiled(fn: Callable[..., Any], arguments: Keywords) -> Any:
    import torch

    if is_compiled(fn):
        if arguments:
            raise UserError(
                f"the function is already compiled: {', '.join(arguments)} has no"
                " effect"
            )
        return fn
    if {"backend", "mode", "options"} & set(arguments):
        return torch.compile(fn, **arguments)
    # No code is generated with any backend, and this one needs no import.
    return torch.compile(fn, backend="eager", **arguments)
