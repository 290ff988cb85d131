"""Counts calls that run a module's own code although a compiled one exists."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

from torchproof.process import Stream
from torchproof.records import BypassEvent, JsonObject, whose
from torchproof.targets import stack


class _Bypass(NamedTuple):
    """A call that bypasses compiled code: what is called, and where."""

    module: int
    name: str
    code: CodeType | None
    line: int


class Bypasses:
    """Counts each module, method and line apart, and nested calls as one.

    A call within one that bypasses the compiled code is not counted: it would run
    compiled if the outer one did.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._counts: dict[_Bypass, int] = {}
        self._modules: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._numbers = 0
        self._local = threading.local()

    def number_of(self, module: Any) -> int:
        """A number for a module, which no other gets when this one is deleted."""
        if module not in self._modules:
            self._modules[module] = self._numbers
            self._numbers += 1
        return self._modules[module]

    @property
    def within(self) -> bool:
        """Whether this thread is in a call that may bypass the compiled code."""
        return getattr(self._local, "inner", None) is not None

    def call(
        self,
        module: Any,
        name: str,
        *,
        run: Callable[[], Any],
        bypasses: Callable[[Any], bool],
    ) -> Any:
        """Runs a call; `bypasses` says of its result whether it ran no compiled code.

        If it did run some, the calls within it that did not are counted instead.
        """
        outer: list[tuple[_Bypass, Any]] | None = getattr(self._local, "inner", None)
        inner: list[tuple[_Bypass, Any]] = []
        self._local.inner = inner
        try:
            result = run()
        finally:
            self._local.inner = outer
        found = inner
        if bypasses(result):
            found = [self._here(module, name)]
        if outer is not None:
            outer.extend(found)
        else:
            for bypass, entry in found:
                self._count(bypass, entry)
        return result

    def _here(self, module: Any, name: str) -> tuple[_Bypass, JsonObject]:
        """The bypass with its entry for the stream, which is written only once."""
        frame = sys._getframe(1)
        while frame is not None and whose(frame.f_code.co_filename) not in _PROGRAM:
            frame = frame.f_back  # type: ignore[assignment]
        code, line = (frame.f_code, frame.f_lineno) if frame else (None, 0)
        bypass = _Bypass(self.number_of(module), name, code, line)
        if bypass in self._counts:
            return bypass, {}
        event = BypassEvent(
            frames=stack(),
            model=type(module).__name__,
            module=bypass.module,
            method=bypass.name,
        )
        return bypass, event.to_json()

    def _count(self, bypass: _Bypass, entry: JsonObject) -> None:
        if bypass not in self._counts:
            self._stream.write("bypass", number=len(self._counts), **entry)
        self._counts[bypass] = self._counts.get(bypass, 0) + 1

    def counts(self) -> list[int]:
        """The count of each entry, by its number."""
        return list(self._counts.values())


_PROGRAM = {"user", "library"}
