"""Tries one compiled call in a child process, so that a crash does no harm here.

`probe` takes the model and the arguments of a call. It returns None if the child ran
the call, and its backward pass if outputs require gradients. Otherwise it returns one
line with the reason: a crash, a device error, a hang, an exception. It raises
`NotProbed` if the child cannot get the model: the model cannot be pickled, its class is
defined in the main program, or there is no memory for a second copy.
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

_LEAST_LOADING_S = 120.0  # importing torch may take many seconds on a busy machine
_POLL_S = 0.05
_STACK_S = 0.3
_OUTPUT = "output.txt"


class NotProbed(Exception):
    """The model could not be tried in a child process."""

    def __str__(self) -> str:
        return one_line(f"not tried in a child process: {self.args[0]}", 300)


def probe(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    compile_arguments: Mapping[str, Any] | None,
    seconds: float,
) -> str | None:
    """Why the compiled model does not run on this example, or None.

    `seconds` limit compiling and running, without the start of the child. Without
    `compile_arguments`, the model compiles itself.
    """
    if isinstance(model, nn.Module) and (lack := lack_of_memory(model)):
        raise NotProbed(lack)
    arguments = None if compile_arguments is None else dict(compile_arguments)
    call = probe_child.Call(
        model=model,
        args=args,
        kwargs=dict(kwargs),
        arguments=arguments,
        grad=torch.is_grad_enabled(),
        default_dtype=torch.get_default_dtype(),
    )
    with tempfile.TemporaryDirectory(prefix="torchproof-probe-") as name:
        folder = Path(name)
        try:
            torch.save(call, folder / probe_child.CALL)
        except Exception as error:
            raise NotProbed(f"{type(error).__name__}: {error}") from None
        return _run_child(folder, seconds)


def _run_child(folder: Path, seconds: float) -> str | None:
    mark = uuid.uuid4().hex
    hung_in = None
    process = _start(folder, seconds, mark)
    try:
        if not _ends(process, folder, seconds):
            hung_in = _request_place(process, folder)
    finally:
        child_processes.kill_tree(process.pid, mark)
        code = process.wait()
        child_processes.kill_tree(None, mark)
    stage, error = _read_stage(folder)
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
    # -P: use the parent's sys.path alone, without the current folder first.
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
        if loading and _read_stage(folder)[0] != probe_child.LOADING:
            loading = False
            until = time.monotonic() + seconds
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _read_stage(folder: Path) -> tuple[str, str | None]:
    """The stage the child has reached, and its error."""
    try:
        record = json.loads((folder / probe_child.STAGE).read_text())
    except FileNotFoundError:
        return probe_child.LOADING, None
    return record["stage"], record["error"]


def _request_place(process: subprocess.Popen[bytes], folder: Path) -> str:
    process.send_signal(signal.SIGUSR1)
    time.sleep(_STACK_S)
    return _place(folder)


def _place(folder: Path) -> str:
    """Where the child was: a compile phase, or the innermost function."""
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
