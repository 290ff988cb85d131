"""Tries one compiled call in a child process, so that a crash does no harm here.

`probe` takes the model and the arguments of a call. It returns None if the child ran
the call, and its backward pass if outputs require gradients. Otherwise it returns one
line with the reason: a crash, a device error, a hang, an exception. It raises
`NotProbed` if the child cannot get the model: the model cannot be pickled, its class is
in the main program and has no source, or there is no memory for a second copy.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchproof.process import Ended, main_definitions
from torchproof.records import JsonObject, Keywords, one_line
from torchproof.runtime.child import Call
from torchproof.runtime.child_process import ChildProcess, Frames
from torchproof.runtime.speed_trial import lack_of_memory
from torchproof.torch_private import compile_phases

_LEAST_LOADING_S = 120.0  # importing torch may take many seconds on a busy machine


class NotProbed(Exception):
    """The model could not be tried in a child process."""

    def __str__(self) -> str:
        return one_line(f"not tried in a child process: {self.args[0]}", 300)


def probe(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Keywords,
    *,
    seconds: float,
) -> str | None:
    """Why the model, which compiles itself, does not run on this example, or None.

    `seconds` limit compiling and running, without the start of the child.
    """
    if isinstance(model, nn.Module) and (lack := lack_of_memory(model)):
        raise NotProbed(lack)
    call = Call(
        model=model,
        args=args,
        kwargs=dict(kwargs),
        grad=torch.is_grad_enabled(),
        default_dtype=torch.get_default_dtype(),
    )
    with tempfile.TemporaryDirectory(prefix="torchproof-probe-") as folder:
        path, main = Path(folder, "call.pt"), Path(folder, "main.pickle")
        try:
            torch.save(call, path)
            needs_main = main_definitions.save(path, main)
        except main_definitions.NoSource as error:
            raise NotProbed(error) from None
        except Exception as error:
            raise NotProbed(f"{type(error).__name__}: {error}") from None
        request = {"call": str(path), "main": str(main) if needs_main else None}
        process = ChildProcess("probe")
        try:
            with process.child:
                return _wait(process, request, seconds)
        finally:
            process.close()


def _wait(process: ChildProcess, request: JsonObject, seconds: float) -> str | None:
    limit_s = max(seconds, _LEAST_LOADING_S)
    request["seconds"] = limit_s + seconds
    is_loading = True
    try:
        message = process.child.ask(request, limit_s)
        if message.get("stage") == "running":
            is_loading, limit_s = False, seconds
            message = process.child.receive(limit_s)
        if message.get("stage") == "done" or message.get("graph_break"):
            return None  # with `fullgraph=True`, the first call raises at the break
        why = one_line(message["error"], 300)
    except TimeoutError:
        threads = process.stacks()
        place = _place(threads[-1] if threads else [])
        why = f"did not end within {limit_s:g} s{place}"
    except Ended:
        code = process.child.wait()
        if code < 0:
            why = f"killed by {signal.Signals(-code).name}{_place(process.crash())}"
        else:
            last = process.last_line() or "no output"
            why = one_line(f"exit code {code}: {last}", 300)
    if is_loading:
        raise NotProbed(f"{why}, while the child was loading it")
    return why


def _place(frames: Frames) -> str:
    """Where the child was: a compile phase, or the innermost function."""
    if not frames:
        return ""
    if phase := compile_phases.phase_of_frames(frames):
        return f" in {phase}"
    filename, function = frames[-1]
    return f" in {function} ({os.path.basename(filename)})"
