"""Observe what this process compiles, without a child process: used in tests."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torchproof.observe import capture
from torchproof.observe.observer import Observer, Wrapper
from torchproof.process import Stream
from torchproof.records import Observation
from torchproof.targets import Target

_TRACE = "torch.__trace"
_EARLIER = "a function compiled before the test"


class InProcessObserver:
    """Observes what this process compiles from `start` to `stop`.

    Compiled code is forgotten before and after: what an earlier test compiled would be
    used in silence, and what is compiled here is not what a later one asks for.
    """

    def __init__(self, *, generate_code: bool = False) -> None:
        self._entries = _Entries()
        self._observer = TransparentObserver(
            self._entries, calls_are_wrapper_calls=True
        )
        self._observer.generates_code = generate_code
        self._hooks = contextlib.ExitStack()

    def start(self) -> None:
        import torch

        self._hooks.enter_context(_trace_untold())
        torch.compiler.reset()
        self._hooks.callback(torch.compiler.reset)
        self._hooks.callback(self._observer.detach)
        self._observer.attach()
        self._skips = self._observer.skips()

    def stop(self) -> None:
        self._hooks.close()

    def observation(self, name: str) -> Observation:
        """What was seen until here."""
        from torchproof.torch_private import environment

        self._observer.flush()
        job = {"device": None, "size": None, "train": False}
        self._entries.write("environment", **environment.describe(job))
        target = Target(name, "script", name)
        return capture.gather(self._entries.entries, "finished", 0, target)

    def cudagraph_skips(self) -> int | None:
        """CUDA graphs that Inductor skipped; None where none can be recorded."""
        if not self._observer.records_graphs:
            return None
        return self._observer.skips() - self._skips


@contextlib.contextmanager
def _trace_untold() -> Iterator[None]:
    """pytest 9.1 and later takes torch's structured trace for a log to be shown."""

    def untold(record: logging.LogRecord) -> bool:
        return record.name != _TRACE

    handlers = [
        handler
        for handler in logging.getLogger(_TRACE).handlers
        if type(handler).__module__.startswith("_pytest.")
    ]
    for handler in handlers:
        handler.addFilter(untold)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(untold)


class _Entries(Stream):
    """A stream that stays in memory, as it would be read from a file."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._owner = os.getpid()

    def write(self, kind: str, **values: Any) -> None:
        if os.getpid() == self._owner:
            line = json.dumps({"kind": kind, **values}, default=str)
            self.entries.append(json.loads(line))


class TransparentObserver(Observer):
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

    def _enter_unknown(self, wrapper: list[Wrapper]) -> Callable[[], None]:
        if not wrapper:
            wrapper.append(Wrapper(len(self.wrappers), _earlier))
            self.wrappers.append(wrapper[0])
            self.stream.write(
                "wrapper",
                number=wrapper[0].number,
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
        return self._enter(wrapper[0])

    def _convert(self, convert: Callable[[], Any], request: Any) -> Any:
        """An error is the test's own, as it would be without anyone watching."""
        return super()._convert(convert, request._replace(fullgraph=True))

    def _spy_on_original(self, wrapper: Wrapper, model: Any) -> None:
        before = getattr(model, "_compiled_call_impl", None)
        super()._spy_on_original(wrapper, model)
        spy = getattr(model, "_compiled_call_impl", None)
        if spy is not None and before is None:
            self.hooks.callback(_unspied, weakref.ref(model), spy)


def _earlier() -> None:
    """Stands for a function of which nothing is known."""


def _unspied(model: weakref.ref[Any], spy: Any) -> None:
    alive = model()
    if alive is not None and alive._compiled_call_impl is spy:
        alive._compiled_call_impl = None
