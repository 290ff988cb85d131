"""Runs torch's minifier in a child process and tries the graphs that it proposes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from torchproof.packs.repro.graphs.graph_ir import GraphIR
from torchproof.packs.repro.graphs.variants import RecordedGraph, to_candidate
from torchproof.process import parent_death


def minify(
    recorded: RecordedGraph, attempt: Callable[[GraphIR], bool], deadline: float
) -> None:
    """Calls `attempt(graph)` for each graph that torch's minifier proposes.

    It proposes none if it cannot handle the graph.
    """
    with _process(deadline) as process:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            _send(process, {"source": to_candidate(recorded).source})
            for line in process.stdout:
                graph = GraphIR.from_json(json.loads(line))
                whole = recorded.graph
                fails = attempt(
                    replace(graph, calls=whole.calls, contexts=whole.contexts)
                )
                if time.monotonic() >= deadline:
                    return
                _send(process, {"fails": fails})


@contextlib.contextmanager
def _process(deadline: float) -> Iterator[subprocess.Popen[str]]:
    """Starts the child, which ends at the deadline or with this process."""
    process = parent_death.begun(
        lambda: subprocess.Popen(
            [sys.executable, "-m", "torchproof.packs.repro.graphs"],
            env={**os.environ, **parent_death.parent()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
    )
    alarm = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
    alarm.daemon = True
    alarm.start()
    try:
        yield process
    finally:
        alarm.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def _send(process: subprocess.Popen[str], message: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
