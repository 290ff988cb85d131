"""Observes what this process compiles, without a child.

For the pytest plugin, and for live objects that no child process can get.
"""

from __future__ import annotations

import contextlib
import functools
import json
import linecache
import logging
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchproof.observe import gathering
from torchproof.observe.observer import Observer, Wrapper
from torchproof.process import Entry, Followed, Stream
from torchproof.records import Observation, WrapperEvent, cells
from torchproof.targets import Job, Options, Target, live

_TRACE = "torch.__trace"
_EARLIER = "a function compiled before the test"


class InProcessObserver:
    """Observes what this process compiles from `start` to `stop`.

    Resets the compiler before and after. Otherwise code that an earlier test compiled
    would run unobserved, and a later test could use the code compiled here.
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

        self._hooks.enter_context(_trace_hidden_from_pytest())
        torch.compiler.reset()
        self._hooks.callback(torch.compiler.reset)
        self._hooks.callback(self._observer.detach)
        self._observer.attach()
        self._skips = self._observer.skips()

    def stop(self) -> None:
        self._hooks.close()

    def observation(self, name: str) -> Observation:
        """The observation so far."""
        from torchproof.torch_private import environment

        self._observer.flush()
        target = Target(name, "script", name)
        self._entries.write("environment", **environment.describe(Job(target)))
        return gathering.gather(Followed(self._entries.entries), target)

    def cudagraph_skips(self) -> int | None:
        """How many CUDA graphs Inductor skipped; None if it cannot record any."""
        if not self._observer.records_graphs:
            return None
        return self._observer.skips() - self._skips


def observe_here(target: Target, options: Options) -> Observation:
    """Runs a live target in this process, and leaves its objects as they are.

    Resets the compiler before and after, as `InProcessObserver` does.
    """
    import torch

    from torchproof.observe.child import observe_job
    from torchproof.targets import live_state

    objects = live.here(target)
    assert objects is not None
    entries = _Entries(live.cell_paths([*linecache.cache]))
    silence = _torch_log_hidden() if options.quiet else contextlib.nullcontext()
    ending, code = "finished", None
    with live_state.preserve(objects.fn, objects.calls), silence:
        torch.compiler.reset()
        try:
            code = observe_job(Job.of(target, options), entries, _ObserverHere)
        except KeyboardInterrupt:
            ending = "interrupted"
        finally:
            torch.compiler.reset()
    return gathering.gather(Followed(entries.entries, ending, code), target)


def _torch_log_hidden() -> contextlib.AbstractContextManager[None]:
    """Hides what torch logs for people; the structured trace goes on."""

    def is_trace(record: logging.LogRecord) -> bool:
        return record.name == _TRACE

    loggers = logging.root.manager.loggerDict
    names = ["torch", *(name for name in loggers if name.startswith("torch."))]
    return _filtered(
        {h for n in names for h in logging.getLogger(n).handlers}, is_trace
    )


def _trace_hidden_from_pytest() -> contextlib.AbstractContextManager[None]:
    """Hides torch's structured trace from pytest 9.1 and later, which would show it."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.name != _TRACE

    of_pytest = {
        handler
        for handler in logging.getLogger(_TRACE).handlers
        if type(handler).__module__.startswith("_pytest.")
    }
    return _filtered(of_pytest, is_other)


@contextlib.contextmanager
def _filtered(
    handlers: Iterable[logging.Handler], shows: Callable[[logging.LogRecord], bool]
) -> Iterator[None]:
    for handler in handlers:
        handler.addFilter(shows)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(shows)


class _Entries(Stream):
    """A stream in memory, with the entries as they would be read from a file."""

    def __init__(self, renamed: Mapping[str, str] | None = None) -> None:
        self.entries: list[Entry] = []
        self._owner = os.getpid()
        # Names of files within strings of JSON, and what to write for them.
        self._renamed = {json.dumps(f)[1:-1]: n for f, n in (renamed or {}).items()}

    def write(self, kind: str, **values: Any) -> None:
        if os.getpid() == self._owner:
            line = json.dumps({"kind": kind, **values}, default=str)
            for file, name in self._renamed.items():
                line = _renamed(line, file, name) if file in line else line
            self.entries.append(json.loads(line))


def _renamed(text: str, file: str, name: str) -> str:
    """The text with the name of a cell in place of its file."""

    def place(match: re.Match[str]) -> str:
        return cells.place(name, int(match[1]))

    text = re.sub(re.escape(file) + r":(\d+)", place, text)
    return text.replace(file, json.dumps(name)[1:-1])


class TransparentObserver(Observer):
    """An observer that lets errors pass and removes everything it added."""

    def attach(self) -> None:
        from torchproof.torch_private import compile_contexts

        super().attach()
        self._attach_dynamo()  # also sees code that imported torch.compile by name
        self.skips = compile_contexts.cudagraph_skips
        self._unhook = compile_contexts.unhook
        self.hooks.enter_context(compile_contexts.earlier_contexts(self._unknown))

    @property
    def records_graphs(self) -> bool:
        return self.generates_code and sys.modules["torch"].cuda.is_available()

    def _context(self, context: Any) -> Callable[[], Callable[[], None]] | None:
        enter = super()._context(context) or self._unknown()
        self.hooks.callback(self._unhook, weakref.ref(context), enter)
        return enter

    def _unknown(self) -> Callable[[], Callable[[], None]]:
        """The hook for a function that this observer did not see being compiled."""
        return functools.partial(self._enter_unknown, [])

    def _enter_unknown(self, registered: list[Wrapper]) -> Callable[[], None]:
        if not registered:
            registered.append(Wrapper(len(self.wrappers), _earlier))
            self.wrappers.append(registered[0])
            number = registered[0].number
            event = WrapperEvent(name=_EARLIER, what="function")
            self.stream.write("wrapper", number=number, **event.to_json())
        return self._enter(registered[0])

    def _convert(self, convert: Callable[[], Any], request: Any) -> Any:
        """Lets a compile error reach the test, as without an observer."""
        return super()._convert(convert, request._replace(fullgraph=True))

    def _spy_on_original(self, wrapper: Wrapper, model: Any) -> None:
        before = getattr(model, "_compiled_call_impl", None)
        super()._spy_on_original(wrapper, model)
        spy = getattr(model, "_compiled_call_impl", None)
        if spy is not None and before is None:
            self.hooks.callback(_remove_spy, weakref.ref(model), spy)


class _ObserverHere(TransparentObserver):
    """As in a child, a frame that fails to compile runs eagerly."""

    def _convert(self, convert: Callable[[], Any], request: Any) -> Any:
        return Observer._convert(self, convert, request)


def _earlier() -> None:
    """A placeholder for an unknown function."""


def _remove_spy(model: weakref.ref[Any], spy: Any) -> None:
    alive = model()
    if alive is not None and alive._compiled_call_impl is spy:
        alive._compiled_call_impl = None
