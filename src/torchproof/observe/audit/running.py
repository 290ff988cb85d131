"""Runs one target under watchers, in the child process.

Takes a job and the stream to write to. The watchers write their entries to the stream,
and this file adds how the calls ended. On CUDA the target
is compiled as usual; elsewhere CUDA graphs are simulated.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torchproof.observe import timeline
from torchproof.process import Stream, hold
from torchproof.records import JsonObject, UserError, one_line
from torchproof.targets import Job, calls, script
from torchproof.torch_private import contract, environment

Write = Callable[..., None]

_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
_WARM_UPS = 2  # a CUDA graph is warmed up, then recorded, and replayed after that


class Watcher(Protocol):
    """Watches a target run and streams entries with `write(kind, **fields)`.

    `__enter__` installs its hooks before the target is created; `__exit__` removes
    them. `before_call` and `after_call` are not called for scripts, which make their
    own calls.
    """

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...

    def before_call(self, index: int) -> None: ...

    def after_call(self, index: int) -> None: ...


def watchers(write: Write) -> list[Watcher]:
    """All watchers, in the order in which they are entered."""
    from torchproof.observe.audit.lifetimes import Lifetimes
    from torchproof.observe.audit.recordings import Recordings
    from torchproof.observe.audit.syncs import Syncs

    return [Recordings(write), Syncs(write), Lifetimes(write)]


def main(arguments: list[str]) -> int:
    timeline.start("lifetimes")
    job = Job.from_json(json.loads(arguments[0]))
    stream = Stream()
    with contextlib.ExitStack() as hooks:
        try:
            if job.target.kind == "script":
                script.when_imported("torch", lambda: _attach(hooks, stream.write))
                return script.run(job.target, stream)
            job = calls.resolved(job)
            last_call = run(job, stream.write, _enter(hooks, stream.write))
            hooks.close()
            _write_kernels(last_call, stream.write)
            return 0
        except UserError as error:
            stream.write("unusable", message=str(error), details=error.details)
            return 2
        finally:
            hooks.close()
            stream.write("environment", **environment.describe(job))


def _enter(hooks: contextlib.ExitStack, write: Write) -> list[Watcher]:
    if messages := contract.missing("lifetimes"):
        write("missing_hook", feature="lifetimes", message=messages[0])
        return []
    entered = watchers(write)
    for watcher in entered:
        hooks.enter_context(watcher)
    return entered


def _attach(hooks: contextlib.ExitStack, write: Write) -> None:
    _enter(hooks, write)


def run(
    job: Job, write: Write, watching: Iterable[Watcher]
) -> Callable[[], object] | None:
    """Makes the target's calls, each between `before_call` and `after_call`.

    Returns the last call, to be repeated; None if a call failed.
    """
    loaded = calls.fresh(job)
    fn = _compiled(loaded.fn, job)
    if fn is None:
        return None
    train = calls.trains(loaded, job)
    failed = False

    def step(call: Any) -> None:
        if train:
            calls.forget_gradients(loaded.fn, call)
        calls.invoke(fn, call, train=train)

    for index, call in enumerate(loaded.calls):
        calls.before(loaded, index)
        for watcher in watching:
            watcher.before_call(index)
        try:
            step(call)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            message = one_line(traceback.format_exception_only(error)[-1])
            # The frames in the traceback would keep tensors alive.
            error.__traceback__ = None
            write("call_failed", call=index, message=message)
            failed = True
        finally:
            for watcher in watching:
                watcher.after_call(index)
    return None if failed else functools.partial(step, loaded.calls[-1])


def _compiled(fn: Callable[..., Any], job: Job) -> Any:
    """The callable to run: the target's own if it compiles itself, else compiled here.

    None if compiling would not use CUDA graphs: then there is nothing to watch.
    """
    import torch

    from torchproof.torch_private import cudagraph_trees

    if calls.compiles_itself(fn, job):
        return fn
    if not cudagraph_trees.uses_cudagraphs(job.compile):
        return None
    return torch.compile(fn, **job.compile)


# -- kernels that CUDA graphs launch ---------------------------------------------------


class Kernels(NamedTuple):
    """How many kernels a step launched, and how many of them CUDA graphs replayed."""

    all: int
    replayed: int


def _write_kernels(step: Callable[[], object] | None, write: Write) -> None:
    import torch

    if step is None or not torch.cuda.is_available():
        return
    # Without the watchers torch may raise for a call that they allow.
    with contextlib.suppress(Exception):
        kernels = profile_kernels(step)
        write("kernels", all=kernels.all, replayed=kernels.replayed)


def profile_kernels(step: Callable[[], object]) -> Kernels:
    """Runs a step until its graphs are recorded, then once under torch's profiler.

    The counts are zero if the step cannot run again.
    """
    import torch

    kinds = torch.profiler.ProfilerActivity
    try:
        for _ in range(_WARM_UPS):
            step()
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
    except Exception:
        return Kernels(0, 0)
    with tempfile.TemporaryDirectory(prefix="torchproof-") as scratch:
        path = Path(scratch) / "trace.json"
        profile.export_chrome_trace(str(path))
        return count_kernels(json.loads(path.read_text())["traceEvents"])


def count_kernels(trace: Iterable[JsonObject]) -> Kernels:
    """Counts a trace's kernels; each has the number of the call that launched it."""
    kernels: list[Any] = []
    launches: set[Any] = set()
    for event in trace:
        number = event.get("args", {}).get("correlation")
        if event.get("cat") == "kernel":
            kernels.append(number)
        elif event.get("name", "").startswith(_GRAPH_LAUNCHES):
            launches.add(number)
    return Kernels(len(kernels), sum(number in launches for number in kernels))


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
