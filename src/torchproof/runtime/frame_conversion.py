"""Carries a conversion out in a helper thread, and waits for it until the deadline.

In comes a frame that Dynamo would convert, out goes Dynamo's answer; whatever kept it
from one is raised, and nothing that was started for it is left, but for a thread that
cannot be ended.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

from torchproof.runtime import (
    backend,
    compile_job,
    compile_phases,
    gil_watchdog,
    interruptible_thread,
)
from torchproof.runtime.status_report import Stuck
from torchproof.runtime.telemetry import Telemetry
from torchproof.runtime.tensors import rng_state
from torchproof.torch_private import backends, frames, thread_state

# How long work that was interrupted may take to unwind.
_PATIENCE_S = 0.8
# How long a compilation whose child hangs may take to end it and to do without its
# code; together with the patience well below the 2 s that are promised.
_GRACE_S = 0.9
_LOOK_EVERY_S = 0.1
# A thread that holds the interpreter cannot be left; its place is printed then.
_DUMP_AFTER_S = 3.0


def carried_out(
    conversion: frames.Conversion,
    state: thread_state.ThreadState,
    job: compile_job.Job,
    telemetry: Telemetry,
) -> Any:
    """Dynamo's answer, by way of a helper thread where that can stand for this one."""
    why_not = state.why_not
    if why_not is None:
        answer = _in_helper(conversion, state, job, telemetry)
        if job.behind or not frames.is_compiled_code(answer):
            return answer
        # Dynamo runs what it has just compiled without a look at its guards.
        if frames.fits(answer, conversion):
            return answer
        why_not = "what it depends on is another thing in each thread"
    telemetry.note(f"compiled in the calling thread: {why_not}")
    late = functools.partial(backend.end_compilers, job)
    with interruptible_thread.interrupted(job.until, late):
        return _carry_out(conversion.with_frame_copy(), job)


def _in_helper(
    conversion: frames.Conversion,
    state: thread_state.ThreadState,
    job: compile_job.Job,
    telemetry: Telemetry,
) -> Any:
    work = functools.partial(_carry_out, conversion.with_frame_copy(), job)
    name = f"torchproof-{conversion.code.co_name}"
    attempt = interruptible_thread.Attempt(functools.partial(state.run, work), name)
    with gil_watchdog.named(job.until - time.monotonic() + _DUMP_AFTER_S):
        _wait(attempt, job, telemetry)
    if attempt.error is None:
        return attempt.value
    # An error holds the frames it came through, and they hold tensors of the call.
    error, attempt.error = attempt.error, None
    try:
        raise error
    finally:
        del error


def _carry_out(conversion: frames.Conversion, job: compile_job.Job) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(frames.compiler_switches(generalise=job.generalise))
        if job.ahead:
            stack.enter_context(backends.backward_ahead())
        # Callers draw random numbers meanwhile, which must not be drawn again.
        stack.enter_context(rng_state.left_alone(lambda: job.behind or job.abandoned))
        stack.enter_context(compile_job.under_way(job))
        stack.enter_context(frames.checkpoints(job.check))
        return conversion.run()


def _wait(
    attempt: interruptible_thread.Attempt, job: compile_job.Job, telemetry: Telemetry
) -> None:
    """Until it has ended, or the deadline has passed and nothing of it is left."""
    try:
        if attempt.wait(job.until):
            return
        # A child that hangs is ended by who waits for it, who then goes on.
        if job.sending and attempt.wait(job.until + _GRACE_S):
            return
    except BaseException:  # Ctrl-C, or what a signal handler of the caller's raises
        job.is_left, job.until = True, 0.0
        job.end_compilers(attempt.thread_id)
        attempt.stop(_PATIENCE_S)
        raise
    stack = attempt.stack()
    phase = compile_phases.phase_of_frames([(f.filename, f.name) for f in stack])
    job.phase = phase
    # Without its compilers, of which one comes after the other, a graph fails, and the
    # rest may well go on without it.
    while job.end_compilers(attempt.thread_id):
        if phase in (None, "code generation", "worker pool"):
            job.phase = phase = "C++ compiler"
        if attempt.wait(time.monotonic() + _LOOK_EVERY_S):
            return
        if time.monotonic() > job.until + _GRACE_S:
            break
    if not attempt.stop(_PATIENCE_S):
        job.abandoned = True
        thread_state.free_compile_lock(attempt.thread_id)
        telemetry.is_stuck(Stuck(attempt.name, _innermost(stack), phase))
    attempt.error = None  # which holds frames, and they hold tensors of the call
    raise interruptible_thread.GivenUp(
        phase
    )  # by no name, with which this frame would hold it


def _innermost(stack: list[Any]) -> str:
    if not stack:
        return "an unknown place"
    frame = stack[-1]
    return f"{frame.name} ({frame.filename}:{frame.lineno})"
