"""Compilers that hang, callers that wait, and graphs sent to a child."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch._inductor.config

from torchproof.runtime.codegen_worker import ChildError, ChildFailed, Worker
from torchproof.torch_private import remote_codegen

AGES_S = 300.0  # long enough for any machine


class Elsewhere:
    """Compiles through the worker, and counts."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.sent = 0
        self.kept: list[str] = []

    def send(self, payload: bytes) -> bytes:
        self.sent += 1
        told = remote_codegen.cache_environment()
        until = time.monotonic() + AGES_S
        return self.worker.send(payload, until=until, environment=told)

    def __call__(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with remote_codegen.codegen_in_child(self.send, self.kept.append):
            return torch.compile(fn, **options)(*args)


def children_of(pid: int) -> list[psutil.Process]:
    """The children that generate code, without those that are ending."""
    return [
        process
        for process in psutil.Process(pid).children()
        if process.status() != psutil.STATUS_ZOMBIE
        and "torchproof.runtime.child" in process.cmdline()
    ]


def make_ready(worker: Worker) -> None:
    """Starts a child, if there is none, and waits until it has imported torch."""
    with pytest.raises(ChildFailed):
        worker.send(b"no pickle", until=time.monotonic() + AGES_S)


def wait_for(condition: Callable[[], Any]) -> Any:
    until = time.monotonic() + AGES_S
    while not (value := condition()):
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)
    return value


class HungCompiler:
    """A C++ compiler that never returns, and a graph that asks for it."""

    def __init__(self, folder: Path, last_line: str) -> None:
        folder.mkdir()
        # Arguments of `sleep` nobody else uses, so that its processes can be found.
        self.seconds = f"{time.monotonic_ns()}.5"
        self.flag, self.cache = folder / "started", folder / "cache"
        program = folder / "cxx"
        line = last_line.format(seconds=self.seconds)
        program.write_text(f"#!/bin/sh\ntouch {self.flag}\n{line}\n")
        program.chmod(0o755)
        self.payload = graph_for(str(program))

    def send(self, worker: Worker, **options: Any) -> bytes:
        told = {"TORCHINDUCTOR_CACHE_DIR": str(self.cache)}
        until = options.pop("until", time.monotonic() + AGES_S)
        return worker.send(self.payload, environment=told, until=until, **options)

    def sending(self, worker: Worker, **options: Any) -> Sending:
        """A thread that sends, once the compiler hangs."""
        sending = Sending(lambda: self.send(worker, **options))
        wait_for(self.flag.exists)
        return sending

    def left(self) -> list[int]:
        return [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if self.seconds in (process.info["cmdline"] or [])
        ]


class Sending(threading.Thread):
    def __init__(self, send: Callable[[], bytes]) -> None:
        super().__init__()
        self.send = send
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.send()
        except BaseException as error:
            self.error = error

    def fate(self) -> BaseException | None:
        self.join(AGES_S)
        assert not self.is_alive()
        return self.error


def graph_for(compiler: str) -> bytes:
    payloads: list[bytes] = []

    def keep(payload: bytes) -> bytes:
        payloads.append(payload)
        raise ChildError("not sent")

    torch._dynamo.reset()
    with (
        torch._inductor.config.patch({"cpp.cxx": (None, compiler)}),
        remote_codegen.codegen_in_child(keep, lambda why: None),
        pytest.raises(Exception, match="not sent"),
    ):
        torch.compile(lambda x: torch.sin(x) + 1)(torch.ones(9))
    return payloads[0]


HANGS = "exec sleep {seconds}"
CHILD_HANGS = "sleep {seconds} & wait"
