"""A target run again and again, each time made anew, in eager or compiled in some way.

Comes in: a target and a job. Goes out: the answers of a pass, and what numerics says of
them. Nothing of one pass reaches the next: the target is loaded again and the compiler
forgets what it compiled.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchproof import torch_private
from torchproof.measure import numerics
from torchproof.targets import Answers, Loaded, Target, calls

_CALL = re.compile(r"call (\d+): ")
# A backend's name, or what makes one of the arguments that torch.compile was given.
Backend = str | Callable[[Mapping[str, Any]], Callable[..., Any]]
Fn = Callable[..., Any]
# Another way to load the target, made of the usual one.
Load = Callable[[Callable[[], Loaded]], Callable[[], Loaded]]


def _nothing(index: int) -> None:
    return None


def _itself(anything: Any) -> Any:
    return anything


@dataclass(frozen=True)
class Wrong:
    """Answers that differ from eager's: in which call first, and what judge says."""

    call: int
    numerics: numerics.Numerics


@dataclass(frozen=True)
class Trial:
    """A target and how to run it; each pass with one made anew."""

    target: Target
    job: dict[str, Any]

    @functools.cached_property
    def reference(self) -> numerics.Reference:
        """Eager's answers, and what they are worth."""
        return numerics.reference(self.fresh, self._uncompiled)

    def eager(
        self,
        prepare: Callable[[int], None] = _nothing,
        *,
        around: Callable[[Fn], Fn] = _itself,
        load: Load = _itself,
    ) -> Answers:
        """A pass in which nothing is compiled, not even what compiles itself."""
        with _kept_environment(), torch.compiler.set_stance("force_eager"):
            return self._uncompiled(load(self.fresh)(), prepare, around=around)

    def _uncompiled(
        self,
        loaded: Loaded,
        prepare: Callable[[int], None] = _nothing,
        *,
        around: Callable[[Fn], Fn] = _itself,
    ) -> Answers:
        fn, train = around(loaded.fn), calls.trains(loaded, self.job)
        with _kept_environment():
            return calls.answers(loaded, fn, train=train, prepare=prepare)

    def compiled(
        self,
        backend: Backend | None = None,
        prepare: Callable[[int], None] = _nothing,
        *,
        load: Load = _itself,
    ) -> Answers:
        """A pass under torch.compile, with the program's own backend or another one."""
        torch.compiler.reset()
        with (
            _kept_environment(),
            torch.compiler.set_stance("default"),  # whatever the program sets meanwhile
            _compiling_with(backend),
        ):
            loaded = load(self.fresh)()
            fn = self.compile(loaded)
            train = calls.trains(loaded, self.job)
            return calls.answers(loaded, fn, train=train, prepare=prepare)

    @functools.cached_property
    def backend(self) -> str:
        """The name of the backend that the program asks for."""
        asked: list[Any] = []

        def note(arguments: dict[str, Any]) -> dict[str, Any]:
            asked.append(arguments.get("backend") or "inductor")
            return arguments

        with changed_compile(note):
            self.compile(self.fresh())
        [first, *others] = asked or ["inductor"]
        name = first if isinstance(first, str) else getattr(first, "__name__", "")
        return name if all(other == first for other in others) else ""

    def compile(self, loaded: Loaded) -> Callable[..., Any]:
        if compiles_itself(loaded.fn, self.job):
            return loaded.fn
        return torch.compile(loaded.fn, **self.job["compile"])

    def wrong(self, answers: Answers) -> Wrong | None:
        """The first call whose answers are wrong; buffers count as the last call's."""
        by_call: dict[int, list[str]] = {}
        known = self.reference
        for label in {**known.eager, **answers}:
            found = _CALL.match(label)
            last = max(by_call, default=0)
            by_call.setdefault(int(found[1]) if found else last, []).append(label)
        for call, labels in sorted(by_call.items()):
            mine, right = (
                {k: each[k] for k in labels if k in each}
                for each in (answers, known.eager)
            )
            told = numerics.judge(mine, right, known.exact, perturbed=known.perturbed)
            if told.verdict == "wrong":
                return Wrong(call, told)
        return None

    def fresh(self) -> Loaded:
        return calls.fresh(self.target, self.job)


def same(answers: Answers, others: Answers) -> bool:
    """Whether two passes agree, up to what another order of adding changes."""
    return answers.keys() == others.keys() and all(
        _close(value, others[label]) for label, value in answers.items()
    )


def _close(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return type(one) is type(other) and bool(one == other)
    try:
        torch.testing.assert_close(one, other, equal_nan=True)
    except (AssertionError, TypeError, ValueError):
        return False
    return True


def compiles_itself(fn: Any, job: Mapping[str, Any]) -> bool:
    itself = job["as_written"] or calls.claims(fn, "compiles_itself")
    return itself or torch_private.is_compiled(fn)


@contextlib.contextmanager
def _kept_environment() -> Iterator[None]:
    """Variables that a pass sets are not set for the next."""
    kept = dict(os.environ)
    try:
        yield
    finally:
        if dict(os.environ) != kept:
            os.environ.clear()
            os.environ.update(kept)


@contextlib.contextmanager
def _compiling_with(backend: Backend | None) -> Iterator[None]:
    """Every torch.compile of the program uses this backend; None: its own."""

    def choose(arguments: dict[str, Any]) -> dict[str, Any]:
        if backend is None:
            return arguments
        options = arguments.get("options") or {}
        guards = {k: v for k, v in options.items() if k == "guard_filter_fn"}
        chosen = backend if isinstance(backend, str) else backend(arguments)
        # The mode and the other options are Inductor's.
        return {**arguments, "backend": chosen, "mode": None, "options": guards or None}

    with changed_compile(choose):
        yield


@contextlib.contextmanager
def changed_compile(
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> Iterator[None]:
    """torch.compile gets other arguments than the program gives it."""
    original = torch.compile

    @functools.wraps(original)
    def compile_changed(model: Any = None, **arguments: Any) -> Any:
        if model is None:  # a decorator with arguments
            return lambda decorated: compile_changed(decorated, **arguments)
        changed = change(arguments)
        options = changed.get("options")
        # torch.compile takes options out of the dictionary it is given.
        return original(model, **{**changed, "options": options and dict(options)})

    torch.compile = compile_changed
    try:
        yield
    finally:
        torch.compile = original
