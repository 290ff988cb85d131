"""The child process that tries compiled code; `probe` starts it.

In come a folder with a pickled call and the number of the parent process. Out go, in
the same folder, the stage it has reached, the error it ended with if any, and where it
was when it crashed or was asked.
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

CALL, STAGE, STACK = "call.pt", "stage.json", "stack.txt"
LOADING, RUNNING, DONE = "loading", "running", "done"
_PARENT_CHECK_S = 0.5
_GRACE_S = 60.0  # beyond which a child ends whose interpreter is blocked
_LONGEST_S = 1e9  # that the timer takes


class Call(NamedTuple):
    """What the parent pickles."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: dict[str, Any] | None  # of torch.compile; None: it compiles itself
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
    tell(folder, stage)
    try:
        call = _load(folder / CALL)
        stage = RUNNING
        tell(folder, stage)
        _run(call)
    except Exception as error:
        tell(folder, stage, f"{type(error).__name__}: {error}")
        _leave(1)
    tell(folder, DONE)
    _leave(0)


def tell(folder: Path, stage: str, error: str | None = None) -> None:
    """Replaces what was told before, in one step."""
    fresh = folder / f"{STAGE}.part"
    fresh.write_text(json.dumps({"stage": stage, "error": error}))
    fresh.replace(folder / STAGE)


def _load(path: Path) -> Call:
    import torch

    # Written by the parent a moment ago, into a folder that only this user can enter.
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
    """Not by sys.exit: torch would wait there for its worker pool."""
    child_processes.kill_tree(os.getpid(), os.environ[child_processes.MARK_VARIABLE])
    os._exit(code)


if __name__ == "__main__":
    main()
