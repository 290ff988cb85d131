"""Compilations that have not ended after the seconds that are stated."""

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
    failure_in_eager,
    one_line,
    run_compiled,
)


def run_oracle(make, settings, expected, before_call=None):
    """Expected: `seconds`, and where it stands then: a module of torch, or None."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        stacks = os.path.join(folder, "stacks.txt")
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            limit = {"writer": writer, "stacks": stacks}
            limit["seconds"] = expected["seconds"]
            attempt(make, settings, before_call, **limit)
        os.close(writer)
        try:
            return watched(reader, stacks, settings, expected)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def attempt(make, settings, before_call, *, writer, stacks, seconds):
    """In a process of its own: eager first, then compiled, each told as it ends."""

    def tell(**what):
        os.write(writer, (json.dumps(what) + "\n").encode())

    try:
        own = failure_in_eager(make, settings, before_call)
        tell(eager=own)
        if own is None:
            with open(stacks, "w") as file:
                # Its own thread in C: it works while Python is held up as well.
                faulthandler.dump_traceback_later(0.9 * seconds, file=file)
                error = run_compiled(make, settings, before_call)
                tell(compiled=None if error is None else one_line(error))
    finally:
        os._exit(0)


def watched(reader, stacks, settings, expected):
    began = time.monotonic()
    told = line_from(reader, expected["seconds"])
    if told is None:
        return OTHER, "eager does not end either"
    if told["eager"] is not None:
        return OTHER, f"it fails in eager: {told['eager']}"
    told = line_from(reader, expected["seconds"])
    if told is None:
        return judge_place(stacks, time.monotonic() - began, expected)
    if told["compiled"] is not None:
        return OTHER, f"compiled it raises {told['compiled']}"
    return NONE, f"it ends after {time.monotonic() - began:.1f} s"


def judge_place(stacks, seconds, expected):
    with open(stacks) as file:
        frames = re.findall(r'File "(.+?)", line \d+ in (\S+)', file.read())
    place = place_of(frames)
    told = f"still compiling after {seconds:.0f} s"
    if place is None:
        return OTHER, f"not in torch's compiler after {seconds:.0f} s"
    if expected.get("place") not in (None, place):
        return OTHER, f"{told}, but in {place}"
    return SAME, f"{told}, in {place}"


def place_of(frames):
    """The part of torch that is innermost; None where it does not compile at all."""
    for file, _ in frames:
        part = re.search(r"/torch/(_dynamo|_inductor|_functorch|fx|export)/", file)
        if part:
            return f"torch.{part[1]}"
    return None


def line_from(reader, seconds):
    """The next thing that is told; None if nothing is in time."""
    ready, _, _ = select.select([reader], [], [], seconds)
    text = b""
    while ready and not text.endswith(b"\n"):
        read = os.read(reader, 1)
        if not read:
            return {"eager": None, "compiled": "its process was killed"}
        text += read
    return json.loads(text) if ready else None
