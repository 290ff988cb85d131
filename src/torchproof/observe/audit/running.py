"""Runs one target with watchers around it, in the child process.

Comes in: a job as `capture.job` writes it, and the stream to write to. Goes out: what
the watchers write, and how the calls ended. Code is generated as the target asks for it
where its tensors are on CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import json
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from torchproof.process import Stream
from torchproof.records import UserError, one_line
from torchproof.targets import Target, calls, script
from torchproof.torch_private import environment

Write = Callable[..., None]


class Watcher(Protocol):
    """Watches a target run. `write(kind, **fields)` of its making streams an entry.

    Entering it installs its hooks, before the target is made; leaving it removes them.
    In a script there are no calls that torchproof makes, so the last two are not used.
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
    job, stream = json.loads(arguments[0]), Stream(arguments[1])
    target = Target(**{**job["target"], "arguments": tuple(job["target"]["arguments"])})
    with contextlib.ExitStack() as hooks:
        try:
            if target.kind == "script":
                script.when_imported("torch", lambda: _attach(hooks, stream.write))
                return script.run(target, stream)
            again = run(target, job, stream.write, _enter(hooks, stream.write))
            hooks.close()
            _count_kernels(again, stream.write)
            return 0
        except UserError as error:
            stream.write("unusable", message=str(error))
            return 2
        finally:
            hooks.close()
            stream.write("environment", **environment.describe(job))


def _enter(hooks: contextlib.ExitStack, write: Write) -> list[Watcher]:
    entered = watchers(write)
    for watcher in entered:
        hooks.enter_context(watcher)
    return entered


def _attach(hooks: contextlib.ExitStack, write: Write) -> None:
    _enter(hooks, write)


def run(
    target: Target, job: dict[str, Any], write: Write, watching: Iterable[Watcher]
) -> Callable[[], object] | None:
    """The target's calls, each between the watchers' `before_call` and `after_call`.

    Returns the last of them to be run once more; None where one of them failed.
    """
    loaded = calls.fresh(target, job)
    fn = _compiled(loaded.fn, job)
    if fn is None:
        return None
    train, failed = calls.trains(loaded, job), False

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
            # The frames of what failed hold tensors.
            error.__traceback__ = None
            write("call_failed", call=index, message=message)
            failed = True
        finally:
            for watcher in watching:
                watcher.after_call(index)
    return None if failed else functools.partial(step, loaded.calls[-1])


def _count_kernels(again: Callable[[], object] | None, write: Write) -> None:
    """The share of a step's kernels that come out of graphs, where there are any."""
    import torch

    from torchproof.observe.audit.kernels import profiled

    if again is None or not torch.cuda.is_available():
        return
    # Without the watchers torch may refuse a call that they let pass.
    with contextlib.suppress(Exception):
        kernels = profiled(again)
        write("kernels", all=kernels.all, replayed=kernels.replayed)


def _compiled(fn: Callable[..., Any], job: dict[str, Any]) -> Any:
    """What is called: compiled by the target itself, or here as the user says.

    None where that would not ask for CUDA graphs: then there is nothing to watch.
    """
    import torch

    from torchproof import torch_private
    from torchproof.torch_private import cudagraph_trees

    itself = job["as_written"] or calls.claims(fn, "compiles_itself")
    if itself or torch_private.is_compiled(fn):
        return fn
    if not cudagraph_trees.asks_for_graphs(job["compile"]):
        return None
    return torch.compile(fn, **job["compile"])
