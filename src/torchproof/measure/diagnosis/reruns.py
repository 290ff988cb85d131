"""Runs a target repeatedly, in eager or compiled with different backends.

Takes a job, returns the outputs of a pass and their verdict. Every pass
loads the target again and resets the compiler, so that passes are independent.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchproof.measure import numerics
from torchproof.records import Keywords
from torchproof.targets import Answers, Job, Loaded, calls
from torchproof.torch_private import comparison, patched

_CALL = re.compile(r"call (\d+): ")
# A backend's name, or a function that makes one from the arguments of torch.compile.
Backend = str | Callable[[Keywords], Callable[..., Any]]
Fn = Callable[..., Any]


def nothing(index: int) -> None:
    """What happens before a call that needs no preparation."""


def _itself(anything: Any) -> Any:
    return anything


@dataclass(frozen=True)
class WrongCall:
    """The first call with wrong outputs, and their verdict."""

    call: int
    numerics: comparison.Comparison


@dataclass(frozen=True)
class TargetRunner:
    """Runs a target; every pass builds it again."""

    job: Job

    @functools.cached_property
    def reference(self) -> numerics.Reference:
        """The reference outputs of eager."""
        return numerics.reference(self.fresh, self._uncompiled)

    def eager(
        self,
        prepare: Callable[[int], None] = nothing,
        *,
        around: Callable[[Fn], Fn] = _itself,
    ) -> Answers:
        """Runs a pass in eager, with torch.compile calls of the target disabled."""
        with _restored_environment(), torch.compiler.set_stance("force_eager"):
            return self._uncompiled(self.fresh(), prepare, around=around)

    def _uncompiled(
        self,
        loaded: Loaded,
        prepare: Callable[[int], None] = nothing,
        *,
        around: Callable[[Fn], Fn] = _itself,
    ) -> Answers:
        fn, train = around(loaded.fn), calls.trains(loaded, self.job)
        with _restored_environment():
            return calls.answers(loaded, fn, train=train, prepare=prepare)

    def compiled(
        self,
        backend: Backend | None = None,
        prepare: Callable[[int], None] = nothing,
    ) -> Answers:
        """Runs a compiled pass, with the program's own backend or another one."""
        torch.compiler.reset()
        with (
            _restored_environment(),
            torch.compiler.set_stance("default"),  # the program may set another one
            _compiling_with(backend),
        ):
            loaded = self.fresh()
            fn = self.compile(loaded)
            train = calls.trains(loaded, self.job)
            return calls.answers(loaded, fn, train=train, prepare=prepare)

    @functools.cached_property
    def backend(self) -> str:
        """The name of the backend that the program uses; empty if they differ."""
        backends: list[Any] = []

        def note(arguments: Keywords) -> Keywords:
            backends.append(arguments.get("backend") or "inductor")
            return arguments

        with changed_compile(note):
            self.compile(self.fresh())
        [first, *others] = backends or ["inductor"]
        name = first if isinstance(first, str) else getattr(first, "__name__", "")
        return name if all(other == first for other in others) else ""

    def compile(self, loaded: Loaded) -> Callable[..., Any]:
        if calls.compiles_itself(loaded.fn, self.job):
            return loaded.fn
        return torch.compile(loaded.fn, **self.job.compile)

    def wrong(self, answers: Answers) -> WrongCall | None:
        """Returns the first call with wrong outputs; buffers count as the last call."""
        by_call: dict[int, list[str]] = {}
        reference = self.reference
        for label in {**reference.eager, **answers}:
            match = _CALL.match(label)
            last = max(by_call, default=0)
            by_call.setdefault(int(match[1]) if match else last, []).append(label)
        for call, labels in sorted(by_call.items()):
            result = reference.compare(answers, labels)
            if result.verdict == "wrong":
                return WrongCall(call, result)
        return None

    def fresh(self) -> Loaded:
        return calls.fresh(self.job)


def same(answers: Answers, others: Answers) -> bool:
    """Whether two passes agree up to rounding; there is no exact pass to excuse it."""
    tensors = [each for each in others.values() if isinstance(each, torch.Tensor)]
    types = comparison.types_in_use(tensors, [])
    tolerance = comparison.tolerance_for(types, tensors)
    found = comparison.compare(answers, others, tolerance=tolerance)
    return found.verdict != "wrong"


@contextlib.contextmanager
def _restored_environment() -> Iterator[None]:
    """Restores the environment variables that a pass changes."""
    original = dict(os.environ)
    try:
        yield
    finally:
        if dict(os.environ) != original:
            os.environ.clear()
            os.environ.update(original)


@contextlib.contextmanager
def _compiling_with(backend: Backend | None) -> Iterator[None]:
    """Replaces the backend of every torch.compile call; None keeps the program's."""

    def choose(arguments: Keywords) -> Keywords:
        if backend is None:
            return arguments
        options = arguments.get("options") or {}
        guards = {k: v for k, v in options.items() if k == "guard_filter_fn"}
        chosen = backend if isinstance(backend, str) else backend(arguments)
        # The mode and all other options belong to Inductor.
        return {**arguments, "backend": chosen, "mode": None, "options": guards or None}

    with changed_compile(choose):
        yield


def changed_compile(
    change: Callable[[Keywords], Keywords],
) -> contextlib.AbstractContextManager[None]:
    """Changes the arguments of every torch.compile call."""
    original = torch.compile

    @functools.wraps(original)
    def compile_changed(model: Any = None, **arguments: Any) -> Any:
        if model is None:  # a decorator with arguments
            return lambda decorated: compile_changed(decorated, **arguments)
        changed = change(arguments)
        options = changed.get("options")
        # torch.compile removes options from the dictionary.
        return original(model, **{**changed, "options": options and dict(options)})

    return patched(torch, "compile", compile_changed)
