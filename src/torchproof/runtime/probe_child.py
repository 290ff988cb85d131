"""The child process that tries compiled code; `probe` starts it.

Takes a folder with a pickled call, the parent's process id and a time limit. Writes
into the same folder the stage it has reached, its error if there is one, and its stack
on a crash or on SIGUSR1.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from torchproof.runtime import child_processes

# Files in the folder.
CALL = "call.pt"
STAGE = "stage.json"
STACK = "stack.txt"
# Stages.
LOADING = "loading"
RUNNING = "running"
DONE = "done"
_PARENT_CHECK_S = 0.5
_GRACE_S = 60.0  # after which a timer ends a child whose GIL is held
_LONGEST_S = 1e9  # the longest time that the timer takes


class Call(NamedTuple):
    """The call that the parent pickles."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: (
        dict[str, Any] | None
    )  # of torch.compile; None: the model compiles itself
    grad: bool
    default_dtype: Any


def main() -> None:
    folder, parent, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    stack = (folder / STACK).open("w")
    faulthandler.enable(stack, all_threads=False)
    faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    patience_s = min(2 * seconds + _GRACE_S, _LONGEST_S)
    faulthandler.dump_traceback_later(patience_s, exit=True, file=stack)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    stage = LOADING
    write_stage(folder, stage)
    try:
        call = _load(folder / CALL)
        stage = RUNNING
        write_stage(folder, stage)
        _run(call)
    except Exception as error:
        write_stage(folder, stage, f"{type(error).__name__}: {error}")
        _leave(1)
    write_stage(folder, DONE)
    _leave(0)


def write_stage(folder: Path, stage: str, error: str | None = None) -> None:
    """Replaces the stage file atomically."""
    fresh = folder / f"{STAGE}.part"
    fresh.write_text(json.dumps({"stage": stage, "error": error}))
    fresh.replace(folder / STAGE)


def _load(path: Path) -> Call:
    import torch

    # The parent wrote it a moment ago, into a folder that only this user can enter.
    call: Call = torch.load(path, weights_only=False)
    return call


def _run(call: Call) -> None:
    import torch

    from torchproof.runtime.tensors.tree import walk

    torch.set_default_dtype(call.default_dtype)
    with torch.set_grad_enabled(call.grad):
        compiled = call.model
        if call.arguments is not None:
            compiled = torch.compile(call.model, **call.arguments)
        output = compiled(*call.args, **call.kwargs)
        parts = [part for _, part in walk(output, "") if isinstance(part, torch.Tensor)]
        ends = [part.mean() for part in parts if part.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    _leave(1)


def _leave(code: int) -> NoReturn:
    """Ends without sys.exit, where torch would wait for its worker pool."""
    child_processes.kill_tree(os.getpid(), os.environ[child_processes.MARK_VARIABLE])
    os._exit(code)


if __name__ == "__main__":
    main()
