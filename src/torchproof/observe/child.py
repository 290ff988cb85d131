"""The child process: runs one target under observation.

`capture` starts it as `python -m` with a job in JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchproof import torch_private
from torchproof.observe import timeline
from torchproof.observe.observer import Observer
from torchproof.process import Stream, hold
from torchproof.records import Keywords, RaisedError, UserError
from torchproof.targets import Job, calls, raised, script
from torchproof.torch_private import environment


def main(arguments: list[str]) -> int:
    timeline.start("breaks")
    return observe_job(Job.from_json(json.loads(arguments[0])), Stream())


def observe_job(
    job: Job, stream: Stream, observer_type: type[Observer] = Observer
) -> int:
    """Runs the target of a job under observation; returns an exit code."""
    try:
        if job.target.kind != "script":
            with observing(job, stream, observer_type) as (resolved, observer):
                _run_factory(resolved, observer)
            return 0
        return _run_script(job, stream)
    except UserError as error:
        stream.write("unusable", message=str(error), details=error.details)
        return 2


def _run_script(job: Job, stream: Stream) -> int:
    observer = Observer(stream, calls_are_wrapper_calls=True)
    # A timeline shows what the program does, and it runs only this once.
    observer.generates_code = timeline.current() is not None
    try:
        script.when_imported("torch", observer.attach)
        return script.run(job.target, stream)
    finally:
        observer.detach()
        stream.write("environment", **environment.describe(job))


@contextlib.contextmanager
def observing(
    job: Job, stream: Stream, observer_type: type[Observer] = Observer
) -> Iterator[tuple[Job, Observer]]:
    """Observes what is compiled, and writes counts and environment at the end."""
    observer = observer_type(stream, calls_are_wrapper_calls=False)
    observer.generates_code = job.generates_code
    observer.attach()
    try:
        job = calls.resolved(job)
        yield job, observer
    finally:
        observer.detach()
        stream.write("environment", **environment.describe(job))


def _run_factory(job: Job, observer: Observer) -> None:
    import torch

    loaded = calls.fresh(job)
    fn: Callable[..., Any] = loaded.fn
    compiles_itself = calls.compiles_itself(fn, job)
    if compiles_itself and job.compile:
        raise UserError(
            f"{job.target.text} does its own compiling: --compile has no effect on it"
        )
    if not compiles_itself:
        observer.site, observer.arguments = (loaded.place,), job.compile
        try:
            fn = torch.compile(fn, **_compile_arguments(job.compile))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"torch.compile rejects its arguments: {reason}") from error
        observer.site = None
    train = calls.trains(loaded, job)
    runs_in_eager = False
    observer.stream.write("plan", calls=len(loaded.calls))
    for index, call in calls.each(loaded, train=train):
        observer.begin_call(index)
        by_name = isinstance(call, Mapping)
        observer.note_form(() if by_name else call, call if by_name else {})
        try:
            calls.invoke(fn, call, train=train)
        except SystemExit as exit_:
            raise UserError(
                f"call {index} ends the process: sys.exit({exit_.code})"
            ) from None
        except UserError:
            raise
        except Exception as error:
            if not runs_in_eager or torch_private.compile_phase(error) != "frame":
                _explain_failure(error, index, job, observer)
            runs_in_eager = True
        finally:
            observer.end_call()


def _compile_arguments(arguments: Keywords) -> Keywords:
    """Defaults to no code generation, so that Inductor is not imported for nothing."""
    if {"backend", "mode", "options"} & set(arguments):
        return arguments
    from torchproof.torch_private import run_as_captured

    return {"backend": run_as_captured, **arguments}


def _explain_failure(
    error: Exception, index: int, job: Job, observer: Observer
) -> None:
    """Writes the error of a call; raises `UserError` if eager raises as well."""
    import torch

    raised_error = RaisedError.of(error, torch_private.compile_phase(error))
    torch.compiler.set_stance("force_eager")
    observer.paused = True
    try:
        loaded = calls.fresh(job)
        train = calls.trains(loaded, job)
        for number, call in calls.each(loaded, train=train):
            calls.invoke(loaded.fn, call, train=train)
            if number == index:
                break
    except UserError:
        raise
    except Exception as eager_error:
        what = f"the target fails in eager, at call {number}"
        raise raised(what, eager_error) from eager_error
    finally:
        observer.paused = False
        torch.compiler.set_stance("default")
    if torch_private.compile_phase(error) == "frame":  # the trace has recorded it
        return
    place = calls.function_of(loaded)
    observer.stream.write(
        "call_error",
        call=index,
        raised=raised_error.to_json(),
        function=[place.file, place.line, place.function],
    )


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
