"""Recognises compilations that do not end within the stated seconds."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import tempfile
import time

from torchproof.packs.repro.oracles.prelude import NONE, OTHER, SAME, one_line


def run_oracle(program, expected):
    """Expects `seconds`, and the `place` of the hang: a module of torch, or None."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        stacks = os.path.join(folder, "stacks.txt")
        fork = multiprocessing.get_context("fork")
        reader, writer = fork.Pipe(duplex=False)
        work = (program, writer, stacks, 0.9 * expected["seconds"])
        child = fork.Process(target=run_in_child, args=work)
        child.start()
        writer.close()
        try:
            return watch(reader, stacks, expected)
        except EOFError:
            return OTHER, "its process was killed"
        finally:
            child.kill()
            child.join()


def run_in_child(program, writer, stacks, seconds):
    """Runs eager, then compiled code, in the fork; sends the error of each or None."""
    in_eager = program.eager_error()
    writer.send(in_eager)
    if in_eager is None:
        with open(stacks, "w") as file:
            # faulthandler uses a C thread, so it works while Python is blocked.
            faulthandler.dump_traceback_later(seconds, file=file)
            error = program.compiled_error()
            writer.send(None if error is None else one_line(error))
    os._exit(0)


def watch(reader, stacks, expected):
    start = time.monotonic()
    if not reader.poll(expected["seconds"]):
        return OTHER, "eager does not end either"
    in_eager = reader.recv()
    if in_eager is not None:
        return OTHER, f"eager fails: {in_eager}"
    if not reader.poll(expected["seconds"]):
        return check_place(stacks, time.monotonic() - start, expected)
    error = reader.recv()
    if error is not None:
        return OTHER, f"compiled code raises {error}"
    return NONE, f"it ends after {time.monotonic() - start:.1f} s"


def check_place(stacks, seconds, expected):
    """Looks for torch's compiler on the stack; its last stage counts."""
    end = time.monotonic() + seconds
    frames = ""
    while not frames and time.monotonic() < end:  # on a busy machine they come late
        time.sleep(0.05)
        with open(stacks) as file:
            frames = file.read()
    stages = ("_inductor", "_functorch", "_dynamo", "export", "fx")
    reached = [stage for stage in stages if f"/torch/{stage}/" in frames]
    if not reached:
        return OTHER, f"after {seconds:.0f} s it hangs outside torch's compiler"
    place = f"torch.{reached[0]}"
    status = f"still compiling after {seconds:.0f} s"
    if expected.get("place") not in (None, place):
        return OTHER, f"{status}, but in {place}"
    return SAME, f"{status}, in {place}"
