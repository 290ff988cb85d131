"""Recognises compilations that do not end within the stated seconds."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import select
import signal
import tempfile
import time

from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    eager_error,
    one_line,
    run_compiled,
)


def run_oracle(make, settings, expected, before_call=None):
    """Expects `seconds`, and the `place` of the hang: a module of torch, or None."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        stacks = os.path.join(folder, "stacks.txt")
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            limit = {"writer": writer, "stacks": stacks}
            limit["seconds"] = expected["seconds"]
            run_in_child(make, settings, before_call, **limit)
        os.close(writer)
        try:
            return watch(reader, stacks, expected)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run_in_child(make, settings, before_call, *, writer, stacks, seconds):
    """Runs eager, then compiled code, in the fork; writes a message after each."""

    def write(**message):
        os.write(writer, (json.dumps(message) + "\n").encode())

    try:
        in_eager = eager_error(make, settings, before_call)
        write(eager=in_eager)
        if in_eager is None:
            with open(stacks, "w") as file:
                # faulthandler uses a C thread, so it works while Python is blocked.
                faulthandler.dump_traceback_later(0.9 * seconds, file=file)
                error = run_compiled(make, settings, before_call)
                write(compiled=None if error is None else one_line(error))
    finally:
        os._exit(0)


def watch(reader, stacks, expected):
    start = time.monotonic()
    message = next_message(reader, expected["seconds"])
    if message is None:
        return OTHER, "eager does not end either"
    if message["eager"] is not None:
        return OTHER, f"eager fails: {message['eager']}"
    message = next_message(reader, expected["seconds"])
    if message is None:
        return check_place(stacks, time.monotonic() - start, expected)
    if message["compiled"] is not None:
        return OTHER, f"compiled code raises {message['compiled']}"
    return NONE, f"it ends after {time.monotonic() - start:.1f} s"


def check_place(stacks, seconds, expected):
    with open(stacks) as file:
        frames = re.findall(r'File "(.+?)", line \d+ in (\S+)', file.read())
    place = place_of(frames)
    status = f"still compiling after {seconds:.0f} s"
    if place is None:
        return OTHER, f"after {seconds:.0f} s it hangs outside torch's compiler"
    if expected.get("place") not in (None, place):
        return OTHER, f"{status}, but in {place}"
    return SAME, f"{status}, in {place}"


def place_of(frames):
    """Returns the innermost package of torch's compiler; None if there is none."""
    for file, _ in frames:
        part = re.search(r"/torch/(_dynamo|_inductor|_functorch|fx|export)/", file)
        if part:
            return f"torch.{part[1]}"
    return None


def next_message(reader, seconds):
    """Reads the next message of the child; None if none comes in time."""
    ready, _, _ = select.select([reader], [], [], seconds)
    text = b""
    while ready and not text.endswith(b"\n"):
        byte = os.read(reader, 1)
        if not byte:
            return {"eager": None, "compiled": "its process was killed"}
        text += byte
    return json.loads(text) if ready else None
