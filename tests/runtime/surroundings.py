"""The process around a cell of the fault matrix: its threads, processes and locks."""

from __future__ import annotations

import os
import sys
import threading
import time

import psutil
import torch

MARK = "TORCHPROOF_CELL"  # in the environment of all that a cell starts
# What may stay: a progress bar's thread and torch's own pool.
KNOWN_THREADS = (
    "tqdm_monitor",
    "ThreadPoolExecutor-",
    "InductorSubproc",
    "subproc_worker_timer",
    "Dummy-",  # a thread of autograd that has run Python
)


class Surroundings:
    """The process before the fault, to be found again after it."""

    def __init__(self) -> None:
        self._threads = {thread.name for thread in threading.enumerate()}
        self._switch_interval = sys.getswitchinterval()

    def left(self) -> list[str]:
        wrong, until = [], time.monotonic() + 3
        while (found := [*strangers(), *self._new_threads()]) and (
            time.monotonic() < until
        ):
            time.sleep(0.05)
        wrong += [f"left behind: {what}" for what in found]
        before = sum(os.times()[:2])
        time.sleep(0.5)
        if sum(os.times()[:2]) - before > 0.3:
            wrong.append("a core is burnt after the call")
        if sys.getswitchinterval() != self._switch_interval:
            wrong.append(f"switch interval left at {sys.getswitchinterval()}")
        return wrong + compile_plainly()

    def _new_threads(self) -> list[str]:
        names = [thread.name for thread in threading.enumerate()]
        return [
            f"thread {name}"
            for name in names
            if name not in self._threads and not name.startswith(KNOWN_THREADS)
        ]


def compile_plainly() -> list[str]:
    """Whether torch.compile itself still works in this process."""
    x, answers = torch.ones(5), []

    def work() -> None:
        answers.append(torch.compile(lambda x: x.exp() + 1, backend="aot_eager")(x))

    compiler = threading.Thread(target=work, daemon=True)
    compiler.start()
    compiler.join(60)
    if compiler.is_alive():
        return ["torch.compile waits for ever afterwards"]
    right = answers and torch.equal(answers[0], x.exp() + 1)
    return [] if right else ["torch.compile fails afterwards"]


def strangers(mark: str | None = None) -> list[str]:
    """Processes of this cell that should not be there, re-parented ones included."""
    sought, found = mark or os.environ[MARK], []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if process.environ().get(MARK) != sought:
                continue
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        # The one child of a living process waits for further work, and so does the pool
        # of processes in which Inductor compiles Triton kernels.
        waits = ("torchproof.runtime.child", "torch/_inductor/compile_worker")
        if mark is not None or not any(text in line for text in waits):
            found.append(f"process {line[:120]}")
    return found
