"""Records what a pass in eager reads outside of its arguments.

Takes a runner. Returns the environment variables that its calls read, and the hooks
that are registered or removed between calls, each with its stack.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torchproof import torch_private
from torchproof.measure.diagnosis.reruns import TargetRunner
from torchproof.records import Frame, whose
from torchproof.targets import Answers, stack

_HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)
_REMOVAL = (torch.utils.hooks.RemovableHandle, "remove")


@dataclass(frozen=True)
class VariableRead:
    """An environment variable read inside a call; `value` is None if it is unset."""

    name: str
    value: str | None
    call: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class LateHook:
    """A hook registered after a module's first call, and before call `call`."""

    name: str
    call: int
    frames: tuple[Frame, ...]


@dataclass
class OutsideReads:
    """The outside reads of a pass in eager."""

    variables: list[VariableRead] = field(default_factory=list)
    hooks: list[LateHook] = field(default_factory=list)
    fired: int = 0  # calls of late hooks
    call: int = -1  # index of the current call
    inside: bool = False

    def begin(self, index: int) -> None:
        self.call = index

    def around(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that variables it reads are recorded."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.inside = True
            try:
                return fn(*args, **kwargs)
            finally:
                self.inside = False

        return watched

    def note_variable(self, name: Any, value: str | None) -> None:
        if not self.inside or not isinstance(name, str):
            return
        frames = stack()
        while frames and whose(frames[-1].file) in {"standard", "generated"}:
            frames = frames[:-1]
        if frames and whose(frames[-1].file) in {"user", "library"}:
            self.variables.append(VariableRead(name, value, self.call, frames))

    def note_hook(self, name: str) -> bool:
        """Records a hook that is late; returns whether it is."""
        late = self.call >= 0 and not self.inside
        if late:
            self.hooks.append(LateHook(name, self.call + 1, stack()))
        return late

    def counted(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.fired += 1
            return hook(*args, **kwargs)

        return run


def watch(runner: TargetRunner) -> tuple[OutsideReads, Answers]:
    """Runs one pass in eager and records its outside reads."""
    reads = OutsideReads()
    with _watched_variables(reads), watched_hooks(reads):
        outputs = runner.eager(reads.begin, around=reads.around)
    return reads, outputs


@contextlib.contextmanager
def _watched_variables(reads: OutsideReads) -> Iterator[None]:
    original = type(os.environ).__getitem__

    def get(self: Any, key: Any) -> Any:
        try:
            value = original(self, key)
        except KeyError:
            reads.note_variable(key, None)
            raise
        reads.note_variable(key, value)
        return value

    with torch_private.patched(type(os.environ), "__getitem__", get):
        yield


@contextlib.contextmanager
def watched_hooks(reads: OutsideReads) -> Iterator[None]:
    def watched(name: str, register: Callable[..., Any]) -> Callable[..., Any]:
        def note(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if reads.note_hook(name) and args:
                args = (reads.counted(args[0]), *args[1:])
            return register(self, *args, **kwargs)

        return note

    with contextlib.ExitStack() as patches:
        for owner, name in [*((torch.nn.Module, name) for name in _HOOKS), _REMOVAL]:
            note = watched(name, getattr(owner, name))
            patches.enter_context(torch_private.patched(owner, name, note))
        yield
