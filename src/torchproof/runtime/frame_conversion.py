"""Runs Dynamo's conversion of one frame in a helper thread, until the deadline.

Takes the frame that Dynamo would convert, returns Dynamo's answer, or raises the error
that prevented it. Afterwards nothing that was started for it runs, except a thread that
cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

from torchproof.runtime import (
    compile_job,
    gil_watchdog,
    interruptible_thread,
)
from torchproof.runtime.status_report import Stuck
from torchproof.runtime.telemetry import Telemetry
from torchproof.runtime.tensors import rng_state
from torchproof.torch_private import (
    abandoned_threads,
    backends,
    compile_phases,
    configs,
    frames,
    hidden_gradients,
    thread_state,
)

# How long an interrupted thread may take to unwind.
_PATIENCE_S = 0.8
# How long a compilation may take to kill a child that hangs and to go on without its
# code. With the patience above, a call returns well within 2 s after its deadline.
_GRACE_S = 0.9
_LOOK_EVERY_S = 0.1
# If a thread holds the GIL beyond the deadline, all stacks are printed after this time.
_DUMP_AFTER_S = 3.0


def convert_within_deadline(
    conversion: frames.Conversion,
    state: thread_state.ThreadState,
    job: compile_job.Job,
    telemetry: Telemetry,
) -> Any:
    """Dynamo's answer, from a helper thread if that can take over this thread's state.

    Otherwise the calling thread converts the frame itself.
    """
    why_not = state.why_not
    if why_not is None:
        answer = _in_helper_thread(conversion, state, job, telemetry)
        if job.in_background or not frames.is_compiled_code(answer):
            return answer
        # Dynamo runs code it has just compiled without checking its guards.
        if frames.fits(answer, conversion):
            return answer
        why_not = "its guards depend on thread-local state"
    telemetry.note(f"compiled in the calling thread: {why_not}")
    with compile_job.interrupted_at_deadline(job):
        return carry_out(conversion.with_frame_copy(), job)


def _in_helper_thread(
    conversion: frames.Conversion,
    state: thread_state.ThreadState,
    job: compile_job.Job,
    telemetry: Telemetry,
) -> Any:
    work = functools.partial(carry_out, conversion.with_frame_copy(), job)
    name = f"torchproof-{conversion.code.co_name}"
    after_s = job.until - time.monotonic() + _DUMP_AFTER_S
    try:
        thread = interruptible_thread.InterruptibleThread(
            functools.partial(state.run, work), name
        )
        with gil_watchdog.dump_stacks_after(after_s):
            _wait(thread, job, telemetry)
    except (interruptible_thread.Interrupted, RuntimeError):
        raise  # or the system allows no further thread: the frame runs eager
    except BaseException:  # a signal handler raised, maybe before this thread waits
        job.caller_left, job.until = True, 0.0
        raise
    if thread.error is None:
        return thread.value
    # An error references its frames, and they reference tensors of the call.
    error, thread.error = thread.error, None
    try:
        raise error
    finally:
        del error


def carry_out(conversion: frames.Conversion, job: compile_job.Job) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(configs.own_changes())
        stack.enter_context(frames.compiler_switches(generalise=job.generalise))
        if job.backward_early:
            stack.enter_context(backends.backward_ahead())
        stack.enter_context(hidden_gradients.hidden())
        # Callers draw random numbers meanwhile: the RNG must not be set back.
        stack.enter_context(
            rng_state.restores_suppressed(lambda: job.in_background or job.abandoned)
        )
        stack.enter_context(compile_job.running(job))
        stack.enter_context(frames.checkpoints(job.check))
        stack.enter_context(frames.breaks_noted(job.breaks.add))
        answer = conversion.run()
        if job.symbolic_shapes is not None:
            frames.release_symbolic_shapes(job.symbolic_shapes)
        return answer


def _wait(
    thread: interruptible_thread.InterruptibleThread,
    job: compile_job.Job,
    telemetry: Telemetry,
) -> None:
    """Waits until the thread ends; raises `Interrupted` after the deadline."""
    try:
        if thread.wait(job.until):
            return
        # The thread kills a child that hangs, and then goes on without its code.
        if job.is_sending and thread.wait(job.until + _GRACE_S):
            return
    except BaseException:  # Ctrl-C, or an exception of the caller's signal handler
        job.caller_left, job.until = True, 0.0
        with interruptible_thread.short_switch_interval():
            job.end_compilers(thread.thread_id)
            stack = thread.stack()
            if not thread.stop(_PATIENCE_S):
                _abandon(thread, job, telemetry, stack)
        raise
    # What follows reads many small files, and the thread may be busy in Python: by
    # default it would keep this one waiting for 5 ms after each of them.
    with interruptible_thread.short_switch_interval():
        is_late = _end(thread, job, telemetry)
    if is_late:
        # Not bound to a name: this frame would keep the error alive.
        raise interruptible_thread.Interrupted(job.phase)


def _end(
    thread: interruptible_thread.InterruptibleThread,
    job: compile_job.Job,
    telemetry: Telemetry,
) -> bool:
    """Ends what the job still does; False if the thread has succeeded meanwhile."""
    stack = thread.stack()
    phase = job.phase_in_child or compile_phases.phase_of_stack(stack)
    job.phase = phase
    # A graph whose compilers are killed, one after the other, fails; the rest of the
    # compilation may still succeed.
    while job.has_compilers(thread.thread_id):
        # Before they are killed: the thread then reports its graph with the phase.
        if phase in (None, "code generation", "worker pool"):
            job.phase = phase = "C++ compiler"
        job.end_compilers(thread.thread_id)
        if thread.wait(time.monotonic() + _LOOK_EVERY_S):
            job.abandon_pool()
            return False
        if time.monotonic() > job.until + _GRACE_S:
            break
    if not _stop(thread, job):
        _abandon(thread, job, telemetry, stack)
    if phase in ("worker pool", "C++ compiler"):
        job.abandon_pool()
    thread.error = None  # it references frames, and they reference tensors of the call
    return True


def _stop(
    thread: interruptible_thread.InterruptibleThread, job: compile_job.Job
) -> bool:
    """Stops the thread, and kills compilers that it starts meanwhile."""
    until = time.monotonic() + _PATIENCE_S
    while not (has_ended := thread.stop(_LOOK_EVERY_S)) and time.monotonic() < until:
        job.end_compilers(thread.thread_id)
    job.end_compilers(thread.thread_id)
    return has_ended


def _abandon(
    thread: interruptible_thread.InterruptibleThread,
    job: compile_job.Job,
    telemetry: Telemetry,
    stack: list[Any],
) -> None:
    """Goes on without a thread that cannot be stopped; it holds nothing any more."""
    job.abandoned = True
    abandoned_threads.abandon(thread.thread_id)
    phase = job.phase or compile_phases.phase_of_stack(stack)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    item = Stuck(thread.name, _innermost(stack), phase, since)
    telemetry.is_stuck(item, thread.ended)


def _innermost(stack: list[Any]) -> str:
    if not stack:
        return "an unknown place"
    frame = stack[-1]
    return f"{frame.name} ({frame.filename}:{frame.lineno})"
