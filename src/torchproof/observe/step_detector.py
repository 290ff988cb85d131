"""Detects where the steps of a running script begin, from calls of compiled functions.

A step lasts from one call of the marker to the next. The marker is the compiled
function that the script calls first. So backward, optimizer and data loading are part
of a step. If an optimizer steps only after several calls of the marker, as with
gradient accumulation, all these calls are one step.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from torchproof.records import Keywords
from torchproof.targets import called_by_torch

_NEW_MARKER = 10  # calls in one step that make another function the marker


class StepDetector:
    """Calls `begins` at the start of each step, before its first call runs."""

    def __init__(self, begins: Callable[[], None], changed: Callable[[], None]) -> None:
        self._begins = begins
        # Called when steps are counted anew: earlier steps are not comparable.
        self._changed = changed
        self.eager = False  # set by the owner while steps run uncompiled
        self.calls: int | None = None  # of the marker in a step; None: not known yet
        self._marker: int | None = None
        self._others: Counter[int] = Counter()
        self._so_far = 0  # calls of the marker in this step
        self._counts: list[int] = []
        self._optimizer: int | None = None
        self._stepped = False
        self._wrappers = 0
        self._local = threading.local()
        self._hooks = contextlib.ExitStack()

    # -- hooks ---------------------------------------------------------------------

    def attach(self, prepare: Callable[[Keywords], None]) -> None:
        """Installs the hooks; calls `prepare(arguments)` at each torch.compile."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        original = torch.compile

        @functools.wraps(original)
        def compile(model: Any = None, **kwargs: Any) -> Any:
            # Without a model it returns a decorator, which calls torch.compile again.
            if model is None or called_by_torch():
                return original(model, **kwargs)
            prepare(kwargs)
            return self._register(original, model, kwargs)

        torch.compile = compile
        self._hooks.callback(setattr, torch, "compile", original)
        handle = register_optimizer_step_post_hook(self._optimizer_stepped)
        self._hooks.callback(handle.remove)

    def detach(self) -> None:
        self._hooks.close()
        self._begins = _nothing

    def _register(
        self, original: Callable[..., Any], model: Any, kwargs: Keywords
    ) -> Any:
        from torchproof import torch_private

        self._local.number = self._wrappers
        self._wrappers += 1
        try:
            with torch_private.compiled_contexts(self._context):
                return original(model, **kwargs)
        finally:
            self._local.number = None

    def _context(self, context: Any) -> Callable[[], Callable[[], None]] | None:
        number: int | None = getattr(self._local, "number", None)
        return None if number is None else functools.partial(self._enter, number)

    def _enter(self, number: int) -> Callable[[], None]:
        if self._begins is _nothing:
            return _nothing
        depth = getattr(self._local, "depth", 0)
        if depth == 0:
            self._called(number)
        self._local.depth = depth + 1
        return self._leave

    def _leave(self) -> None:
        self._local.depth -= 1

    # -- the length of a step ------------------------------------------------------

    def fix(self) -> None:
        """Fixes the calls of the marker in a step to the median so far."""
        self.calls = round(statistics.median(self._counts)) if self._counts else 1

    def _start_over(self) -> None:
        self.calls = None
        self._counts = []
        self._changed()

    def _called(self, number: int) -> None:
        if self._marker is None:
            self._marker = number
            self._thread = threading.get_ident()
        if threading.get_ident() != self._thread:
            return
        if number != self._marker:
            self._others[number] += 1
            if self._others[number] < _NEW_MARKER:
                return
            self._marker = number
            self._so_far = 0
            self._start_over()
        self._others.clear()
        if self._so_far and not self._ended():
            self._so_far += 1
            return
        if self._so_far:
            self._counts.append(self._so_far)
        self._so_far = 1
        self._stepped = False
        self._begins()

    def _ended(self) -> bool:
        if self.calls is not None:
            return self._so_far >= self.calls
        return self._optimizer is None or self._stepped

    def _optimizer_stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        import torch

        # A compiled optimizer traces this hook, so the hook must do nothing then. As it
        # would see only the eager steps of such an optimizer, it ignores those too.
        if torch.compiler.is_compiling() or self.eager:
            return
        if self._optimizer is None:
            self._optimizer = id(optimizer)
            if self._counts:
                self._start_over()
        self._stepped |= id(optimizer) == self._optimizer


def _nothing() -> None:
    pass
