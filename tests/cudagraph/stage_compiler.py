"""In place of the compile process: it works when the test lets it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torchproof.runtime import compile_job
from torchproof.runtime.cudagraph import progressive
from torchproof.runtime.cudagraph.call_inputs import tensors_in
from torchproof.torch_private import remote_graphs


class Compiler:
    """In place of the compile process and of the code that it makes."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.released.set()
        self._reached = threading.Event()  # a stage waits for the release
        self.graphs = 0
        self.error: Exception | None = None
        self.runs = 0  # of loaded code
        self.slower = False
        self.limit_s: float | None = None  # of the latest graph
        self.is_started = False
        self._process = compile_job.background_worker()

    def warm(self, model: object = None) -> None:
        self.is_started = True

    def send(self, payload: bytes, *, until: float, **options: Any) -> bytes:
        if options.get("kind") != "graph":  # of a model that runs without a recording
            return self._process.send(payload, until=until, **options)
        self.limit_s = until - time.monotonic()
        self._reached.set()
        assert self.released.wait(60)
        self._reached.clear()
        if self.error is not None:
            raise self.error
        self.graphs += 1
        return b"code"

    @property
    def holds_a_stage(self) -> bool:
        return self._reached.is_set() and not self.released.is_set()

    def timed(self, old: Any, new: Any, call: Any) -> tuple[float, float]:
        for each in (old, new):  # as the real one does, with effects
            each.start(tensors_in(call))
            each.capture.seconds_of(2)
        return (1.0, 2.0) if self.slower else (2.0, 1.0)

    def load(self, graph: remote_graphs.DeferredGraph, compiled: bytes) -> None:
        assert compiled == b"code"
        graph._run = self.loaded(graph._run)

    def loaded(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(*args: Any) -> Any:
            self.runs += 1
            return run(*args)

        return compiled


_installed: list[Compiler] = []
_THREADS = ("torchproof-stage", "torchproof-background")


def join_stages() -> None:
    """Lets the threads of stages finish, up to a compiler that the test holds up."""
    until = time.monotonic() + (60 if _installed else 0.5)
    for thread in threading.enumerate():
        while thread.name in _THREADS and thread.is_alive():
            is_held = any(each.holds_a_stage for each in _installed)
            if is_held or time.monotonic() > until:
                return
            thread.join(0.01)


@contextlib.contextmanager
def installed() -> Iterator[Compiler]:
    compiler = Compiler()

    def load(graph: remote_graphs.DeferredGraph, compiled: bytes) -> None:
        compiler.load(graph, compiled)

    with (
        mock.patch.object(compile_job, "background_worker", lambda: compiler),
        mock.patch.object(remote_graphs.DeferredGraph, "load", load),
        mock.patch.object(progressive, "timed", compiler.timed),
        # A machine with much else to do imports the compiler slowly.
        mock.patch.object(progressive, "_FIRST_PAUSES_S", 3600.0),
    ):
        _installed.append(compiler)
        try:
            yield compiler
        finally:
            compiler.released.set()
            _installed.remove(compiler)
