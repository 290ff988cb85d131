"""The child process of production: generates code, or tries a compiled call.

`child_process` starts it as `python -m torchproof.runtime.child TASK STACKS`; it writes
its stacks into the file descriptor STACKS when it crashes, or on SIGUSR1. When its
parent ends, it ends with all its descendants.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchproof.process import Channel, Ended, hold, leave, packed, unpacked
from torchproof.records import Keywords, collector_paused

IDLE_EXIT = 83  # the exit code of a child that got no request for a while
_IDLE_S = 60.0
_FIRST_IDLE_S = 600.0  # from `torchproof.compile` to the first call of the model
# A child whose GIL is held cannot watch its parent: a timer ends it.
_GRACE_S = 60.0
_LONGEST_S = 1e9  # the longest time that the timer takes


class Call(NamedTuple):
    """A call to try; the parent pickles it."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Keywords
    grad: bool
    default_dtype: Any


def main(arguments: Sequence[str]) -> None:
    task, stacks = arguments[0], int(arguments[1])
    hold(descendants=True)
    os.set_inheritable(stacks, False)
    faulthandler.enable(stacks, all_threads=False)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(Ended):
        serve = {"generate": _generate, "probe": _probe}[task]
        serve(Channel.to_parent())
    leave(0)


def _end_after(seconds: float) -> None:
    seconds = min(seconds + _GRACE_S, _LONGEST_S)
    faulthandler.dump_traceback_later(seconds, exit=True)


# -- code generation -------------------------------------------------------------------


def _generate(channel: Channel) -> None:
    with collector_paused():
        from torchproof.torch_private import remote_codegen, remote_graphs

        remote_codegen.prepare()
    gc.freeze()  # what was imported stays, and no collection has to look at it
    channel.send({"ready": True})
    patience_s = _FIRST_IDLE_S
    while True:
        try:
            request = channel.receive(patience_s)
        except TimeoutError:
            leave(IDLE_EXIT)
        _end_after(request["seconds_left"])
        try:
            payload = unpacked(request["payload"])
            if request["kind"] == "graph":
                output = remote_graphs.compile_graph(payload)
            else:
                output = remote_codegen.generate(payload, request["environment"])
            answer = {"output": packed(output)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        faulthandler.cancel_dump_traceback_later()
        channel.send(answer)
        patience_s = _IDLE_S


# -- one compiled call -----------------------------------------------------------------


def _probe(channel: Channel) -> None:
    with collector_paused():
        import torch

        from torchproof.process import main_definitions
        from torchproof.torch_private import frames, remote_codegen

    remote_codegen.build_atomically()
    request = channel.receive()
    _end_after(request["seconds"])
    try:
        # The parent wrote the files a moment ago, into a folder that only this user can
        # enter.
        if request["main"] is not None:
            main_definitions.install(main_definitions.load(Path(request["main"])))
        call: Call = torch.load(request["call"], weights_only=False)
        if request["main"] is not None:
            # This process may lack something that the main program has: it is then no
            # fault of compiled code.
            with torch.compiler.set_stance("force_eager"):
                _run(call)
        channel.send({"stage": "running"})
        _run(call)
        channel.send({"stage": "done"})
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        channel.send({"error": text, "graph_break": frames.is_graph_break(error)})


def _run(call: Call) -> None:
    import torch

    from torchproof.torch_private import trees

    torch.set_default_dtype(call.default_dtype)
    with torch.set_grad_enabled(call.grad):
        output = call.model(*call.args, **call.kwargs)
        parts = list(trees.tensors(output, objects=True))
        ends = [part.mean() for part in parts if part.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:])
