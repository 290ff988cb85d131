"""One compiled call in a child process: what kills that one, kills nothing here.

In come the model and the arguments of a call. Out goes None if the child ran it, with
its backward pass where outputs require gradients, else one line that says why not: a
crash, a device error, a hang, an exception. A model that does not reach the child (it
cannot be pickled, its class lives in the main program, memory lacks for a second one)
raises `NotProbed`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchproof.records import one_line
from torchproof.runtime import child_processes, probe_child
from torchproof.runtime.compile_phases import phase_of_frames
from torchproof.runtime.speed_trial import lack_of_memory

_LEAST_LOADING_S = 120.0  # importing torch takes seconds, on a busy machine many
_POLL_S = 0.05
_STACK_S = 0.3
_OUTPUT = "output.txt"


class NotProbed(Exception):
    """The model could not be tried in a child; nothing is known about it."""

    def __str__(self) -> str:
        return one_line(f"could not be probed: {self.args[0]}", 300)


def probe(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    compile_arguments: Mapping[str, Any] | None,
    seconds: float,
) -> str | None:
    """Why the compiled model does not run on this example, or None.

    `seconds` are for compiling and running it; starting the child is not counted in.
    Without arguments for torch.compile, the model is one that compiles itself.
    """
    if isinstance(model, nn.Module) and (lack := lack_of_memory(model)):
        raise NotProbed(lack)
    arguments = None if compile_arguments is None else dict(compile_arguments)
    surroundings = torch.is_grad_enabled(), torch.get_default_dtype()
    call = probe_child.Call(model, args, dict(kwargs), arguments, *surroundings)
    with tempfile.TemporaryDirectory(prefix="torchproof-probe-") as name:
        folder = Path(name)
        try:
            torch.save(call, folder / probe_child.CALL)
        except Exception as error:
            raise NotProbed(f"{type(error).__name__}: {error}") from None
        return _tried(folder, seconds)


def _tried(folder: Path, seconds: float) -> str | None:
    mark, hung_in = uuid.uuid4().hex, None
    process = _start(folder, seconds, mark)
    try:
        if not _ends(process, folder, seconds):
            hung_in = _place_asked_for(process, folder)
    finally:
        child_processes.kill_tree(process.pid, mark)
        code = process.wait()
        child_processes.kill_tree(None, mark)
    stage, error = _told(folder)
    if stage == probe_child.DONE:
        return None
    if hung_in is not None:
        limit_s = (
            max(seconds, _LEAST_LOADING_S) if stage == probe_child.LOADING else seconds
        )
        why = f"did not end within {limit_s:g} s{hung_in}"
    elif code < 0:
        why = f"killed by {signal.Signals(-code).name}{_place(folder)}"
    else:
        why = one_line(error or f"exit code {code}: {_last_line(folder)}", 300)
    if stage == probe_child.LOADING:
        raise NotProbed(f"{why}, while the child was loading it")
    return why


def _start(folder: Path, seconds: float, mark: str) -> subprocess.Popen[bytes]:
    # -P: the parent's sys.path is all there is, without the current folder first.
    command = [sys.executable, "-P", "-m", probe_child.__name__, str(folder)]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    with (folder / _OUTPUT).open("wb") as output:
        return subprocess.Popen(
            [*command, str(os.getpid()), str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, child_processes.MARK_VARIABLE: mark, "PYTHONPATH": path},
        )


def _ends(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> bool:
    """Waits for the child; False when its time is over."""
    until = time.monotonic() + max(seconds, _LEAST_LOADING_S)
    loading = True
    while process.poll() is None:
        if loading and _told(folder)[0] != probe_child.LOADING:
            loading, until = False, time.monotonic() + seconds
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _told(folder: Path) -> tuple[str, str | None]:
    """The stage the child has reached, and its error."""
    try:
        told = json.loads((folder / probe_child.STAGE).read_text())
    except FileNotFoundError:
        return probe_child.LOADING, None
    return told["stage"], told["error"]


def _place_asked_for(process: subprocess.Popen[bytes], folder: Path) -> str:
    process.send_signal(signal.SIGUSR1)
    time.sleep(_STACK_S)
    return _place(folder)


def _place(folder: Path) -> str:
    """Where the child was: a phase of compiling, or the innermost function."""
    try:
        threads = child_processes.parse_stacks((folder / probe_child.STACK).read_text())
    except FileNotFoundError:
        return ""
    if not threads or not threads[0]:
        return ""
    if phase := phase_of_frames(threads[0]):
        return f" in {phase}"
    filename, function = threads[0][-1]
    return f" in {function} ({os.path.basename(filename)})"


def _last_line(folder: Path) -> str:
    lines = (folder / _OUTPUT).read_text(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "no output"
