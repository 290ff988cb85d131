"""The child process: runs one target under observation.

`capture` starts it as `python -m` with a job in JSON.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from torchproof.observe.observer import Observer
from torchproof.process import Stream, hold
from torchproof.records import UserError
from torchproof.targets import Loaded, Target, calls, script
from torchproof.torch_private import environment


def main(arguments: list[str]) -> int:
    job = json.loads(arguments[0])
    stream = Stream()
    target = Target(**{**job["target"], "arguments": tuple(job["target"]["arguments"])})
    observer = Observer(stream, calls_are_wrapper_calls=target.kind == "script")
    try:
        if target.kind == "script":
            script.when_imported("torch", observer.attach)
            return script.run(target, stream)
        return _run_factory(target, job, observer)
    except UserError as error:
        stream.write("unusable", message=str(error))
        return 2
    finally:
        observer.detach()
        stream.write("environment", **environment.describe(job))


def _run_factory(target: Target, job: dict[str, Any], observer: Observer) -> int:
    import torch

    observer.attach()
    loaded = calls.fresh(target, job)
    fn: Callable[..., Any] = loaded.fn
    compiles_itself = job["as_written"] or calls.claims(fn, "compiles_itself")
    compiles_itself = compiles_itself or observer.private.is_compiled(fn)
    if compiles_itself and job["compile"]:
        raise UserError(
            f"{target.text} does its own compiling: --compile has no effect on it"
        )
    if not compiles_itself:
        observer.site = (loaded.place,)
        try:
            fn = torch.compile(fn, **_compile_arguments(job["compile"]))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"torch.compile rejects its arguments: {reason}") from error
        observer.site = None
    train = calls.trains(loaded, job)
    observer.stream.write("plan", calls=len(loaded.calls))
    for index, call in enumerate(loaded.calls):
        calls.before(loaded, index)
        observer.begin_call(index)
        try:
            _step(loaded, fn, call, train=train)
        except SystemExit as exit_:
            raise UserError(
                f"call {index} ends the process: sys.exit({exit_.code})"
            ) from None
        except Exception as error:
            _explain_failure(error, index, target=target, job=job, observer=observer)
        finally:
            observer.end_call()
    return 0


def _compile_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Defaults to the eager backend, so that Inductor is not imported for nothing."""
    if {"backend", "mode", "options"} & set(arguments):
        return arguments
    return {"backend": "eager", **arguments}


def _step(loaded: Loaded, fn: Callable[..., Any], call: Any, *, train: bool) -> None:
    if train:
        calls.forget_gradients(loaded.fn, call)
    calls.invoke(fn, call, train=train)


def _explain_failure(
    error: Exception,
    index: int,
    *,
    target: Target,
    job: dict[str, Any],
    observer: Observer,
) -> None:
    """Writes the error of a call; raises `UserError` if eager raises as well."""
    if isinstance(error, UserError):
        raise error
    if error is observer.last_error and job.get("runs_in_eager"):
        return
    import torch

    frames = traceback.extract_tb(error.__traceback__)
    last = traceback.format_exception_only(error)[-1].strip()
    torch.compiler.set_stance("force_eager")
    observer.paused = True
    try:
        loaded = calls.fresh(target, job)
        for number, call in enumerate(loaded.calls[: index + 1]):
            calls.before(loaded, number)
            _step(loaded, loaded.fn, call, train=calls.trains(loaded, job))
    except UserError:
        raise
    except Exception as eager_error:
        line = traceback.format_exception_only(eager_error)[-1].strip()
        raise UserError(
            f"the target fails in eager, at call {number}: {line}"
        ) from eager_error
    finally:
        observer.paused = False
        torch.compiler.set_stance("default")
    job["runs_in_eager"] = True
    if error is observer.last_error:  # a compiler error, which is already recorded
        return
    observer.stream.write(
        "call_error",
        call=index,
        error=type(error).__name__,
        message=last,
        site=[[f.filename, f.lineno, f.name] for f in frames],
    )


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
